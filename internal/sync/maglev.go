// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"fmt"
	"slices"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/maglev"
	"beeline.io/beeline/internal/service"
)

// A table is what a set with a Maglev table knows of it. The table itself, of
// thousands of slots, is in the slots alone: what they should hold is computed again
// when they do not have the sum.
//
// In its extent stand first the ids of the members, each once, then their number, then
// the table (struct decision in bpf/lib/types.h).
type table struct {
	size    uint32
	weights []uint8 // of the members; nil: not known of what an earlier agent left
	sum     uint64  // of what the table holds
}

// sumOf is FNV-1a over the ids of a table.
func sumOf(size uint32, id func(slot uint32) uint32) uint64 {
	sum := uint64(0xcbf29ce484222325)
	for slot := range size {
		sum = (sum ^ uint64(id(slot))) * 0x100000001b3
	}
	return sum
}

// fill says which member is in which slot of the table.
func (t *table) fill(members []*backend) ([]uint32, error) {
	backends := make([]maglev.Backend, len(members))
	for i, b := range members {
		backends[i] = maglev.Backend{Addr: b.key.addrPort(), Weight: t.weights[i]}
	}
	slots, err := maglev.Fill(t.size, backends)
	if err != nil && len(members) > int(t.size) {
		return nil, fmt.Errorf("%w: raise --maglev-table-size to 100 times as many and restart the agent", err)
	}
	return slots, err
}

// head is the number of slots before those that a frontend's row names.
func (x *set) head() uint32 {
	switch {
	case x.table != nil:
		return uint32(len(x.members)) + 1
	case x.past != nil:
		return x.past.length() + 1
	case x.counted:
		return 1
	}
	return 0
}

// decision is how a frontend's row names the set.
func (x *set) decision() datapath.Decision {
	return datapath.Decision{First: x.extent.first + x.head(), Count: x.extent.count - x.head()}
}

// content is what the slots of a set should hold.
func (x *set) content() ([]uint32, error) {
	ids := make([]uint32, 0, x.extent.count)
	if x.past != nil {
		ids = x.past.content(ids)
	}
	if x.counted {
		ids = append(ids, uint32(len(x.members)))
	}
	for _, b := range x.members {
		ids = append(ids, b.id)
	}
	if x.table == nil {
		return ids, nil
	}
	ids = append(ids, uint32(len(x.members)))
	slots, err := x.table.fill(x.members)
	for _, member := range slots {
		ids = append(ids, x.members[member].id)
	}
	return ids, err
}

// holds says whether a set is just that. Of one that an earlier agent left the weights
// are told by what its table holds.
func (x *set) holds(members []*backend, t *table) bool {
	if !slices.Equal(x.members, members) || (x.table == nil) != (t == nil) {
		return false
	}
	if t == nil {
		return true
	}
	if x.table.size != t.size {
		return false
	}
	if x.table.weights != nil {
		return slices.Equal(x.table.weights, t.weights)
	}
	slots, err := t.fill(members)
	if err != nil || sumOf(t.size, func(slot uint32) uint32 { return members[slots[slot]].id }) != x.table.sum {
		return false
	}
	x.table.weights = t.weights
	return true
}

// layOut decides what a set's slots hold: each backend as often as its weight; or, in
// a table, what package maglev chooses.
func (s *Syncer) layOut(bs service.BackendSet, size uint32) ([]*backend, *table, error) {
	members, weights, err := s.members(bs)
	if err != nil {
		return nil, nil, err
	}
	if size > 0 {
		return members, &table{size: size, weights: weights}, nil
	}
	var slots []*backend
	for i, b := range members {
		for range weights[i] {
			slots = append(slots, b)
		}
	}
	return slots, nil, nil
}

// readTable reads the list before a table and takes the sum of the table, nil if they
// make no sense.
func (r *restorer) readTable(d datapath.Decision) *set {
	slots := r.tables.Slots
	end := d.First + d.Count
	if d.First == 0 || end < d.First || end > slots.Len() {
		return nil
	}
	n := slots.Load(d.First - 1)
	if n == 0 || n > d.Count || n >= d.First {
		return nil
	}
	found := &set{extent: extent{d.First - 1 - n, n + 1 + d.Count}, table: &table{size: d.Count}}
	known := map[uint32]bool{}
	for at := found.extent.first; at < d.First-1; at++ {
		b := r.backendByID[slots.Load(at)]
		if b == nil {
			return nil
		}
		known[b.id] = true
		found.members = append(found.members, b)
	}
	for at := d.First; at < end; at++ {
		if !known[slots.Load(at)] {
			return nil
		}
	}
	found.table.sum = sumOf(d.Count, func(slot uint32) uint32 { return slots.Load(d.First + slot) })
	return found
}

// table mends the list and the table of a set.
func (a *auditor) table(x *set) {
	first, slots := x.extent.first, a.tables.Slots
	sound := slots.Load(first+x.head()-1) == uint32(len(x.members))
	for i, b := range x.members {
		sound = sound && slots.Load(first+uint32(i)) == b.id
	}
	start := first + x.head()
	if sound && sumOf(x.table.size, func(slot uint32) uint32 { return slots.Load(start + slot) }) == x.table.sum {
		return
	}
	if x.table.weights == nil {
		return // nobody knows what it should hold; its frontends await another set
	}
	content, err := x.content()
	if err != nil {
		a.errs = append(a.errs, err)
		return
	}
	for i, id := range content {
		if slot := first + uint32(i); slots.Load(slot) != id {
			a.repaired(slots.Store(slot, id))
		}
	}
}
