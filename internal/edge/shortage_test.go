// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"strings"
	"testing"
	"time"
)

// Status speaks of new flows that found no port for some time after the last one, and
// not of those of a time before the agent's.
func TestShortageOfPorts(t *testing.T) {
	now := time.Now()
	var s shortage
	count := func(n uint64) { s.note(map[string]uint64{noPort: n}, now) }
	want := func(spoken bool) {
		t.Helper()
		if p := s.problem(now); strings.Contains(p, "--snat-ports") != spoken {
			t.Errorf("status says %q", p)
		}
	}
	want(false)
	count(5)
	want(false)
	count(6)
	want(true)
	now = now.Add(shortageShown - time.Second)
	count(6)
	want(true)
	now = now.Add(time.Second)
	want(false)
	count(1) // the counters began anew
	want(false)
	count(2)
	want(true)
}
