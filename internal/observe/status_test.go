// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/source"
	"beeline.io/beeline/internal/sync"
)

// An API server that has been away for long is worth a complaint; one that is
// restarted is not, and manifests have none.
func TestAway(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, test := range []struct {
		name       string
		connection *source.Connection
		want       string
	}{
		{"manifests", nil, ""},
		{"connected", &source.Connection{Connected: true, Since: ago(time.Hour)}, ""},
		{"restarting", &source.Connection{Since: ago(5 * time.Second), Error: "refused"}, ""},
		{"away", &source.Connection{Since: ago(time.Hour), Error: "refused"}, "has not answered for 1h0m0s, and changes are not heard of: the last state is in force: refused"},
	} {
		s := Status{Running: true, Source: Source{Connection: test.connection}}
		got := strings.Join(s.Complaints(), "; ")
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: complaints %q, want %q", test.name, got, test.want)
		}
	}
}

// What is said of slots that have changed: how many of how many, and for how long at most.
func TestUntracked(t *testing.T) {
	for _, test := range []struct {
		untracked int
		settling  sync.Settling
		want      string
	}{
		{0, sync.Settling{}, ""},
		{2, sync.Settling{Slots: 502}, "2 frontends need no records of flows to other nodes"},
		{2, sync.Settling{Slots: 502, Contested: 251}, "2 frontends need no records of flows to other nodes; for now 251 of 502 slots do, until no record leads elsewhere"},
		{0, sync.Settling{Slots: 251, Contested: 251, Seconds: 3661}, "0 frontends need no records of flows to other nodes; for now 251 of 251 slots do, for at most 1h1m1s more unless recorded connections go on elsewhere"},
	} {
		s := Status{Sync: sync.Stats{Untracked: test.untracked}, Settling: test.settling}
		if got := s.Untracked(); got != test.want {
			t.Errorf("%+v: %q, want %q", test.settling, got, test.want)
		}
	}
}

// R39: a Node that has been deleted is no wrong name.
func TestNodeDeleted(t *testing.T) {
	const unknown, deleted = `no Node is called "n"`, "Node n has been deleted"
	for _, test := range []struct {
		status Status
		want   string
	}{
		{Status{Running: true, Node: "n"}, ""},
		{Status{Running: true, Node: "n", UnknownNode: true}, unknown},
		{Status{Running: true, Node: "n", NodeDeleted: true}, deleted},
	} {
		all := test.status.Complaints()
		if got := strings.Join(all, "; "); len(all) > 1 || test.want == "" && got != "" || !strings.HasPrefix(got, test.want) {
			t.Errorf("complaints %q, want %q", got, test.want)
		}
	}
}
