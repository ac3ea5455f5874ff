// SPDX-License-Identifier: Apache-2.0

package hoststack

import "maps"

// Bounds of what a page's counters may grow by between two looks. A program that writes more into them is not counted.
const (
	maxGrowth      = 1 << 32
	maxOctetGrowth = 1 << 42
)

// forgetAfter is the number of looks after which a page that was not seen is forgotten.
const forgetAfter = 30

// totals sums counters of pages that come and go.
type totals struct {
	seen map[identity]*seenPage
	late bool // a look was before: a page that is new has counted from 0
}

type seenPage struct {
	counters Counters
	missing  int // looks that did not find it
}

// add adds what the pages of a report have counted since the last one. What a page had counted before the first look is
// not added.
func (t *totals) add(r *Report, sums *Counters) {
	maps.DeleteFunc(t.seen, func(_ identity, s *seenPage) bool { s.missing++; return s.missing > forgetAfter })
	for i := range r.Programs {
		p := &r.Programs[i]
		if p.Counters == nil {
			continue
		}
		now := p.Counters.clone()
		before, known := t.seen[p.page.identity]
		t.seen[p.page.identity] = &seenPage{counters: now}
		switch {
		case !known && t.late && now.follows(Counters{}):
			sums.grow(now, Counters{})
		case known && now.follows(before.counters):
			sums.grow(now, before.counters)
		case known:
			p.State, p.Why = Unread, "its counters went back, or further than they can in the time"
		}
	}
	t.late = true
}

func (c Counters) clone() Counters {
	c.Refused = maps.Clone(c.Refused)
	return c
}

// fields returns the counters with their bounds, in one order.
func (c *Counters) fields() (values []*uint64, most []uint64) {
	return []*uint64{&c.Attached, &c.Unlisted, &c.Violations, &c.ReturnedToKernel, &c.Received, &c.Sent},
		[]uint64{maxGrowth, maxGrowth, maxGrowth, maxGrowth, maxOctetGrowth, maxOctetGrowth}
}

// follows reports whether the counters can be those of the same page after others.
func (c Counters) follows(before Counters) bool {
	now, most := c.fields()
	then, _ := before.fields()
	for i := range now {
		if *now[i] < *then[i] || *now[i]-*then[i] > most[i] {
			return false
		}
	}
	for reason, n := range c.Refused {
		if n < before.Refused[reason] || n-before.Refused[reason] > maxGrowth {
			return false
		}
	}
	return true
}

// grow adds the difference of two counters of a page.
func (c *Counters) grow(now, before Counters) {
	sums, _ := c.fields()
	a, _ := now.fields()
	b, _ := before.fields()
	for i := range sums {
		*sums[i] += *a[i] - *b[i]
	}
	for reason, n := range now.Refused {
		c.Refused[reason] += n - before.Refused[reason]
	}
}
