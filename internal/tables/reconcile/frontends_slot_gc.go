// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"
	"slices"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/jet"
)

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

// slotPass returns what to search for in a walk, nil for nothing. Before the walk the caller waits until all programs
// have ended that run at the call.
func (f *frontends) slotPass(pods []netip.Prefix) *slotPass {
	unused := f.unusedAccepted()
	if !f.tables.UntrackedFrontends.Load(0).Any() && unused == 0 {
		return nil
	}
	w := &slotPass{began: f.sets.now(), pods: pods, frontends: map[bpf.FrontendKey]*historyGroup{},
		histories: map[*jet.History]*historyGroup{}, unused: unused}
	for key, e := range f.applied {
		p := e.sets.history()
		if p == nil {
			continue
		}
		c := w.histories[p.history]
		if c == nil {
			c = f.newHistoryGroup(key, e)
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

func (f *frontends) newHistoryGroup(key service.FrontendKey, e *entry) *historyGroup {
	c := &historyGroup{outside: e.sets.outside(), untracked: e.untracked(), protocol: key.Protocol, table: f.sets.tableOf(e.sets.outside(), nil)}
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

// settle begins to end the contest of slots without flows that have another backend, and returns the frontends whose
// histories change. They do so when they are written to the tables.
func (f *frontends) settle(w *slotPass, timeout func(service.Protocol) time.Duration) (changed []service.FrontendKey, err error) {
	if !w.balanced {
		if err := f.stopAccepting(w.unused); err != nil {
			return nil, err
		}
	}
	settled := map[*jet.History]*jet.History{}
	for key, e := range f.applied {
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
			changed = append(changed, key)
		}
	}
	f.sets.settle(settled)
	return changed, nil
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
	Seconds uint32 `json:"remainingSeconds"`
}

// slotUsage returns how many slots are contested.
func (f *frontends) slotUsage(timeout func(service.Protocol) time.Duration) (all SlotUsage) {
	type seen struct {
		history   *jet.History
		outside   *set
		untracked bool
	}
	known := map[seen]bool{}
	for key, e := range f.applied {
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
		state := jet.State{Table: f.sets.tableOf(this.outside, nil), Untracked: this.untracked, History: this.history}
		contested, left := state.Pending(jet.Seconds(timeout(key.Protocol)/time.Second), f.sets.now())
		all.Slots += state.Slots()
		all.Contested += contested
		all.Seconds = max(all.Seconds, uint32(left))
	}
	return all
}
