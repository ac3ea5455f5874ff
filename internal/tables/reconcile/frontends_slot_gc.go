// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/jet"
)

// SlotGC makes contested slots stable again in walks of all conntrack entries (conntrack.Subscriber).
type SlotGC struct {
	syncer  *Syncer
	timeout func(service.Protocol) time.Duration
	pass    *slotPass
}

// SlotGC returns a subscriber that ends the contest of slots. timeout returns the conntrack timeout of
// established flows of a protocol.
func (s *Syncer) SlotGC(timeout func(service.Protocol) time.Duration) *SlotGC {
	return &SlotGC{syncer: s, timeout: timeout}
}

// Begin collects the contested slots.
func (g *SlotGC) Begin() { g.pass = g.syncer.beginSlotPass() }

// Entry notes an entry that keeps its slot contested.
func (g *SlotGC) Entry(key bpf.Tuple, e *bpf.ConntrackEntry) { g.pass.note(key, e) }

// End ends the contest of the slots whose flows all lead to the slot's backend.
func (g *SlotGC) End() error { return g.syncer.endSlotPass(g.pass, g.timeout) }

// slotPass searches one walk for the conntrack entries that keep slots contested: their flows have another
// backend than the slot, or reach the same backend in another way than a packet without an entry. It also
// searches for entries that require accepting packets of balancers that no Service uses any more. A nil
// slotPass ignores all entries.
type slotPass struct {
	began     jet.Seconds
	pods      []netip.Prefix // clients there are not external, and always have conntrack entries
	frontends map[bpf.FrontendKey]*historyGroup
	histories map[*jet.History]*historyGroup
	unused    bpf.Accepted // kinds of packets of balancers
	balanced  bool         // a balancer sends the packets of a flow here
}

// A historyGroup is a history whose frontends are handled together.
type historyGroup struct {
	outside   *set // of its frontends, when the GC pass began
	untracked bool
	protocol  service.Protocol
	table     []uint32
	backends  map[uint32]bpf.Backend
	busy      []bool // by slot of the table
}

// beginSlotPass returns what to search for in a walk, nil for nothing. Before the walk the caller waits
// until all programs have ended that run at the call.
func (s *Syncer) beginSlotPass() *slotPass {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	unused := s.unusedAccepted()
	if !s.tables.UntrackedFrontends.Load(0).Any() && unused == 0 {
		return nil
	}
	w := &slotPass{began: s.sets.now(), pods: s.pods, frontends: map[bpf.FrontendKey]*historyGroup{},
		histories: map[*jet.History]*historyGroup{}, unused: unused}
	for key, e := range s.applied {
		p := e.sets.history()
		if p == nil {
			continue
		}
		c := w.histories[p.history]
		if c == nil {
			c = s.newHistoryGroup(key, e)
			w.histories[p.history] = c
		}
		if c.is(e) {
			w.frontends[codec.FrontendKey(key)] = c
		}
	}
	if len(w.frontends) == 0 && unused == 0 {
		return nil
	}
	return w
}

func (s *Syncer) newHistoryGroup(key service.FrontendKey, e *entry) *historyGroup {
	c := &historyGroup{outside: e.sets.outside(), untracked: e.untracked(), protocol: key.Protocol, table: s.sets.tableOf(e.sets.outside(), nil)}
	c.busy = make([]bool, len(c.table))
	if len(c.table) > 0 {
		c.backends = c.outside.rows()
	}
	return c
}

// is reports whether an entry belongs to the group.
func (c *historyGroup) is(e *entry) bool {
	return c != nil && c.outside == e.sets.outside() && c.untracked == e.untracked()
}

// note handles a conntrack entry.
func (w *slotPass) note(key bpf.Tuple, t *bpf.ConntrackEntry) {
	if w == nil {
		return
	}
	w.balanced = w.balanced || t.Flags&uint8(bpf.ConntrackDSR) != 0
	if t.Flags&uint8(bpf.ConntrackReply|bpf.ConntrackOutbound) != 0 {
		return
	}
	c := w.frontends[codec.AskedFrontend(key)]
	if c == nil || len(c.table) == 0 {
		return
	}
	slot := jet.Slot(t.Tag, len(c.table))
	if !c.busy[slot] && !follows(key, t, c.backends[c.table[slot]]) && w.outside(key) {
		c.busy[slot] = true
	}
}

// follows reports whether a conntrack entry leads to where a packet without one would be sent. Packets from
// the backend's own node have conntrack entries in any case (bpf/dsr/forward.h).
func follows(key bpf.Tuple, t *bpf.ConntrackEntry, b bpf.Backend) bool {
	local := b.Local != 0
	return t.Xlate.Destination.Bytes == b.Address.Bytes && t.Xlate.DestinationPort == b.Port &&
		t.IsLocal() == local && (local || t.Dsr != 0 || key.Source.Bytes == b.Node.Bytes)
}

// outside reports whether a client is external.
func (w *slotPass) outside(key bpf.Tuple) bool {
	client := bpf.Address{Bytes: key.Source.Bytes}.Addr()
	return !slices.ContainsFunc(w.pods, func(p netip.Prefix) bool { return p.Contains(client) })
}

// endSlotPass ends the contest of slots without flows that have another backend.
func (s *Syncer) endSlotPass(w *slotPass, timeout func(service.Protocol) time.Duration) error {
	if w == nil {
		return nil
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.balanced {
		if err := s.stopAccepting(w.unused); err != nil {
			return err
		}
	}
	settled := map[*jet.History]*jet.History{}
	s.sets.settle(settled)
	defer s.sets.settle(nil)
	for key, e := range s.applied {
		p := e.sets.history()
		if p == nil || !w.histories[p.history].is(e) {
			continue // it has changed since the pass began
		}
		next, known := settled[p.history]
		if !known {
			c := w.histories[p.history]
			state := jet.State{Table: c.table, Untracked: c.untracked, History: p.history}
			next = state.Settle(jet.Seconds(timeout(c.protocol)/time.Second), w.began, func(slot uint32) bool { return c.busy[slot] })
			settled[p.history] = next
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
			return fmt.Errorf("some slots of %s stay contested, though their flows no longer need conntrack entries: %w", key, err)
		}
	}
	return nil
}

// SlotUsage is the progress of slots towards flows without conntrack entries.
type SlotUsage struct {
	// Slots is the number of slots of the tables of untracked frontends, and of tables in histories;
	// Contested is the number of those in which every flow is tracked. A table that frontends share
	// counts once.
	Slots     int `json:"slots"`
	Contested int `json:"contested"`
	// Seconds is the longest remaining wait for flows without conntrack entries. A slot stays contested
	// for longer only while a tracked connection has another backend.
	Seconds uint32 `json:"seconds"`
}

// SlotUsage returns how many slots are contested. timeout is as in SlotGC.
func (s *Syncer) SlotUsage(timeout func(service.Protocol) time.Duration) (all SlotUsage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	type seen struct {
		history   *jet.History
		outside   *set
		untracked bool
	}
	known := map[seen]bool{}
	for key, e := range s.applied {
		this := seen{outside: e.sets.outside(), untracked: e.untracked()}
		if p := e.sets.history(); p != nil {
			this.history = p.history
		} else if !this.untracked {
			continue
		}
		if known[this] {
			continue
		}
		known[this] = true
		state := jet.State{Table: s.sets.tableOf(this.outside, nil), Untracked: this.untracked, History: this.history}
		contested, left := state.Pending(jet.Seconds(timeout(key.Protocol)/time.Second), s.sets.now())
		all.Slots += state.Slots()
		all.Contested += contested
		all.Seconds = max(all.Seconds, uint32(left))
	}
	return all
}
