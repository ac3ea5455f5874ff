// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
)

// A plan draws the steps of a walk in a layout. It asks neither the kernel nor the labs, so a seed draws the same on
// every machine. Names are drawn by their hash with a random number, so that a new change or kind of frames leaves
// most of the draws before it as they were.
type plan struct {
	layout *layout
	seed   uint64
	round  uint64
	number uint64 // of the last step
	groups [][]change
	active []change // in force after the last step
}

// A step is what a walk does between two comparisons.
type step struct {
	number  uint64
	made    *change
	unmade  *change
	repeat  uint64 // bits: which of the frames of steps before are sent again
	sources uint64 // bits: which of the layout's forged sources are used
	frames  []draft
}

// A draft is a frame whose flow has no addresses yet.
type draft struct {
	flow, protocol int
	id             uint16
	df             bool
	length         int
	kinds          []kind
	after          bool // a plain frame of the same flow comes before
}

func newPlan(l *layout, seed, round uint64) *plan {
	p := &plan{layout: l, seed: seed, round: round}
	for _, group := range [][]change{slices.Concat(routeChanges, ruleChanges), settingChanges, policyChanges, filterChanges, deviceChanges} {
		group = slices.DeleteFunc(slices.Clone(group), func(c change) bool { return !c.fits(l) })
		if len(group) > 0 {
			p.groups = append(p.groups, group)
		}
	}
	return p
}

// lengths of payloads, around the MTUs of the layouts and their changes.
var lengths = []int{0, 1, 17, 100, 600, 1200, 1280, 1322, 1350, 1392, 1422, 1440, 1472}

// framesOfStep are the new flows of a step.
const framesOfStep = 16

// next draws the next step. Steps do not share a generator, so that one draw more or less changes one step alone.
func (p *plan) next() (s step) {
	p.number++
	s.number = p.number
	r := rand.New(rand.NewPCG(p.seed, hash(p.layout.name, p.round, p.number)))
	p.drawChange(r, &s)
	s.repeat, s.sources = r.Uint64(), r.Uint64()
	for range framesOfStep {
		s.frames = append(s.frames, p.drawFrame(r))
	}
	return s
}

// drawChange makes a change in two of four steps and unmakes one in one. At most two are in force, of different groups,
// because of one group one may undo the other.
func (p *plan) drawChange(r *rand.Rand, s *step) {
	do, group, name, which := r.IntN(4), r.Uint64(), r.Uint64(), r.Uint64()
	switch {
	case do < 2 && len(p.active) < 2 && len(p.groups) > 0:
		from := p.groups[group%uint64(len(p.groups))]
		if !slices.ContainsFunc(p.active, func(a change) bool { return slices.ContainsFunc(from, a.is) }) {
			c := from[draw(name, from, func(c change) string { return c.name })]
			if !slices.ContainsFunc(p.active, func(a change) bool { return a.hinders(c) || c.hinders(a) }) {
				s.made, p.active = &c, append(p.active, c)
			}
		}
	case do > 0 && len(p.active) > 0:
		i := int(which % uint64(len(p.active)))
		c := p.active[i]
		s.unmade, p.active = &c, slices.Delete(p.active, i, i+1)
	}
}

// drawFrame makes half of the frames odd in one or two ways.
func (p *plan) drawFrame(r *rand.Rand) draft {
	d := draft{
		flow: r.IntN(2 * len(p.layout.pairs)), protocol: r.IntN(4), id: uint16(r.Uint32()), df: r.IntN(2) == 0,
		length: lengths[r.IntN(len(lengths))], after: r.IntN(2) == 0,
	}
	all, odd := kindsOf(p.layout), r.IntN(4)
	for _, name := range []uint64{r.Uint64(), r.Uint64()}[:max(0, odd-1)] {
		d.kinds = append(d.kinds, all[draw(name, all, func(k kind) string { return k.name })])
	}
	return d
}

// draw is the index of the one whose name has the highest hash with a random number.
func draw[T any](random uint64, all []T, name func(T) string) (at int) {
	highest := uint64(0)
	for i, one := range all {
		if h := hash(name(one), random); h >= highest {
			at, highest = i, h
		}
	}
	return at
}

func hash(name string, numbers ...uint64) uint64 {
	h := fnv.New64a()
	for _, n := range numbers {
		for range 8 {
			h.Write([]byte{byte(n)})
			n >>= 8
		}
	}
	h.Write([]byte(name))
	x := h.Sum64() // its high bits hardly depend on the last letters
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	return x ^ x>>29
}
