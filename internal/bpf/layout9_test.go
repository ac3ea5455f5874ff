// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/mappedarray"
)

// TestListsOfVersion9: frontends of version 9 get rows of lists with their members, retained backends and
// history, each list right before the one that follows it, as package reconcile restores them. Frontends
// share lists.
func TestListsOfVersion9(t *testing.T) {
	spec, err := LoadSock()
	must(t, err)
	d := &Datapath{maps: map[string]*ebpf.Map{}}
	for _, name := range []string{SockMapFrontendRows, SockMapFrontendListRows, SockMapSlots} {
		s := spec.Maps[name]
		s.MaxEntries = 64
		m, err := ebpf.NewMap(s)
		must(t, err)
		defer m.Close()
		d.maps[name] = m
	}
	slots := mappedarray.New[uint32](d.maps[SockMapSlots])
	for i, word := range []uint32{
		7, 8, 2, // the members of the table, and their number
		7, 8, 8, 7, 8, // the table at 3
		0x80000007, 0, 8, 3, uint32(DSRGeneve), 1, // the history of three slots, the number of retained backends
		7,    // retained, at 14
		1, 9, // retained by another frontend, without a history, at 16
	} {
		must(t, slots.Store(uint32(i), word))
	}
	rows := mappedarray.New[Frontend](d.maps[SockMapFrontendRows])
	table := Decision{First: 3, Count: 5}
	history := Frontend{Service: 1, Flags: uint16(FlagMaglev | FlagHistory), Decisions: [3]Decision{table, {First: uint32(0)}, table}, Lists: 14}
	plain := Frontend{Service: 2, Decisions: [3]Decision{{First: 20, Count: 2}}}
	must(t, rows.Store(1, history))
	must(t, rows.Store(2, history))
	must(t, rows.Store(3, plain))
	keeps := plain
	keeps.Lists = 16
	must(t, rows.Store(4, keeps))
	must(t, listsSince10(d))
	lists := mappedarray.New[FrontendLists](d.maps[SockMapFrontendListRows])
	words := func(r SlotRange) (all []uint32) {
		for i := range r.Count {
			all = append(all, slots.Load(r.First+i))
		}
		return all
	}
	for _, number := range []uint32{1, 2} {
		l := lists.Load(number)
		if rows.Load(number).Lists != number || !slices.Equal(words(l.Members[0]), []uint32{7, 8}) || l.Members[0].First+2 != 3 || l.Members[2] != l.Members[0] || l.Members[1].Count != 0 {
			t.Errorf("row %d has the members %+v: %v", number, l.Members, words(l.Members[0]))
		}
		if !slices.Equal(words(l.Retained), []uint32{7}) || l.HistoryDsr != uint32(DSRGeneve) {
			t.Errorf("row %d retains %+v: %v, by DSR %d", number, l.Retained, words(l.Retained), l.HistoryDsr)
		}
		if !slices.Equal(words(l.History), []uint32{0x80000007, 0, 8}) || l.History.First+3 != l.Retained.First {
			t.Errorf("row %d has the history %+v: %v", number, l.History, words(l.History))
		}
	}
	if rows.Load(3) != plain || lists.Load(3) != (FrontendLists{}) {
		t.Errorf("a frontend without lists has become %+v with %+v", rows.Load(3), lists.Load(3))
	}
	if l := lists.Load(4); l.Members[0] != (SlotRange{First: 20, Count: 2}) || !slices.Equal(words(l.Retained), []uint32{9}) {
		t.Errorf("a frontend with retained backends has %+v", l)
	}
}
