// SPDX-License-Identifier: Apache-2.0

// Package history says which slots of a Maglev table need flow records, and where a
// packet without one belongs ("just enough tracking"). It is a function of values:
// no clock, no tables, no packets.
//
// A balancer that has sent all of a slot's packets to one backend needs no record to
// go on with it. Once the slot has another backend it does: connections from before
// stay where they are. Such a slot is contested. It has a stable backend, the one that
// it had while it was last uncontested, and its current one, of the table. Every flow
// is recorded then: one that begins goes to the current backend, and a packet that goes
// on without a record is of an unrecorded flow, so of the stable backend.
package history

import "slices"

// Seconds are those of a clock that never goes back.
type Seconds uint32

// Slot is that of a flow, by the hash of its packets, among as many as there are.
func Slot(hash uint32, slots int) uint32 { return uint32(uint64(hash) * uint64(slots) >> 32) }

// A History is what is remembered of the slots of one frontend. It never changes. Nil:
// no slot is contested.
//
// Its slots are those of the table by which flows were last sent without records. Where
// the table has another size now, or the frontend is not untracked any more, all of them
// are contested: so one slot alone is enough to remember that nothing is known of any.
type History struct {
	// Stable are the backends of contested slots; 0: none is known, and no flow is
	// without a record.
	Stable    []uint32
	Contested []bool
	// Since is when a contested slot became so. What has changed since does not matter:
	// flows that began since have records.
	Since []Seconds
}

// A State is how a frontend sends packets.
type State struct {
	// Table has the backend of each slot; nil: it sends none.
	Table []uint32
	// Untracked: flows of slots that are not contested have no records.
	Untracked bool
	History   *History
}

// Next is the history of a frontend that had a state and is to have another table. The
// zero State is of a frontend that has not been there: flows may have records all the
// same. Where nothing has changed it is the same History.
func (s State) Next(table []uint32, untracked bool, now Seconds) *History {
	h := s.History
	if untracked == s.Untracked && (!untracked || slices.Equal(table, s.Table)) {
		return h
	}
	if untracked && s.Untracked && len(table) == len(s.Table) && (h == nil || len(h.Stable) == len(table)) {
		return s.contest(now, func(slot int) bool { return table[slot] != s.Table[slot] })
	}
	h = s.contest(now, func(int) bool { return true })
	if untracked && h == nil && len(table) > 0 {
		return unknown(1, now)
	}
	if !untracked && h != nil && !h.Known() {
		return nil
	}
	return h
}

// Known says whether there may be flows without records that the history knows of.
func (h *History) Known() bool {
	return slices.ContainsFunc(h.Stable, func(backend uint32) bool { return backend != 0 })
}

// unknown is of slots in which flows may have records of any backend.
func unknown(slots int, now Seconds) *History {
	h := blank(slots)
	for slot := range slots {
		h.Contested[slot], h.Since[slot] = true, now
	}
	return h
}

func blank(slots int) *History {
	if slots == 0 {
		return nil
	}
	return &History{make([]uint32, slots), make([]bool, slots), make([]Seconds, slots)}
}

// contest has more slots contested, of those by which flows are sent without records.
func (s State) contest(now Seconds, changed func(slot int) bool) *History {
	h := s.History
	if !s.Untracked || h != nil && len(h.Stable) != len(s.Table) {
		return h // all are
	}
	next := blank(len(s.Table))
	if h != nil {
		next = &History{slices.Clone(h.Stable), slices.Clone(h.Contested), slices.Clone(h.Since)}
	}
	more := false
	for slot, backend := range s.Table {
		if !next.Contested[slot] && changed(slot) {
			next.Stable[slot], next.Contested[slot], next.Since[slot] = backend, true, now
			more = true
		}
	}
	if !more {
		return h
	}
	return next
}

// Settle is the history after a sweep of flows that began when the state was this one
// already. timeout is how long an idle flow lives; busy says whether the sweep has found a
// record in a slot of the table that leads elsewhere than the table.
//
// A slot is uncontested once its unrecorded flows have records or have been idle for too long,
// and no record leads elsewhere. Unrecorded flows are with the stable backend: where that is
// none, or the current one, nobody waits for them.
func (s State) Settle(timeout, began Seconds, busy func(slot uint32) bool) *History {
	h := s.History
	if h == nil {
		return nil
	}
	if !s.Untracked || len(h.Stable) != len(s.Table) {
		if !h.outlived(timeout, began) {
			return h
		}
		if !s.Untracked || len(s.Table) == 0 {
			return nil // whatever goes on has a record
		}
		// The earlier table has done its work: now slots are looked at one by one.
		return State{s.Table, true, unknown(len(s.Table), began)}.Settle(timeout, began, busy)
	}
	next, left := &History{slices.Clone(h.Stable), slices.Clone(h.Contested), h.Since}, false
	for slot, contested := range h.Contested {
		if !contested {
			continue
		}
		if s.waited(slot, timeout, began) && !busy(uint32(slot)) {
			next.Contested[slot], next.Stable[slot] = false, 0
		} else {
			left = true
		}
	}
	switch {
	case !left:
		return nil
	case slices.Equal(next.Contested, h.Contested):
		return h
	}
	return next
}

// Slots is how many there are, of the table or of the one before.
func (s State) Slots() int {
	if s.Untracked && len(s.Table) > 0 || s.History == nil {
		return len(s.Table)
	}
	return len(s.History.Stable)
}

// Waits says in how many slots flows need records because of the history, and for how long at
// most flows without records are still waited for. A slot stays contested for longer only while
// a record leads elsewhere than the table.
func (s State) Waits(timeout, now Seconds) (contested int, left Seconds) {
	h := s.History
	if h == nil {
		return 0, 0
	}
	all := !s.Untracked || len(h.Stable) != len(s.Table)
	for slot, stable := range h.Stable {
		if !all && !h.Contested[slot] {
			continue
		}
		contested++
		if stable != 0 && (all || stable != s.Table[slot]) && !passed(h.Since[slot], timeout, now) {
			left = max(left, h.Since[slot]+timeout-now)
		}
	}
	if all {
		contested = s.Slots()
	}
	return contested, left
}

// waited says whether each flow of a slot has a record, or has been idle for too long.
func (s State) waited(slot int, timeout, now Seconds) bool {
	stable := s.History.Stable[slot]
	return stable == 0 || stable == s.Table[slot] || passed(s.History.Since[slot], timeout, now)
}

// outlived is the same of all slots, whatever the table says.
func (h *History) outlived(timeout, now Seconds) bool {
	for slot, stable := range h.Stable {
		if stable != 0 && !passed(h.Since[slot], timeout, now) {
			return false
		}
	}
	return true
}

func passed(since, time, now Seconds) bool { return int64(now)-int64(since) >= int64(time) }
