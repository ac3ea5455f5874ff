// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/jet"
)

// sets keeps the backend sets in the slots: members, Maglev tables, and histories of earlier tables. It is the only
// writer of slots, and knows no frontends.
type sets struct {
	tables *bpf.Tables
	alloc  *alloc
	slots  *extents

	current      map[service.SetKey]*set
	histories    map[service.SetKey][]*set // sets with a history
	unreferenced []*set                    // had no reference when it was added; a set may be in it twice

	seconds func() uint32 // now: CLOCK_MONOTONIC
	// next are the new histories that frontends of one port share, during one pass.
	next map[step]*jet.History
	// settled are the results of a GC pass by the history they replace, while they are written to the tables.
	settled map[*jet.History]*jet.History
}

func newSets(tables *bpf.Tables, alloc *alloc, seconds func() uint32) *sets {
	return &sets{tables: tables, alloc: alloc, slots: alloc.slots, seconds: seconds, current: map[service.SetKey]*set{}, histories: map[service.SetKey][]*set{}}
}

// setRequest names the set that a frontend needs.
type setRequest struct {
	key       service.SetKey
	plan      []service.BackendSet // has the set
	tableSize uint32               // of Maglev; 0: no table
	inUse     *set                 // that the frontend uses now; nil for none
	isNew     bool                 // the frontend is not in the tables yet
}

// ensure finds the set in the tables, or writes it to free slots.
func (s *sets) ensure(p setRequest) (*set, error) {
	at, ok := findSet(p.plan, p.key)
	if !ok {
		return nil, fmt.Errorf("the plan has no set %s", p.key)
	}
	members, table, err := s.fill(p.plan[at], p.tableSize, p.isNew)
	if err != nil {
		return nil, err
	}
	if current := s.current[p.key]; current != nil && current.holds(members, table) {
		return current, nil
	}
	if x := p.inUse; x != nil && x.key == (service.SetKey{}) && x.history == nil && x.holds(members, table) {
		x.key = p.key // restored from the tables, where sets have no keys
		s.current[p.key] = x
		return x, nil
	}
	return s.write(&set{key: p.key, members: members, table: table})
}

func findSet(sets []service.BackendSet, key service.SetKey) (int, bool) {
	return slices.BinarySearchFunc(sets, key, func(set service.BackendSet, key service.SetKey) int {
		return set.Key.Compare(key)
	})
}

// fill decides what a set's slots hold: without a table each backend as often as its weight; with one, what
// package maglev computes.
func (s *sets) fill(bs service.BackendSet, size uint32, isNew bool) ([]*backend, *table, error) {
	members, weights, err := s.members(bs, isNew)
	if err != nil {
		return nil, nil, err
	}
	if size > 0 {
		return members, &table{size: size, weights: weights}, nil
	}
	slots := make([]*backend, 0, len(members))
	for i, b := range members {
		for range weights[i] {
			slots = append(slots, b)
		}
	}
	return slots, nil, nil
}

// members returns the backends of a set, and their weights divided by their greatest common divisor.
func (s *sets) members(bs service.BackendSet, isNew bool) (members []*backend, weights []uint8, err error) {
	divisor := uint8(0)
	for _, b := range bs.Backends {
		divisor = gcd(divisor, max(b.Weight, 1))
	}
	members, weights = make([]*backend, 0, len(bs.Backends)), make([]uint8, 0, len(bs.Backends))
	for _, b := range bs.Backends {
		known, err := s.alloc.ensureBackend(codec.NewBackend(b, bs.Key.Port.Protocol), isNew)
		if err != nil {
			return nil, nil, err
		}
		members = append(members, known)
		weights = append(weights, max(b.Weight, 1)/divisor)
	}
	return members, weights, nil
}

func gcd(a, b uint8) uint8 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// write writes a new set to free slots. A history leaves enough slots for changes.
func (s *sets) write(x *set) (*set, error) {
	content, err := x.content()
	if err != nil {
		return nil, err
	}
	n := roundSlots(uint32(len(content)))
	at, ok := extent{}, false
	if x.history == nil || s.slots.used()+n+s.slots.length/updateReserve <= s.slots.length {
		at, ok = s.slots.take(n)
	}
	if !ok {
		return nil, bpf.NewFullError(bpf.SockMapSlots, s.slots.length)
	}
	for i, id := range content {
		if err := s.tables.Slots.Store(at.first+uint32(i), id); err != nil {
			s.slots.put(at)
			return nil, err
		}
	}
	x.extent, x.spare = extent{at.first, uint32(len(content))}, n-uint32(len(content))
	if x.table != nil {
		x.table.sum = sumOf(x.table.size, func(slot uint32) uint32 { return content[uint32(len(x.members))+slot] })
	}
	for _, b := range x.backends() {
		s.alloc.refer(b)
	}
	if x.history != nil {
		s.histories[x.key] = append(s.histories[x.key], x)
	} else {
		s.current[x.key] = x
	}
	s.unreferenced = append(s.unreferenced, x)
	return x, nil
}

// refer adds references of a frontend to its sets.
func (s *sets) refer(all *setsOf) {
	for x := range all.each {
		x.refs++
	}
}

// unrefer drops them.
func (s *sets) unrefer(all *setsOf) {
	for x := range all.each {
		if x.refs--; x.refs == 0 {
			s.unreferenced = append(s.unreferenced, x)
		}
	}
}

// garbage returns the number of sets that had no reference.
func (s *sets) garbage() int { return len(s.unreferenced) }

// freeUnreferenced frees the slots of sets that still have no reference.
func (s *sets) freeUnreferenced() {
	for _, x := range s.unreferenced {
		if x.refs == 0 && x.extent.count > 0 {
			s.free(x)
		}
	}
	s.unreferenced = nil
}

func (s *sets) free(x *set) {
	for n := x.extent.first; n < x.extent.end(); n++ {
		s.tables.Slots.Store(n, 0) // a slot that looks used would keep the table from being made smaller
	}
	s.slots.put(extent{x.extent.first, x.slotCount()})
	x.extent, x.spare = extent{}, 0
	if s.current[x.key] == x {
		delete(s.current, x.key)
	}
	if x.history != nil {
		s.dropHistory(x)
	}
	for _, b := range x.backends() {
		s.alloc.unrefer(b)
	}
}

// audit repairs the slots of a set in place: a repair only restores what they should have held all along.
func (s *sets) audit(to *auditor, x *set) {
	if x.table != nil && (s.sound(x) || x.table.weights == nil) {
		return // without weights nobody knows what the table should hold; its frontends get another set
	}
	content, err := x.content()
	if err != nil {
		to.errs = append(to.errs, err)
		return
	}
	for i, id := range content {
		if slot := x.extent.first + uint32(i); s.tables.Slots.Load(slot) != id {
			to.repaired(s.tables.Slots.Store(slot, id))
		}
	}
}

// sound reports whether the members and the table of a set are in its slots.
func (s *sets) sound(x *set) bool {
	for i, b := range x.members {
		if s.tables.Slots.Load(x.extent.first+uint32(i)) != b.id {
			return false
		}
	}
	start := x.tableRange().First
	return sumOf(x.table.size, func(slot uint32) uint32 { return s.tables.Slots.Load(start + slot) }) == x.table.sum
}
