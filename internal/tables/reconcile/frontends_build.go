// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"slices"

	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// An entry is a frontend in the tables, with references to all that its row names. row is 0 until the entry
// has one. sets are the sets of the decisions, and last that of retained backends.
type entry struct {
	row      uint32
	content  codec.Frontend
	port     *port
	source   *source
	reserved *reservation // NodePort and HostPort
	sets     [retainedSet + 1]*set
	// tracked is the reason why an untracked frontend tracks all of its flows anyway.
	tracked error
}

const retainedSet = service.SourceClasses

// build allocates what a frontend's row will name and fills in the row's content. On error the entry holds
// what was allocated before: the caller must release it.
func (s *Syncer) build(w want, old *entry) (*entry, error) {
	f, e := w.frontend, &entry{}
	var err error
	if e.port, err = s.alloc.ensurePort(f.Port); err != nil {
		return e, err
	}
	s.alloc.refer(e.port)
	e.content = codec.NewFrontend(f, e.port.id)
	if s.reserve(e); e.reserved != nil {
		if err := s.alloc.storeReservation(e.reserved); err != nil {
			return e, err
		}
	}
	if f.SourceRanges != nil {
		if e.source, err = s.alloc.ensureSource(f.SourceRanges, old == nil); err != nil {
			return e, err
		}
		s.alloc.refer(e.source)
		e.content.SetSourceSet(e.source.id)
	}
	for class, d := range f.Decisions {
		if d.Verdict != service.Balance {
			e.content.SetVerdict(service.SourceClass(class), d.Verdict)
			continue
		}
		set, err := s.useSet(e, class, f.Set(d), w.plan.Sets, w.plan.TableSize, old)
		if err != nil {
			return e, err
		}
		e.content.SetSlots(service.SourceClass(class), set.chosenFrom(), set.table != nil)
	}
	err = s.buildRetained(e, w, old)
	e.setLists()
	return e, err
}

// reserve gives an entry its reservation, which may not be in the table yet.
func (s *Syncer) reserve(e *entry) {
	if key, ok := e.content.ReservedPort(); ok {
		e.reserved = s.alloc.ensureReservation(key)
		s.alloc.refer(e.reserved)
	}
}

// buildRetained builds the set of retained backends (service.Plan.Retained), with the history of earlier
// tables.
func (s *Syncer) buildRetained(e *entry, w want, old *entry) error {
	key := service.SetKey{Port: w.frontend.Port, Family: service.FamilyOf(w.frontend.Key.Addr), Scope: service.ScopeRetained}
	if remembered := s.requiredSlotHistory(e, old); remembered != nil {
		err := s.buildSlotHistory(e, key, w.plan.Retained, remembered, old)
		if !e.mayBeTracked(remembered, err) {
			return err
		}
	}
	if _, ok := findSet(w.plan.Retained, key); !ok {
		return nil
	}
	_, err := s.useSet(e, retainedSet, key, w.plan.Retained, 0, old)
	return err
}

// useSet finds or makes a set and adds a reference from an entry.
func (s *Syncer) useSet(e *entry, at int, key service.SetKey, plan []service.BackendSet, tableSize uint32, old *entry) (*set, error) {
	var inUse *set
	if old != nil {
		inUse = old.sets[at]
	}
	set, err := s.ensureSet(key, plan, tableSize, inUse, old == nil)
	if err != nil {
		return nil, err
	}
	set.refs++
	e.sets[at] = set
	return set, nil
}

func findSet(sets []service.BackendSet, key service.SetKey) (int, bool) {
	return slices.BinarySearchFunc(sets, key, func(set service.BackendSet, key service.SetKey) int {
		return set.Key.Compare(key)
	})
}

// ensureSet finds the set in the tables, or writes it to free slots. inUse is the set that the frontend
// uses now, nil for none.
func (s *Syncer) ensureSet(key service.SetKey, plan []service.BackendSet, tableSize uint32, inUse *set, isNew bool) (*set, error) {
	at, ok := findSet(plan, key)
	if !ok {
		return nil, fmt.Errorf("the plan has no set %s", key)
	}
	members, table, err := s.fillSlots(plan[at], tableSize, isNew)
	if err != nil {
		return nil, err
	}
	if current := s.sets[key]; current != nil && current.holds(members, table) {
		return current, nil
	}
	if inUse != nil && inUse.key == (service.SetKey{}) && inUse.slotHistory == nil && inUse.holds(members, table) {
		inUse.key = key // restored from the tables, where sets have no keys
		s.sets[key] = inUse
		return inUse, nil
	}
	return s.writeSet(&set{key: key, members: members, table: table})
}

func (s *Syncer) writeSet(x *set) (*set, error) {
	content, err := x.content()
	if err != nil {
		return nil, err
	}
	n := roundSlots(uint32(len(content)))
	at, err := s.alloc.takeSlots(n, x.slotHistory != nil)
	if err != nil {
		return nil, err
	}
	for i, id := range content {
		if err := s.tables.Slots.Store(at.first+uint32(i), id); err != nil {
			s.alloc.freeSlots(at)
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
	if x.slotHistory != nil {
		s.slotHistories[x.key] = append(s.slotHistories[x.key], x)
	} else {
		s.sets[x.key] = x
	}
	s.unreferencedSets = append(s.unreferencedSets, x)
	return x, nil
}

// members returns the backends of a set, and their weights divided by their greatest common divisor.
func (s *Syncer) members(bs service.BackendSet, isNew bool) (members []*backend, weights []uint8, err error) {
	divisor := uint8(0)
	for _, b := range bs.Backends {
		divisor = gcd(divisor, max(b.Weight, 1))
	}
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
