// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"testing"
	"time"
)

// A counter has grown for some time after the last growth, and not by what it had before the agent started.
func TestGrowth(t *testing.T) {
	now := time.Now()
	var g Growth
	want := func(recent bool) {
		t.Helper()
		if got := g.Recent(now); got != recent {
			t.Errorf("count %d: recent %t", g.Count, got)
		}
	}
	want(false)
	g.Note(5, now)
	want(false)
	g.Note(6, now)
	want(true)
	now = now.Add(growthShown - time.Second)
	g.Note(6, now)
	want(true)
	now = now.Add(time.Second)
	want(false)
	g.Note(1, now) // the counters began anew
	want(false)
	g.Note(2, now)
	want(true)
}
