// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/history"
	"beeline.io/beeline/internal/service"
)

// A past is what a frontend remembers of earlier tables: its history, with backends by
// their ids. It stands before the list of what the frontend keeps, as struct frontend in
// bpf/lib/types.h has it.
//
// When a slot became contested is not in the tables: to a new agent it is as if that had
// just been.
type past struct {
	history *history.History
	dsr     uint8      // of the frontend while its flows needed no records
	words   []uint32   // of the history, without backends that do not serve
	of      []*backend // those of the history, serving or not: their ids stay theirs
}

// pastHead is how many slots a past takes beside its words.
const pastHead = 2

func (p *past) length() uint32 { return uint32(len(p.words)) + pastHead }

func (p *past) content(ids []uint32) []uint32 {
	return append(append(ids, p.words...), uint32(len(p.words)), uint32(p.dsr))
}

// backends are all that a set refers to.
func (x *set) backends() []*backend {
	if x.past == nil {
		return x.members
	}
	return slices.Concat(x.members, x.past.of)
}

// step is what a history follows from: frontends that share it share the next one.
type step struct {
	was          *history.History
	table, next  *set
	before, then bool // untracked
}

// outside is the set that clients outside meet: theirs alone go without records.
func (e *entry) outside() *set { return e.sets[service.FromOutside] }

func (e *entry) untracked() bool { return e.content.Flags&uint16(datapath.FlagUntracked) != 0 }

// past is what an entry remembers, nil for nothing; so it is of no entry.
func (e *entry) past() *past {
	if e == nil || e.sets[keptSet] == nil {
		return nil
	}
	return e.sets[keptSet].past
}

// remember is what a frontend has to remember that was another one, nil for none.
func (s *Syncer) remember(e, old *entry) *past {
	var was *history.History
	var table *set
	before, kind := false, e.content.Dsr
	if p := old.past(); p != nil {
		was, kind = p.history, p.dsr
		if settled, ok := s.settled[was]; ok {
			was = settled
		}
	}
	if old != nil && old.port != nil {
		table, before = old.outside(), old.untracked()
	}
	if before {
		kind = old.content.Dsr
	}
	if e.untracked() {
		kind = e.content.Dsr
	}
	h := s.nextHistory(step{was, table, e.outside(), before, e.untracked()})
	if h == nil {
		return nil
	}
	return &past{history: h, dsr: kind}
}

func (s *Syncer) nextHistory(n step) *history.History {
	if n.table == n.next && n.before == n.then {
		return n.was
	}
	if !n.before && !n.then {
		return n.was
	}
	if known, ok := s.next[n]; ok {
		return known
	}
	state := history.State{Table: s.tableOf(n.table, n.next), Untracked: n.before, History: n.was}
	h := state.Next(s.tableOf(n.next, nil), n.then, s.nextSecond())
	s.next[n] = h
	return h
}

// nextSecond is past all that happens until what is now under way is in the tables.
func (s *Syncer) nextSecond() history.Seconds { return history.Seconds(s.seconds() + 1) }

// tableOf reads a set's table; nil if it has none. A backend of which another set has the
// address has the id that it has there: it may have moved to another node.
func (s *Syncer) tableOf(x, other *set) []uint32 {
	if x == nil || x.table == nil {
		return nil
	}
	ids := map[uint32]uint32{}
	if other != nil {
		at := map[netip.AddrPort]uint32{}
		for _, b := range other.members {
			at[b.key.addrPort()] = b.id
		}
		for _, b := range x.members {
			if id := at[b.key.addrPort()]; id != 0 && id != b.id {
				ids[b.id] = id
			}
		}
	}
	table := make([]uint32, x.table.size)
	for slot := range table {
		id := s.tables.Slots.Load(x.extent.first + x.head() + uint32(slot))
		if same := ids[id]; same != 0 {
			id = same
		}
		table[slot] = id
	}
	return table
}

// buildPast makes what a frontend remembers, with the list of what it keeps behind it.
func (s *Syncer) buildPast(e *entry, key service.SetKey, kept []service.BackendSet, p *past, old *entry) error {
	var members []*backend
	if at, ok := findSet(kept, key); ok {
		var err error
		if members, _, err = s.members(kept[at]); err != nil {
			return err
		}
	}
	s.fillPast(e, p, members, old)
	x, err := s.ensurePast(&set{key: key, counted: true, members: members, past: p}, old)
	if err != nil {
		return fmt.Errorf("remember where flows without records are: %w", err)
	}
	x.refs++
	e.sets[keptSet] = x
	e.content.KeptFirst = x.decision().First
	e.content.Flags |= uint16(datapath.FlagHistory)
	return nil
}

// mayBeTracked has every flow of a frontend recorded for which there is no room to remember
// which need not be. That loses nothing unless there are flows without records already.
func (e *entry) mayBeTracked(p *past, err error) bool {
	var full *datapath.FullError
	if !errors.As(err, &full) || !e.untracked() || p.history.Known() {
		return false
	}
	e.tracked = fmt.Errorf("every flow is recorded, which need not be: %w", err)
	e.content.Flags &^= uint16(datapath.FlagUntracked)
	return true
}

// fillPast finds the backends of a history. Those that serve are in the entry's sets, or kept.
func (s *Syncer) fillPast(e *entry, p *past, kept []*backend, old *entry) {
	known, serving := map[uint32]*backend{}, map[netip.AddrPort]uint32{}
	for _, b := range kept {
		known[b.id], serving[b.key.addrPort()] = b, b.id
	}
	for b := range e.backends {
		known[b.id], serving[b.key.addrPort()] = b, b.id
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
		p.words[slot] = uint32(datapath.HistoryContested)
		b := known[stable]
		if b == nil {
			continue
		}
		if !of[stable] {
			of[stable] = true
			p.of = append(p.of, b)
		}
		p.words[slot] |= serving[b.key.addrPort()]
	}
}

// ensurePast finds a set with the same past and members, or writes it.
func (s *Syncer) ensurePast(x *set, old *entry) (*set, error) {
	same := func(o *set) bool {
		return o.past.history == x.past.history && o.past.dsr == x.past.dsr && slices.Equal(o.past.words, x.past.words) &&
			slices.Equal(o.members, x.members)
	}
	if old.past() != nil && same(old.sets[keptSet]) {
		return old.sets[keptSet], nil
	}
	if at := slices.IndexFunc(s.pasts[x.key], same); at >= 0 {
		return s.pasts[x.key][at], nil
	}
	return s.writeSet(x)
}

func (s *Syncer) dropPast(x *set) {
	if x.past == nil {
		return
	}
	rest := slices.DeleteFunc(s.pasts[x.key], func(o *set) bool { return o == x })
	if s.pasts[x.key] = rest; len(rest) == 0 {
		delete(s.pasts, x.key)
	}
}
