// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A walk makes changes and sends frames at random. The same seed draws the same.
type walk struct {
	*world
	random  *rand.Rand
	groups  [][]change // of which at most one change is in force at a time, because one undoes the other
	active  []change
	made    int
	running []Frame   // of flows that a later step sends again
	settled time.Time // when the shortcut has followed the last change
}

func newWalk(w *world, random *rand.Rand) *walk {
	k := &walk{world: w, random: random}
	for _, group := range [][]change{slices.Concat(routeChanges, ruleChanges), settingChanges, policyChanges, filterChanges, deviceChanges} {
		group = slices.DeleteFunc(slices.Clone(group), func(c change) bool { return !c.fits(w.layout) || w.lacks(c) != "" })
		if len(group) > 0 {
			k.groups = append(k.groups, group)
		}
	}
	return k
}

// step makes or unmakes a change, or none, and returns what differs of some flows: of new ones and of those of steps
// before.
func (k *walk) step() []Difference {
	k.t.Helper()
	switch draw := k.random.IntN(4); {
	case draw < 2 && len(k.active) < 2:
		k.change()
	case draw > 0 && len(k.active) > 0:
		k.restore(k.random.IntN(len(k.active)))
	}
	frames := append(k.again(), k.frames(8)...)
	k.running = frames[max(0, len(frames)-16):]
	return k.differences(frames, max(0, time.Until(k.settled)))
}

// change makes a change of a group that has none in force.
func (k *walk) change() {
	k.t.Helper()
	group := k.groups[k.random.IntN(len(k.groups))]
	c := group[k.random.IntN(len(group))]
	if slices.ContainsFunc(k.active, func(a change) bool { return slices.ContainsFunc(group, a.is) }) {
		return
	}
	k.make(c)
	k.active = append(k.active, c)
	k.made++
	k.follows(c)
}

func (k *walk) restore(i int) {
	k.t.Helper()
	c := k.active[i]
	k.unmake(c)
	k.active = slices.Delete(k.active, i, i+1)
	for _, s := range k.sides {
		k.must(s.meetAll())
	}
	k.settle()
	k.follows(c)
}

func (c change) is(other change) bool { return c.name == other.name }

func (k *walk) follows(c change) {
	if at := time.Now().Add(c.follows); at.After(k.settled) {
		k.settled = at
	}
}

// end undoes what is in force.
func (k *walk) end() {
	k.t.Helper()
	for len(k.active) > 0 {
		k.restore(0)
	}
}

// again are some frames of the last steps.
func (k *walk) again() (some []Frame) {
	for _, f := range k.running {
		if k.random.IntN(2) == 0 {
			some = append(some, f)
		}
	}
	return some
}

// frames are n frames of new flows.
func (k *walk) frames(n int) (all []Frame) {
	flows := k.flows()
	for range n {
		flow := flows[k.random.IntN(len(flows))]
		port := k.nextPort()
		f := flow.datagram(port)
		switch k.random.IntN(4) {
		case 0:
			f = flow.segment(port, "PA", 0)
		case 1:
			f = flow.echo(port)
		}
		f.ID, f.DF = uint16(k.random.Uint32()), k.random.IntN(2) == 0
		f.Length = []int{0, 1, 17, 100, 600, 1200, 1280, 1392, 1422, 1440, 1472}[k.random.IntN(11)]
		k.odds(&f)
		all = append(all, f)
	}
	return all
}

// odds makes half of the frames odd in one or two ways.
func (k *walk) odds(f *Frame) {
	kinds := kindsOf(k.layout)
	for range k.random.IntN(3) {
		kinds[k.random.IntN(len(kinds))].make(f)
	}
}
