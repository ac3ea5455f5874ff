// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"slices"

	"beeline.io/beeline/internal/tables/maglev"
)

// A table describes the Maglev table of a set. The thousands of slots themselves are only in the slots
// array: they are computed again when their checksum differs.
//
// The extent of the set begins with the ids of the members, each once; the table follows.
type table struct {
	size    uint32
	weights []uint8 // of the members; nil: not known, because an earlier agent wrote the table
	sum     uint64  // of the ids in the table
}

// sumOf returns the FNV-1a checksum of the ids of a table.
func sumOf(size uint32, id func(slot uint32) uint32) uint64 {
	sum := uint64(0xcbf29ce484222325)
	for slot := range size {
		sum = (sum ^ uint64(id(slot))) * 0x100000001b3
	}
	return sum
}

// assignSlots returns the index of the member in each slot of the table.
func (t *table) assignSlots(members []*backend) ([]uint32, error) {
	backends := make([]maglev.Backend, len(members))
	for i, b := range members {
		backends[i] = maglev.Backend{Addr: b.key.AddrPort(), Weight: t.weights[i]}
	}
	slots, err := maglev.Fill(t.size, backends)
	if err != nil && len(members) > int(t.size) {
		return nil, fmt.Errorf("%w: raise --maglev-table-size to 100 times as many and restart the agent", err)
	}
	return slots, err
}

// content returns what the slots of a set should hold.
func (x *set) content() ([]uint32, error) {
	ids := make([]uint32, 0, x.extent.count)
	if x.history != nil {
		ids = append(ids, x.history.words...)
	}
	for _, b := range x.members {
		ids = append(ids, b.id)
	}
	if x.table == nil {
		return ids, nil
	}
	slots, err := x.table.assignSlots(x.members)
	for _, member := range slots {
		ids = append(ids, x.members[member].id)
	}
	return ids, err
}

// holds reports whether a set has these members and this table. Unknown weights, of a set from an earlier
// agent, are confirmed by the checksum of its table.
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
	slots, err := t.assignSlots(members)
	if err != nil || sumOf(t.size, func(slot uint32) uint32 { return members[slots[slot]].id }) != x.table.sum {
		return false
	}
	x.table.weights = t.weights
	return true
}
