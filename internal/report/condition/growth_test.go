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
	want := func(when string, recent bool) {
		t.Helper()
		if got := g.Recent(now); got != recent {
			t.Errorf("%s: the growth is reported: %t, want %t (the counter is at %d, and grew last at %s)", when, got, recent, g.Count, g.Last.Format(time.TimeOnly))
		}
	}
	want("before the first reading", false)
	g.Note(5, now)
	want("at the first reading, of 5, which an earlier agent may have counted", false)
	g.Note(6, now)
	want("as the counter grows to 6", true)
	now = now.Add(growthShown - time.Second)
	g.Note(6, now)
	want("a second before the time that a growth is shown", true)
	now = now.Add(time.Second)
	want("after the time that a growth is shown", false)
	g.Note(1, now) // the counters began anew
	want("as the counter begins anew", false)
	g.Note(2, now)
	want("as the new counter grows to 2", true)
}
