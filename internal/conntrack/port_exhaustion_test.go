// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"strings"
	"testing"
	"time"
)

// Status reports new flows without a SNAT port for some time after the last one, and not those from before
// the agent started.
func TestShortageOfPorts(t *testing.T) {
	now := time.Now()
	var s portExhaustion
	count := func(n uint64) { s.note(map[string]uint64{noPort: n}, now) }
	want := func(spoken bool) {
		t.Helper()
		if p, short := s.condition(now); short != spoken || !strings.Contains(p.Remedy, "--snat-ports") {
			t.Errorf("status says %q", p)
		}
	}
	want(false)
	count(5)
	want(false)
	count(6)
	want(true)
	now = now.Add(portExhaustionShown - time.Second)
	count(6)
	want(true)
	now = now.Add(time.Second)
	want(false)
	count(1) // the counters began anew
	want(false)
	count(2)
	want(true)
}
