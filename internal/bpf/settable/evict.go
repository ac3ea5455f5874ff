// SPDX-License-Identifier: Apache-2.0

package settable

import (
	"cmp"
	"sync/atomic"
)

// Evict makes room for an entry that Insert found no place for: it removes one entry from the sets of the key, by the
// rules of bpf/set_table/set_table.h, and returns a copy. It returns false if all must stay, or if a program has
// changed the place meanwhile. Programs may use the table.
func (o *OpenTable[K, E]) Evict(key *K, mark Eviction, now uint32) (evicted E, ok bool) {
	numbers := o.setsOf(KeySum(&o.secret, key), o.window.sets())
	s := o.window.at(numbers[0])
	best := PickVictim(s.SetTags, &s.Marks, mark, now)
	if len(numbers) > 1 && !best.Dead {
		second := o.window.at(numbers[1])
		if other := PickVictim(second.SetTags, &second.Marks, mark, now); other.Dead {
			s, best = second, other
			atomic.StoreUint32(&o.window.at(numbers[0]).Spilled, 1)
		}
	}
	if !best.Found || !o.Read(s, best.Place, &evicted) {
		return evicted, false
	}
	return evicted, atomic.CompareAndSwapUint32(&s.Tags[best.Place], best.tag, 0)
}

// Victim is an entry that may be evicted.
type Victim struct {
	Found, Dead bool // Dead: it has expired or is closed
	Place       int
	tag         uint32
	order       int // 2: dead, 1: closed by one side, 0: open
	weight      int // the more entries of its Service are in the set
	rank        uint32
	age         int32 // ticks since it expired; negative: until then
}

// PickVictim picks the entry of a full set that one with the mark evicts, like set_pick in
// bpf/set_table/set_table.h.
func PickVictim(tags *SetTags, marks *Evictions, mark Eviction, now uint32) (best Victim) {
	largest := marks.majority(mark.service())
	for place, m := range marks.Evictions {
		v := Victim{Found: true, Place: place, tag: atomic.LoadUint32(&tags.Tags[place]), rank: m.rank(), age: int32(now - m.Expires)}
		v.Dead = v.rank == RankClosed || v.age >= 0
		if v.tag == 0 || v.tag&Claimed != 0 || v.rank < mark.rank() && !v.Dead {
			continue
		}
		v.order = btoi(v.rank == RankClosing)
		switch service := m.service(); {
		case v.Dead:
			v.order, v.weight, v.rank = 2, 0, 0
		case largest >= 0:
			v.weight = btoi(service == uint32(largest))
		default:
			v.weight = 2*marks.entriesOf(service) + 3*btoi(service == mark.service())
		}
		if !best.Found || cmp.Or(cmp.Compare(v.order, best.order), cmp.Compare(v.weight, best.weight), cmp.Compare(v.rank, best.rank), cmp.Compare(v.age, best.age)) > 0 {
			best = v
		}
	}
	return best
}

// majority returns the Service that has more than half of a set, a new entry of one included; -1: none.
func (m *Evictions) majority(of uint32) int64 {
	for _, candidate := range append([]Eviction{{Owner: of << RankBits}}, m.Evictions[:]...) {
		if s := candidate.service(); m.entriesOf(s)+btoi(s == of) > (Places+1)/2 {
			return int64(s)
		}
	}
	return -1
}

func (m *Evictions) entriesOf(service uint32) (n int) {
	for _, other := range m.Evictions {
		n += btoi(other.service() == service)
	}
	return n
}

func (m Eviction) rank() uint32 { return m.Owner & (1<<RankBits - 1) }

func (m Eviction) service() uint32 { return m.Owner >> RankBits }

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
