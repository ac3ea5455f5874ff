// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/jet"
)

// A slotHistory is a frontend's memory of earlier tables: its history, with backends by id.
//
// The tables do not hold when a slot became contested: a new agent assumes that it has just happened.
type slotHistory struct {
	history  *jet.History
	dsr      bpf.DSR    // of the frontend while its flows needed no conntrack entries
	words    []uint32   // of the history, without backends that do not serve
	backends []*backend // of the history, serving or not: it holds their ids
}

// length returns the number of words; 0 for nil.
func (p *slotHistory) length() uint32 {
	if p == nil {
		return 0
	}
	return uint32(len(p.words))
}

// backends returns all backends that a set refers to.
func (x *set) backends() []*backend {
	if x.slotHistory == nil {
		return x.members
	}
	return slices.Concat(x.members, x.slotHistory.backends)
}

// step is a change that determines the next history: frontends that share the history share the next one,
// too.
type step struct {
	was          *jet.History
	table, next  *set
	before, then bool // untracked
}

// outside returns the backend set of external clients: only these can do without conntrack entries.
func (e *entry) outside() *set { return e.sets[service.FromOutside] }

func (e *entry) untracked() bool { return e.content.Untracked() }

// slotHistory returns an entry's history; nil if the entry has none or is nil.
func (e *entry) slotHistory() *slotHistory {
	if e == nil || e.sets[retainedSet] == nil {
		return nil
	}
	return e.sets[retainedSet].slotHistory
}

// requiredSlotHistory returns the history that a changed frontend needs, nil for none.
func (s *Syncer) requiredSlotHistory(e, old *entry) *slotHistory {
	var was *jet.History
	var table *set
	before, kind := false, e.content.DSR()
	if p := old.slotHistory(); p != nil {
		was, kind = p.history, p.dsr
		if settled, ok := s.stable[was]; ok {
			was = settled
		}
	}
	if old != nil && old.port != nil {
		table, before = old.outside(), old.untracked()
	}
	if before {
		kind = old.content.DSR()
	}
	if e.untracked() {
		kind = e.content.DSR()
	}
	h := s.nextHistory(step{was, table, e.outside(), before, e.untracked()})
	if h == nil {
		return nil
	}
	return &slotHistory{history: h, dsr: kind}
}

func (s *Syncer) nextHistory(n step) *jet.History {
	if n.table == n.next && n.before == n.then {
		return n.was
	}
	if !n.before && !n.then {
		return n.was
	}
	if known, ok := s.next[n]; ok {
		return known
	}
	state := jet.State{Table: s.tableOf(n.table, n.next), Untracked: n.before, History: n.was}
	h := state.Next(s.tableOf(n.next, nil), n.then, s.nextSecond())
	s.next[n] = h
	return h
}

// nextSecond returns a second that is later than everything until the current change is in the tables.
func (s *Syncer) nextSecond() jet.Seconds { return jet.Seconds(s.seconds() + 1) }

// tableOf reads a set's table; nil if it has none. A backend whose address has another id in the other set,
// because it moved to another node, gets that id.
func (s *Syncer) tableOf(x, other *set) []uint32 {
	if x == nil || x.table == nil {
		return nil
	}
	ids := map[uint32]uint32{}
	if other != nil {
		at := map[netip.AddrPort]uint32{}
		for _, b := range other.members {
			at[b.key.AddrPort()] = b.id
		}
		for _, b := range x.members {
			if id := at[b.key.AddrPort()]; id != 0 && id != b.id {
				ids[b.id] = id
			}
		}
	}
	table := make([]uint32, x.table.size)
	for slot := range table {
		id := s.tables.Slots.Load(x.tableRange().First + uint32(slot))
		if same := ids[id]; same != 0 {
			id = same
		}
		table[slot] = id
	}
	return table
}

// buildSlotHistory builds a frontend's history, followed by the list of retained backends.
func (s *Syncer) buildSlotHistory(e *entry, key service.SetKey, kept []service.BackendSet, p *slotHistory, old *entry) error {
	var members []*backend
	if at, ok := findSet(kept, key); ok {
		var err error
		if members, _, err = s.members(kept[at], old == nil); err != nil {
			return err
		}
	}
	s.fillSlotHistory(e, p, members, old)
	x, err := s.ensureSlotHistory(&set{key: key, members: members, slotHistory: p}, old)
	if err != nil {
		return fmt.Errorf("remember the backends of flows without conntrack entries: %w", err)
	}
	x.refs++
	e.sets[retainedSet] = x
	return nil
}

// mayBeTracked makes a frontend track all of its flows if there is no room for its history. That loses
// nothing unless flows without conntrack entries exist already.
func (e *entry) mayBeTracked(p *slotHistory, err error) bool {
	var full *bpf.FullError
	if !errors.As(err, &full) || !e.untracked() || p.history.Known() {
		return false
	}
	e.tracked = fmt.Errorf("every flow is tracked, though not all need to be: %w", err)
	e.content.SetTracked()
	return true
}

// fillSlotHistory finds the backends of a history. Backends that serve are in the entry's sets, or
// retained.
func (s *Syncer) fillSlotHistory(e *entry, p *slotHistory, kept []*backend, old *entry) {
	known, serving := map[uint32]*backend{}, map[netip.AddrPort]uint32{}
	for _, b := range kept {
		known[b.id], serving[b.key.AddrPort()] = b, b.id
	}
	for b := range e.backends {
		known[b.id], serving[b.key.AddrPort()] = b, b.id
	}
	if old != nil {
		for _, x := range old.sets {
			if x == nil {
				continue
			}
			for _, b := range x.backends() {
				known[b.id] = b
			}
		}
	}
	p.words = make([]uint32, len(p.history.Stable))
	of := map[uint32]bool{}
	for slot, stable := range p.history.Stable {
		if !p.history.Contested[slot] {
			continue
		}
		p.words[slot] = codec.HistoryWord(0, true)
		b := known[stable]
		if b == nil {
			continue
		}
		if !of[stable] {
			of[stable] = true
			p.backends = append(p.backends, b)
		}
		p.words[slot] = codec.HistoryWord(serving[b.key.AddrPort()], true)
	}
}

// ensureSlotHistory finds a set with the same history and members, or writes it.
func (s *Syncer) ensureSlotHistory(x *set, old *entry) (*set, error) {
	same := func(o *set) bool {
		return o.slotHistory.history == x.slotHistory.history && o.slotHistory.dsr == x.slotHistory.dsr && slices.Equal(o.slotHistory.words, x.slotHistory.words) &&
			slices.Equal(o.members, x.members)
	}
	if old.slotHistory() != nil && same(old.sets[retainedSet]) {
		return old.sets[retainedSet], nil
	}
	if at := slices.IndexFunc(s.slotHistories[x.key], same); at >= 0 {
		return s.slotHistories[x.key][at], nil
	}
	return s.writeSet(x)
}

func (s *Syncer) dropSlotHistory(x *set) {
	if x.slotHistory == nil {
		return
	}
	rest := slices.DeleteFunc(s.slotHistories[x.key], func(o *set) bool { return o == x })
	if s.slotHistories[x.key] = rest; len(rest) == 0 {
		delete(s.slotHistories, x.key)
	}
}
