// SPDX-License-Identifier: Apache-2.0

package jet

import (
	"slices"
	"testing"
)

// TestNothingChanges: without a change the history stays the same.
func TestNothingChanges(t *testing.T) {
	table := []uint32{1, 2, 3}
	s := State{Table: table, Untracked: true}
	if h := s.Next(slices.Clone(table), true, 5); h != nil {
		t.Errorf("the same table has a history: %v", h)
	}
	s.History = s.Next([]uint32{1, 2, 4}, true, 5)
	s.Table = []uint32{1, 2, 4}
	if h := s.Next([]uint32{1, 2, 5}, true, 6); h != s.History {
		t.Errorf("another change of a contested slot changes the history: %v", h)
	}
}

// TestWaits: Settle ends contested slots when Pending predicts it, unless an entry has another backend.
func TestWaits(t *testing.T) {
	free := func(uint32) bool { return false }
	const a, b = 1, 2
	before := State{Table: []uint32{a, a, a, a}, Untracked: true}
	for _, test := range []struct {
		name      string
		table     []uint32
		untracked bool
		contested int
		left      Seconds
	}{
		{"nothing has changed", []uint32{a, a, a, a}, true, 0, 0},
		{"two slots have changed", []uint32{a, b, b, a}, true, 2, timeout},
		{"the table has another size", []uint32{a, b}, true, 2, timeout},
		{"everything is recorded", []uint32{a, a, a, a}, false, 4, timeout},
	} {
		s := State{test.table, test.untracked, before.Next(test.table, test.untracked, 1000)}
		if contested, left := s.Pending(timeout, 1000); contested != test.contested || left != test.left {
			t.Errorf("%s: %d slots, %d s; want %d and %d", test.name, contested, left, test.contested, test.left)
		}
		if _, left := s.Pending(timeout, 1040); left != max(test.left, 40)-40 {
			t.Errorf("%s: after 40 s, %d s of %d remain", test.name, left, test.left)
		}
		if s.History = s.Settle(timeout, 1000+test.left, free); s.History != nil {
			t.Errorf("%s: still contested after %d s", test.name, test.left)
		}
	}
	fresh := State{before.Table, true, State{}.Next(before.Table, true, 1000)}
	if contested, left := fresh.Pending(timeout, 1000); contested != 4 || left != 0 || len(fresh.History.Stable) != 1 {
		t.Errorf("a new table: %d slots, %d s, recorded in %d slots; want all, until the next GC pass, in one", contested, left, len(fresh.History.Stable))
	}
	back := State{[]uint32{b, a, a, a}, true, before.Next([]uint32{b, a, a, a}, true, 1000)}
	back = State{before.Table, true, back.Next(before.Table, true, 1000)}
	if contested, left := back.Pending(timeout, 1000); contested != 1 || left != 0 {
		t.Errorf("A, B, A: %d slots, %d s; want one that waits only for conntrack entries", contested, left)
	}
}

// TestChangeRightAfterStart: nothing is known of a new table, however it changes, until a GC pass has seen all
// conntrack entries; then exactly the slots that have an entry with another backend are contested.
func TestChangeRightAfterStart(t *testing.T) {
	const a, b = 1, 2
	s := State{[]uint32{a, a, b}, true, State{}.Next([]uint32{a, a, b}, true, 1000)}
	for _, table := range [][]uint32{{a, b, b}, {b, b}, {a, b, a}} {
		next := s.Next(table, true, 1001)
		if next != s.History {
			t.Fatalf("%v after %v: another history, %+v", table, s.Table, next)
		}
		s.Table = table
		for _, hash := range []uint32{0, 1 << 31, 1<<32 - 1} {
			if !s.Contested(hash) || s.Stable(hash) != 0 {
				t.Fatalf("%v: hash %#x is contested %t, stable %d", table, hash, s.Contested(hash), s.Stable(hash))
			}
		}
	}
	s.History = s.Settle(timeout, 1002, func(slot uint32) bool { return slot == 1 })
	if h := s.History; h == nil || !slices.Equal(h.Contested, []bool{false, true, false}) {
		t.Fatalf("slot 1 has an entry with another backend: %+v", h)
	}
	if s.History = s.Settle(timeout, 1003, func(uint32) bool { return false }); s.History != nil {
		t.Errorf("no entry has another backend: %+v", s.History)
	}
}

// TestChange covers each kind of change of one slot.
func TestChange(t *testing.T) {
	const a, b, c = 1, 2, 3
	free := func(uint32) bool { return false }
	for _, test := range []struct {
		name   string
		tables []uint32
		stable uint32
		wait   Seconds // until it is uncontested without an entry
	}{
		{"A, B", []uint32{a, b}, a, timeout},
		{"A, B, C keeps A", []uint32{a, b, c}, a, timeout},
		{"A, B, A is contested: records may have B", []uint32{a, b, a}, a, 0},
	} {
		s := State{Table: test.tables[:1], Untracked: true}
		for _, backend := range test.tables[1:] {
			s = State{[]uint32{backend}, true, s.Next([]uint32{backend}, true, 1000)}
		}
		if s.History == nil || !s.Contested(7) || s.Stable(7) != test.stable {
			t.Errorf("%s: %+v", test.name, s.History)
			continue
		}
		if h := s.Settle(timeout, 1000+test.wait, func(uint32) bool { return true }); h == nil {
			t.Errorf("%s: uncontested despite an entry with another backend", test.name)
		}
		if test.wait > 0 && s.Settle(timeout, 1000+test.wait-1, free) == nil {
			t.Errorf("%s: uncontested too early", test.name)
		}
		if h := s.Settle(timeout, 1000+test.wait, free); h != nil {
			t.Errorf("%s: still contested after %d s: %+v", test.name, test.wait, h)
		}
	}
}
