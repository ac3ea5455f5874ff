// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/history"
	"beeline.io/beeline/internal/service"
)

// A Sweep looks among the records of flows for those that keep slots contested: they lead
// to another backend than the slot has, or on another way to it than a packet without a
// record would go; and for those that keep packets of balancers accepted which no Service uses
// any more. A nil Sweep has nothing to look for.
type Sweep struct {
	began     history.Seconds
	pods      []netip.Prefix // clients there are not outside, and have records in any case
	frontends map[datapath.FrontendKey]*contest
	histories map[*history.History]*contest
	unused    datapath.Accepted // kinds of packets of balancers
	balanced  bool              // a balancer sends the packets of a flow here
}

// A contest is a history whose frontends are looked at together.
type contest struct {
	outside   *set // that its frontends had when the sweep began
	untracked bool
	protocol  service.Protocol
	table     []uint32
	backends  map[uint32]datapath.Backend
	busy      []bool // by slot of the table
}

// BeginSweep says what a sweep of flows is to look for, nil for nothing. Whoever walks
// through the records waits for the programs first that were running at the call.
func (s *Syncer) BeginSweep() *Sweep {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	unused := s.unusedAccepted()
	if !s.tables.UntrackedFrontends.Load(0).Any() && unused == 0 {
		return nil
	}
	w := &Sweep{began: history.Seconds(s.seconds()), pods: s.pods, frontends: map[datapath.FrontendKey]*contest{},
		histories: map[*history.History]*contest{}, unused: unused}
	for key, e := range s.applied {
		p := e.past()
		if p == nil {
			continue
		}
		c := w.histories[p.history]
		if c == nil {
			c = s.newContest(key, e)
			w.histories[p.history] = c
		}
		if c.is(e) {
			w.frontends[tableKey(key)] = c
		}
	}
	if len(w.frontends) == 0 && unused == 0 {
		return nil
	}
	return w
}

func (s *Syncer) newContest(key service.FrontendKey, e *entry) *contest {
	c := &contest{outside: e.outside(), untracked: e.untracked(), protocol: key.Protocol, table: s.tableOf(e.outside(), nil),
		backends: map[uint32]datapath.Backend{}}
	c.busy = make([]bool, len(c.table))
	if len(c.table) > 0 {
		for _, b := range c.outside.members {
			c.backends[b.id] = backendRow(b.key)
		}
	}
	return c
}

// is says whether an entry is one of those that the contest is about.
func (c *contest) is(e *entry) bool {
	return c != nil && c.outside == e.outside() && c.untracked == e.untracked()
}

// Note takes in a record of the flow table. Any goroutine may call it, one at a time.
func (w *Sweep) Note(key datapath.Tuple, t *datapath.Track) {
	if w == nil {
		return
	}
	w.balanced = w.balanced || t.Flags&uint8(datapath.TrackDSR) != 0
	if t.Flags&uint8(datapath.TrackReply|datapath.TrackOutbound) != 0 {
		return
	}
	c := w.frontends[datapath.FrontendKey{Address: datapath.Address{Bytes: key.Destination.Bytes}, Port: key.DestinationPort, Protocol: key.Protocol}]
	if c == nil || len(c.table) == 0 {
		return
	}
	slot := history.Slot(t.Tag, len(c.table))
	if !c.busy[slot] && !follows(key, t, c.backends[c.table[slot]]) && w.outside(key) {
		c.busy[slot] = true
	}
}

// follows says whether a record leads to where a packet without one would go. The backend's own
// node is sent on with a record in any case (bpf/lib/direct.h).
func follows(key datapath.Tuple, t *datapath.Track, b datapath.Backend) bool {
	local := b.Local != 0
	return t.Becomes.Destination.Bytes == b.Address.Bytes && t.Becomes.DestinationPort == b.Port &&
		t.IsLocal() == local && (local || t.Dsr != 0 || key.Source.Bytes == b.Node.Bytes)
}

// outside says whether a client is.
func (w *Sweep) outside(key datapath.Tuple) bool {
	client := datapath.Address{Bytes: key.Source.Bytes}.Addr()
	return !slices.ContainsFunc(w.pods, func(p netip.Prefix) bool { return p.Contains(client) })
}

// EndSweep takes slots out of contest of which all flows have gone that could come to
// another backend. timeout is how long a flow of a protocol is remembered on which nothing
// is sent.
func (s *Syncer) EndSweep(w *Sweep, timeout func(service.Protocol) time.Duration) error {
	if w == nil {
		return nil
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.balanced {
		if err := s.giveUp(w.unused); err != nil {
			return err
		}
	}
	s.settled = map[*history.History]*history.History{}
	defer func() { s.settled = nil }()
	for key, e := range s.applied {
		p := e.past()
		if p == nil || !w.histories[p.history].is(e) {
			continue // it has changed meanwhile
		}
		next, known := s.settled[p.history]
		if !known {
			c := w.histories[p.history]
			state := history.State{Table: c.table, Untracked: c.untracked, History: p.history}
			next = state.Settle(history.Seconds(timeout(c.protocol)/time.Second), w.began, func(slot uint32) bool { return c.busy[slot] })
			s.settled[p.history] = next
		}
		if next != p.history {
			s.dirty[key] = true
		}
	}
	if len(s.dirty) == 0 {
		return nil
	}
	settling := slices.Collect(maps.Keys(s.dirty))
	s.retryAfter(s.reconcile())
	for _, key := range settling {
		if err := s.failures[key]; err != nil {
			return fmt.Errorf("some slots of %s need records no more, and stay contested: %w", key, err)
		}
	}
	return nil
}

// Settling is how far slots are on their way to need records no more.
type Settling struct {
	// Slots are those of the tables of untracked frontends, and of tables that are remembered,
	// Contested those of them of which every flow is recorded. A table that frontends share
	// counts once.
	Slots     int `json:"slots"`
	Contested int `json:"contested"`
	// Seconds is for how long at most flows without records are still waited for. A slot stays
	// contested for longer only while a recorded connection goes on elsewhere.
	Seconds uint32 `json:"seconds"`
}

// Settling says how many slots are contested. timeout is as EndSweep has it.
func (s *Syncer) Settling(timeout func(service.Protocol) time.Duration) (all Settling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	type seen struct {
		history   *history.History
		outside   *set
		untracked bool
	}
	known := map[seen]bool{}
	for key, e := range s.applied {
		this := seen{outside: e.outside(), untracked: e.untracked()}
		if p := e.past(); p != nil {
			this.history = p.history
		} else if !this.untracked {
			continue
		}
		if known[this] {
			continue
		}
		known[this] = true
		state := history.State{Table: s.tableOf(this.outside, nil), Untracked: this.untracked, History: this.history}
		contested, left := state.Waits(history.Seconds(timeout(key.Protocol)/time.Second), history.Seconds(s.seconds()))
		all.Slots += state.Slots()
		all.Contested += contested
		all.Seconds = max(all.Seconds, uint32(left))
	}
	return all
}
