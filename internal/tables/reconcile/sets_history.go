// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
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

// fill finds the backends of a history by their ids. retained and now are the backends and sets of the frontend after
// the change, before are its sets before it.
func (p *slotHistory) fill(retained []*backend, now, before *setsOf) {
	byID, servingID := map[uint32]*backend{}, map[netip.AddrPort]uint32{}
	for x := range before.each {
		for _, b := range x.backends() {
			byID[b.id] = b
		}
	}
	for _, b := range slices.AppendSeq(slices.Clone(retained), now.members) {
		byID[b.id], servingID[b.key.AddrPort()] = b, b.id
	}
	p.words = make([]uint32, len(p.history.Stable))
	added := map[uint32]bool{}
	for slot, formerID := range p.history.Stable {
		if !p.history.Contested[slot] {
			continue
		}
		former := byID[formerID]
		if former == nil {
			p.words[slot] = codec.HistoryWord(0, true)
			continue
		}
		if !added[formerID] {
			added[formerID] = true
			p.backends = append(p.backends, former)
		}
		// Its id is another one if it has moved to another node, and 0 if it does not serve.
		p.words[slot] = codec.HistoryWord(servingID[former.key.AddrPort()], true)
	}
}

// step is a change that determines the next history: frontends that share the history share the next one,
// too.
type step struct {
	was          *jet.History
	table, next  *set
	before, then bool // untracked
}

// beginPass forgets the new histories of the last pass.
func (s *sets) beginPass() { s.next = map[step]*jet.History{} }

// settle sets by what a GC pass replaces histories; nil when the change is in the tables.
func (s *sets) settle(by map[*jet.History]*jet.History) { s.settled = by }

// nextHistory returns the history that a change leads to, nil for none.
func (s *sets) nextHistory(n step) *jet.History {
	if settled, ok := s.settled[n.was]; ok {
		n.was = settled
	}
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

func (s *sets) now() jet.Seconds { return jet.Seconds(s.seconds()) }

// nextSecond returns a second that is later than everything until the current change is in the tables.
func (s *sets) nextSecond() jet.Seconds { return s.now() + 1 }

// tableOf reads a set's table; nil if it has none. A backend whose address has another id in the other set,
// because it moved to another node, gets that id.
func (s *sets) tableOf(x, other *set) []uint32 {
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

// ensureHistory finds the set with a history and the list of retained backends behind it, or writes it. now and before
// are the sets of the frontend after and before the change.
func (s *sets) ensureHistory(p setRequest, h *slotHistory, now, before *setsOf) (*set, error) {
	var members []*backend
	if at, ok := findSet(p.plan, p.key); ok {
		var err error
		if members, _, err = s.members(p.plan[at], p.isNew); err != nil {
			return nil, err
		}
	}
	h.fill(members, now, before)
	same := func(x *set) bool {
		return x.history.history == h.history && x.history.dsr == h.dsr && slices.Equal(x.history.words, h.words) && slices.Equal(x.members, members)
	}
	if p.inUse != nil && p.inUse.history != nil && same(p.inUse) {
		return p.inUse, nil
	}
	if at := slices.IndexFunc(s.histories[p.key], same); at >= 0 {
		return s.histories[p.key][at], nil
	}
	x, err := s.write(&set{key: p.key, members: members, history: h})
	if err != nil {
		return nil, fmt.Errorf("remember the backends of flows without conntrack entries: %w", err)
	}
	return x, nil
}

func (s *sets) dropHistory(x *set) {
	rest := slices.DeleteFunc(s.histories[x.key], func(o *set) bool { return o == x })
	if s.histories[x.key] = rest; len(rest) == 0 {
		delete(s.histories, x.key)
	}
}
