// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	seed    = flag.Uint64("seed", 1, "draw changes and frames of the walk from this; 0: from the clock")
	lasting = flag.Duration("lasting", 20*time.Second, "duration of the walk")
	walking = flag.String("layout", "", "walk in this layout alone")
)

// inOneLab is how long a walk stays in one pair of labs, and a part of the whole walk at most.
const inOneLab = time.Minute

// Random frames under random changes of the node's configuration, made before and while flows run, arrive as by the
// stack, in every layout.
func TestWalk(t *testing.T) {
	t.Parallel()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	var all total
	end := time.Now().Add(*lasting)
	for part := uint64(0); time.Now().Before(end); part++ {
		l := layouts[part%uint64(len(layouts))]
		if l.lacks() == "" && (*walking == "" || *walking == l.name) {
			t.Run(fmt.Sprintf("part %d, %s", part, l.name), func(t *testing.T) { all.walk(t, l, part) })
		}
	}
	t.Logf("-seed=%d: %+v", *seed, all)
}

// total is what a walk has compared.
type total struct{ Frames, Packets, Steps, Changes int }

// walk compares in a pair of labs of a layout.
func (all *total) walk(t *testing.T, l *layout, part uint64) {
	until := time.Now().Add(max(6*time.Second, min(inOneLab, *lasting/time.Duration(len(layouts)))))
	k := newWalk(newWorld(t, l), rand.New(rand.NewPCG(*seed, part)))
	for n := 1; time.Now().Before(until); n++ {
		for _, d := range k.step() {
			if !known.explain(d) {
				t.Errorf("-seed=%d, step %d: %s", *seed, n, d)
			}
		}
		all.Steps++
	}
	k.end()
	all.Frames += k.tally.frames
	all.Packets += k.tally.arrived
	all.Changes += k.made
}
