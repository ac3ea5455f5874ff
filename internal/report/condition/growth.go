// SPDX-License-Identifier: Apache-2.0

package condition

import "time"

// growthShown is how long a counter counts as growing after it has grown.
const growthShown = 10 * time.Minute

// Growth watches a counter of packets that get lost. That it grew is a condition for some time.
type Growth struct {
	Count uint64    // since the counter began
	Last  time.Time // when it was last seen to grow
	known bool
}

// Note handles a reading. The first one includes the time before this agent.
func (g *Growth) Note(count uint64, now time.Time) {
	if g.known && count > g.Count {
		g.Last = now
	}
	g.known, g.Count = true, count
}

// Recent reports whether the counter has grown in the last ten minutes.
func (g *Growth) Recent(now time.Time) bool { return !g.Last.IsZero() && now.Sub(g.Last) < growthShown }
