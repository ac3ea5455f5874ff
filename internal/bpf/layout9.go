// SPDX-License-Identifier: Apache-2.0

package bpf

import "beeline.io/beeline/internal/bpf/mappedarray"

// The layout of frontends until version 9: a frontend had no row of lists. The last word of its row was the first slot
// of the list of retained backends, 0 if there was none, and the number of members of a list was in the slot before it:
//
//	slots before a Maglev table:     members..., number of members
//	slots before retained backends:  a word per slot of an earlier table..., number of these words, kind of DSR,
//	                                 number of retained backends (only this one without FRONTEND_HISTORY)

// listsSince10 makes the rows of lists for frontends of such tables. The tables are copies; no program uses
// them.
func listsSince10(d *Datapath) error {
	rows, lists := mappedarray.New[Frontend](d.maps[SockMapFrontendRows]), mappedarray.New[FrontendLists](d.maps[SockMapFrontendListRows])
	u := upgrade9{slots: mappedarray.New[uint32](d.maps[SockMapSlots]), moved: map[uint32]FrontendLists{}}
	for number := range min(rows.Len(), lists.Len()) {
		row := rows.Load(number)
		if row == (Frontend{}) || row.Lists == 0 && row.Flags&uint16(FlagMaglev) == 0 {
			continue
		}
		if err := lists.Store(number, u.lists(&row)); err != nil {
			return err
		}
		row.Lists = number
		if err := rows.Store(number, row); err != nil {
			return err
		}
	}
	return nil
}

// upgrade9 moves the lists of frontends in `slots`.
type upgrade9 struct {
	slots Array[uint32]
	moved map[uint32]FrontendLists // by the first slot of a table or of retained backends, which frontends share
}

// at reads a slot, 0 if there is none: a damaged row may name one, and the agent's audit repairs the row.
func (u *upgrade9) at(slot uint32) uint32 {
	if slot >= u.slots.Len() {
		return 0
	}
	return u.slots.Load(slot)
}

// moveUp moves the list of `count` words that ends `gap` slots before `end` to just before `end`.
func (u *upgrade9) moveUp(end, gap, count uint32) SlotRange {
	if end > u.slots.Len() || count > end || gap > end-count {
		return SlotRange{}
	}
	for i := range count {
		u.slots.Store(end-1-i, u.slots.Load(end-1-gap-i)) // in bounds
	}
	return SlotRange{First: end - count, Count: count}
}

// lists returns the lists of a row of version 9.
func (u *upgrade9) lists(row *Frontend) (l FrontendLists) {
	for class, d := range row.Decisions {
		switch {
		case d.Count == 0:
		case row.Flags&uint16(FlagMaglev) == 0:
			l.Members[class] = SlotRange{First: d.First, Count: d.Count}
		default:
			known, done := u.moved[d.First]
			if !done {
				known.Members[0] = u.moveUp(d.First, 1, u.at(d.First-1))
				u.moved[d.First] = known
			}
			l.Members[class] = known.Members[0]
		}
	}
	retained := row.Lists
	if retained == 0 {
		return l
	}
	known, done := u.moved[retained]
	if !done {
		known.Retained = SlotRange{First: retained, Count: u.at(retained - 1)}
		if row.Flags&uint16(FlagHistory) != 0 {
			known.HistoryDsr = u.at(retained - 2)
			known.History = u.moveUp(retained, 3, u.at(retained-3))
		}
		u.moved[retained] = known
	}
	l.Retained, l.History, l.HistoryDsr = known.Retained, known.History, known.HistoryDsr
	return l
}
