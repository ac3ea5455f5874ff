// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/jet"
)

// setsRestorer reads sets from the slots.
type setsRestorer struct {
	*sets
	known *allocRestorer
	at    map[layout]*set
}

func (s *sets) restore(known *allocRestorer) *setsRestorer {
	return &setsRestorer{s, known, map[layout]*set{}}
}

// layout is the location of the parts of a set.
type layout struct {
	members, table, history codec.Range
	historyDSR              bpf.DSR
}

// read reads the sets of a frontend, and reports whether they are valid.
func (r *setsRestorer) read(content *codec.Frontend) (all setsOf, ok bool) {
	lists := content.Lists()
	if content.HasHistory() != (lists.History.Count > 0) {
		return all, false
	}
	for class := range service.SourceClasses {
		chosenFrom := content.Slots(service.SourceClass(class))
		if chosenFrom.Count == 0 {
			continue
		}
		l := layout{members: lists.Members[class]}
		if content.Maglev() {
			l.table = chosenFrom
		} else if l.members != chosenFrom {
			return all, false
		}
		if all[class] = r.readSet(l); all[class] == nil {
			return all, false
		}
	}
	if lists.Retained.Count > 0 || lists.History.Count > 0 {
		all[retainedSet] = r.readSet(layout{members: lists.Retained, history: lists.History, historyDSR: lists.HistoryDSR})
		return all, all[retainedSet] != nil
	}
	return all, true
}

// readSet reads a set; nil if it is invalid.
func (r *setsRestorer) readSet(l layout) *set {
	if known := r.at[l]; known != nil {
		return known
	}
	var found *set
	if l.table.Count > 0 {
		found = r.readTable(l.members, l.table)
	} else {
		found = r.readMembers(l.members)
	}
	if found == nil || l.history.Count > 0 && !r.readHistory(found, l) || !r.slots.reserve(found.extent) {
		return nil
	}
	for _, b := range found.backends() {
		r.alloc.refer(b)
	}
	r.at[l] = found
	r.unreferenced = append(r.unreferenced, found)
	return found
}

// end reserves the slots behind each set's extent that roundSlots adds, unless something else uses them: an
// earlier agent may not have rounded.
func (r *setsRestorer) end() {
	for _, x := range r.at {
		if n := roundSlots(x.extent.count) - x.extent.count; n > 0 && r.slots.reserve(extent{x.extent.end(), n}) {
			x.spare = n
		}
	}
}

// readMembers reads a set without a table.
func (r *setsRestorer) readMembers(at codec.Range) *set {
	if !codec.Valid(at, r.tables.Slots.Len()) {
		return nil
	}
	found := &set{extent: extent{at.First, at.Count}}
	for _, id := range codec.Slots(r.tables, at) {
		b := r.known.backendByID[id]
		if b == nil {
			return nil
		}
		found.members = append(found.members, b)
	}
	return found
}

// readTable reads the members of a set with a table, and computes the checksum of the table. It returns nil
// if they are not valid.
func (r *setsRestorer) readTable(members, slots codec.Range) *set {
	if codec.End(members) != slots.First || members.Count == 0 || !codec.Valid(slots, r.tables.Slots.Len()) {
		return nil
	}
	found := r.readMembers(members)
	if found == nil {
		return nil
	}
	found.extent.count += slots.Count
	known := map[uint32]bool{}
	for _, b := range found.members {
		known[b.id] = true
	}
	for at := slots.First; at < codec.End(slots); at++ {
		if !known[r.tables.Slots.Load(at)] {
			return nil
		}
	}
	found.table = &table{size: slots.Count}
	found.table.sum = sumOf(slots.Count, func(slot uint32) uint32 { return r.tables.Slots.Load(slots.First + slot) })
	return found
}

// readHistory reads the history in front of a list of retained backends, and reports whether it is valid.
// Unknown backends count as none.
func (r *setsRestorer) readHistory(x *set, l layout) bool {
	if codec.End(l.history) != l.members.First || !codec.Valid(l.history, r.tables.Slots.Len()) || l.historyDSR > bpf.DSROpt {
		return false
	}
	n := l.history.Count
	h := &jet.History{Stable: make([]uint32, n), Contested: make([]bool, n), Since: make([]jet.Seconds, n)}
	x.history = &slotHistory{history: h, dsr: l.historyDSR, words: codec.Slots(r.tables, l.history)}
	of := map[*backend]bool{}
	for slot, word := range x.history.words {
		stable, contested := codec.ParseHistoryWord(word)
		if h.Contested[slot] = contested; !contested {
			continue
		}
		h.Since[slot] = r.nextSecond()
		if b := r.known.backendByID[stable]; b != nil {
			h.Stable[slot] = b.id
			if !of[b] {
				of[b] = true
				x.history.backends = append(x.history.backends, b)
			}
		}
	}
	x.extent = extent{l.history.First, n + x.extent.count}
	return true
}
