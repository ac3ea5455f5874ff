// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

var (
	seed    = flag.Uint64("seed", 1, "draw changes and frames of the walk from this; 0: from the clock")
	lasting = flag.Duration("lasting", 20*time.Second, "duration of the walk")
	walking = flag.String("layout", "", "walk in this layout alone")
	steps   = flag.Uint64("steps", 0, "one pair of labs of each layout, with so many steps; 0: as many as there is time for")
)

// inOneLab is how long a walk stays in one pair of labs at most, and atLeast how long it does.
const (
	inOneLab = time.Minute
	atLeast  = 6 * time.Second
)

// Random frames under random changes of the node's configuration, made before and while flows run, arrive as by the
// stack, in every layout.
func TestWalk(t *testing.T) {
	if testing.Short() {
		t.Skip("a walk takes minutes, and finds what is not listed yet: make fuzz")
	}
	t.Parallel()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	var some []*layout
	for _, l := range layouts {
		if l.lacks() == "" && (*walking == "" || *walking == l.name) {
			some = append(some, l)
		}
	}
	if len(some) == 0 {
		t.Fatalf("no layout is named %q", *walking)
	}
	all := total{lines: map[string]string{}}
	end, missed := time.Now().Add(*lasting), []string(nil)
	for part := 0; part < len(some) || *steps == 0 && time.Now().Before(end); part++ {
		l, round := some[part%len(some)], uint64(part/len(some))
		if *steps == 0 && time.Now().After(end) {
			missed = append(missed, l.name)
			continue
		}
		t.Run(fmt.Sprintf("%s, round %d", l.name, round), func(t *testing.T) { all.walk(t, l, round, *lasting/time.Duration(len(some))) })
	}
	t.Logf("-seed=%d: %d frames sent into both labs, %d packets compared, in %d steps with %d changes", *seed, all.frames, all.packets, all.steps, all.changes)
	for line, where := range all.lines {
		t.Logf("found: %s: %s", line, where)
	}
	if len(missed) > 0 {
		t.Logf("no time was left for these layouts: %q", missed)
	}
}

// total is what a walk has compared, and where it has found each fault first.
type total struct {
	frames, packets, changes int
	steps                    uint64
	lines                    map[string]string
}

// walk compares in a pair of labs of a layout.
func (all *total) walk(t *testing.T, l *layout, round uint64, share time.Duration) {
	until := time.Now().Add(max(atLeast, min(inOneLab, share)))
	k := newWalk(newWorld(t, l), newPlan(l, *seed, round), excuses(t))
	for *steps == 0 && time.Now().Before(until) || k.plan.number < *steps {
		s, found := k.step()
		for _, d := range found {
			line := slices.Concat(known, fixed, mustList(t)).line(d)
			if all.lines[line] == "" {
				all.lines[line] = fmt.Sprintf("layout %s, round %d, step %d, %q", l.name, round, s.number, d.scenarios())
			}
			if !excuses(t).explain(d) {
				t.Errorf("-seed=%d -layout=%q, round %d, step %d: %s", *seed, l.name, round, s.number, d)
			}
		}
	}
	k.end()
	all.frames += k.tally.frames
	all.packets += k.tally.arrived
	all.changes += k.made
	all.steps += k.plan.number
}
