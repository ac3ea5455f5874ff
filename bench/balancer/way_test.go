// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf"
)

// wantWrong checks for an error with this text; empty means none.
func wantWrong(t *testing.T, what string, err error, wrong string) {
	t.Helper()
	if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
		t.Errorf("%s: %v, want an error with %q", what, err, wrong)
	}
}

// A round counts only if its bytes took the stated path.
func TestProveTraffic(t *testing.T) {
	const requests = 1000
	before := traffic{passed: 12345, sockmap: sockmapCounters{Segments: 7, Bytes: 999, Lost: 300}}
	for _, c := range []struct {
		what    string
		passes  passage
		sockmap bool
		passed  uint64
		counts  sockmapCounters
		wrong   string
	}{
		{"direct", passesNothing, false, 5000, sockmapCounters{}, ""},
		{"direct, but requests pass", passesNothing, false, 110 * requests, sockmapCounters{}, "node-a has sent"},
		{"requests and answers", passesAll, false, 1400 * requests, sockmapCounters{}, ""},
		{"answers go another way", passesAll, false, 200 * requests, sockmapCounters{}, "node-a has sent"},
		{"only requests", passesRequests, false, 200 * requests, sockmapCounters{}, ""},
		{"answers, too", passesRequests, false, 1400 * requests, sockmapCounters{}, "node-a has sent"},
		{"not even requests", passesRequests, false, 5000, sockmapCounters{}, "node-a has sent"},
		{"by the map", passesAll, true, 1400 * requests, sockmapCounters{Bytes: 1300 * requests, Lost: 100}, ""},
		{"half not by the map", passesAll, true, 1400 * requests, sockmapCounters{Bytes: 650 * requests}, "went by the map"},
		{"lost by the map", passesAll, true, 1400 * requests, sockmapCounters{Bytes: 1300 * requests, Lost: 101}, "lost 101"},
	} {
		w := &way{passes: c.passes}
		if c.sockmap {
			w.sockmap = &sockmapBalancer{}
		}
		after := traffic{before.passed + c.passed, before.sockmap}
		after.sockmap.Bytes += c.counts.Bytes
		after.sockmap.Lost += c.counts.Lost
		wantWrong(t, c.what, w.proveTraffic(before, after, requests), c.wrong)
	}
}

// Packets are handled at the hook that a way names.
func TestProveHook(t *testing.T) {
	type runs = map[bpf.EdgeHook]uint64
	const xdp, tc = bpf.EdgeXDP, bpf.EdgeIngress
	for _, c := range []struct {
		what          string
		hook          bpf.EdgeHook
		before, after runs
		wrong         string
	}{
		{"none", "", runs{}, runs{}, ""},
		{"XDP", xdp, runs{xdp: 10, tc: 10}, runs{xdp: 10 + 5*proofs, tc: 12}, ""},
		{"XDP leaves it to tc", xdp, runs{xdp: 10, tc: 10}, runs{xdp: 10 + 5*proofs, tc: 10 + 5*proofs}, "XDP left"},
		{"nothing came", xdp, runs{xdp: 10, tc: 10}, runs{xdp: 12, tc: 12}, "ran 2 times"},
		{"tc", tc, runs{tc: 10}, runs{tc: 10 + 5*proofs}, ""},
		{"tc behind XDP", tc, runs{xdp: 10, tc: 10}, runs{xdp: 10 + 5*proofs, tc: 10 + 5*proofs}, "XDP, too"},
		{"no program", tc, runs{}, runs{}, "ran 0 times"},
	} {
		w := &way{hook: c.hook}
		wantWrong(t, c.what, w.proveHook(c.before, c.after), c.wrong)
	}
}
