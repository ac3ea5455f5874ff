// SPDX-License-Identifier: Apache-2.0

// Package jet computes which slots of a Maglev table need conntrack entries, and which backend gets a packet
// without one ("just enough tracking"). It is purely functional: no clock, no tables, no packets.
//
// A slot needs no conntrack entries while a balancer sends all of its packets to one backend. When its backend
// changes, the slot becomes contested, because existing connections stay with the old backend. A contested slot
// has a stable backend, the one from before it became contested, and a current backend, the one in the table.
// Every flow of the slot gets a conntrack entry: a new flow goes to the current backend; a packet that starts
// no flow and has no entry belongs to an untracked flow, and goes to the stable backend.
package jet

import "slices"

// Seconds is the time of a monotonic clock.
type Seconds uint32

// Slot returns the slot of a flow from the hash of its packets and the number of slots.
func Slot(hash uint32, slots int) uint32 { return uint32(uint64(hash) * uint64(slots) >> 32) }

// A History holds the contested slots of one frontend. It is immutable. Nil means that no slot is contested.
//
// Its slots are those of the last table that forwarded flows without conntrack entries. If the table now has
// another size, or the frontend is no longer untracked, all slots are contested. One slot is then enough to
// record that no stable backend is known.
type History struct {
	// Stable holds the stable backend of each contested slot. 0 means that none is known, and every flow
	// has a conntrack entry.
	Stable    []uint32
	Contested []bool
	// Since is when the slot became contested. Later changes do not matter, because flows that started
	// since then have conntrack entries.
	Since []Seconds
}

// A State is how a frontend forwards packets.
type State struct {
	// Table holds the backend of each slot; nil if the frontend forwards nothing.
	Table []uint32
	// Untracked means that flows of uncontested slots have no conntrack entries.
	Untracked bool
	History   *History
}

// Next returns the history after the frontend gets another table. The zero State is that of a new frontend; its
// flows may nevertheless have conntrack entries. If nothing changed, Next returns the same History.
func (s State) Next(table []uint32, untracked bool, now Seconds) *History {
	h := s.History
	if untracked == s.Untracked && (!untracked || slices.Equal(table, s.Table)) {
		return h
	}
	if untracked && s.Untracked && len(table) == len(s.Table) && (h == nil || len(h.Stable) == len(table)) {
		return s.addContested(now, func(slot int) bool { return table[slot] != s.Table[slot] })
	}
	h = s.addContested(now, func(int) bool { return true })
	if untracked && h == nil && len(table) > 0 {
		return unknown(1, now)
	}
	if !untracked && h != nil && !h.Known() {
		return nil
	}
	return h
}

// Known reports whether there may be flows without conntrack entries whose backend the history knows.
func (h *History) Known() bool {
	return slices.ContainsFunc(h.Stable, func(backend uint32) bool { return backend != 0 })
}

// unknown returns a history of slots whose flows may have conntrack entries with any backend.
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

// addContested marks more slots of the untracked table as contested.
func (s State) addContested(now Seconds, changed func(slot int) bool) *History {
	h := s.History
	if !s.Untracked || h != nil && len(h.Stable) != len(s.Table) {
		return h // all slots are contested
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

// Settle returns the history after a GC pass over the flows that began when the state was already this one.
// timeout is the idle timeout of a flow; busy reports whether the GC pass found a conntrack entry of a slot
// with another backend than the table's.
//
// A slot becomes uncontested once its untracked flows have conntrack entries or have timed out, and no entry
// has another backend. Untracked flows belong to the stable backend: without one, or if it is the current one,
// there is nothing to wait for.
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
			return nil // every remaining flow has a conntrack entry
		}
		// The earlier table is no longer needed: from now on, slots are checked one by one.
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

// Slots returns the number of slots of the table, or of the previous one.
func (s State) Slots() int {
	if s.Untracked && len(s.Table) > 0 || s.History == nil {
		return len(s.Table)
	}
	return len(s.History.Stable)
}

// Pending returns the number of slots whose flows need conntrack entries because of the history, and the
// maximum remaining lifetime of untracked flows. A slot stays contested longer only while a conntrack entry has
// another backend than the table's.
func (s State) Pending(timeout, now Seconds) (contested int, left Seconds) {
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

// waited reports whether each flow of a slot has a conntrack entry or has timed out.
func (s State) waited(slot int, timeout, now Seconds) bool {
	stable := s.History.Stable[slot]
	return stable == 0 || stable == s.Table[slot] || passed(s.History.Since[slot], timeout, now)
}

// outlived reports the same for all slots, regardless of the table.
func (h *History) outlived(timeout, now Seconds) bool {
	for slot, stable := range h.Stable {
		if stable != 0 && !passed(h.Since[slot], timeout, now) {
			return false
		}
	}
	return true
}

func passed(since, time, now Seconds) bool { return int64(now)-int64(since) >= int64(time) }
