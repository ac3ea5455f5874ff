// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// memory is a node with one untracked Service and a clock that the test sets.
type memory struct {
	t    *testing.T
	k    *fakeKernel
	s    *Syncer
	now  uint32
	plan *service.Plan
}

const (
	slotsOfTable = 251
	idle         = 100 * time.Second // of TCP
)

var untrackedOwner = ref("web")

func newMemory(t *testing.T, slots uint32) *memory {
	m := &memory{t: t, k: newFakeKernel(t, bpf.Limits{Slots: slots}), now: 1000}
	m.restart()
	return m
}

func (m *memory) restart() {
	var err error
	if m.s, err = NewAt(m.k.tables, func() uint32 { return m.now }); err != nil {
		m.t.Fatal(err)
	}
}

// untrackedPlan has backends by the last byte of their addresses, all on other nodes.
func untrackedPlan(size uint32, backends ...byte) *service.Plan {
	plan := maglevPlan(untrackedOwner, 1, 0, size)
	for _, n := range backends {
		plan.Sets[0].Backends = append(plan.Sets[0].Backends, backendOf(n))
	}
	plan.Frontends[0].DSR, plan.Frontends[0].Untracked = service.DSRIPIP, true
	return plan
}

func backendOf(n byte) service.Backend {
	return service.Backend{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 10, 1, n}), 8080), Weight: 1}
}

func (m *memory) apply(plan *service.Plan) {
	m.t.Helper()
	m.plan = plan
	mustApply(m.t, m.s, service.Delta{Plans: map[service.Ref]*service.Plan{untrackedOwner: plan}})
}

func (m *memory) rowNumber() uint32 {
	return m.k.index.entries[codec.FrontendKey(untrackedPlan(0).Frontends[0].Key)]
}

func (m *memory) row() bpf.Frontend { return m.k.rows.rows[m.rowNumber()] }

func (m *memory) lists() codec.Lists { return m.k.listsOf(m.rowNumber()) }

// words returns the words of the frontend's history, nil for none.
func (m *memory) words() []uint32 {
	history := m.lists().History
	if (history.Count > 0) != (m.row().Flags&uint16(bpf.FlagHistory) != 0) {
		m.t.Fatalf("%d words are remembered, and the flags are %#x", history.Count, m.row().Flags)
	}
	if history.Count == 0 {
		return nil
	}
	return m.k.slots.rows[history.First:codec.End(history)]
}

// stable returns the last byte of the address of a word's backend; 0: none.
func (m *memory) stable(word uint32) byte {
	if word &= uint32(bpf.HistoryBackend); word != 0 {
		return m.k.backends.rows[word].Address.Bytes[15]
	}
	return 0
}

func (m *memory) table() (table []byte) {
	for _, b := range m.k.table(m.row().Decisions[service.FromOutside]) {
		table = append(table, b.Addr().As4()[3])
	}
	return table
}

// gc makes a GC pass that finds some conntrack entries, by the slot and the last byte of the backend's
// address.
func (m *memory) gc(records map[uint32]byte) {
	m.t.Helper()
	w := m.s.beginSlotPass()
	m.note(w, records)
	if err := m.s.endSlotPass(w, func(service.Protocol) time.Duration { return idle }); err != nil {
		m.t.Fatal(err)
	}
}

func (m *memory) note(w *slotPass, records map[uint32]byte) {
	for slot, backend := range records {
		key, track := m.entryOf(slot, backend)
		w.note(key, &track)
	}
}

// entryOf returns a conntrack entry of a slot that leads to a backend by DSR.
func (m *memory) entryOf(slot uint32, backend byte) (key bpf.Tuple, track bpf.ConntrackEntry) {
	row := m.row()
	size := uint64(row.Decisions[service.FromOutside].Count)
	key.Destination.Bytes, key.DestinationPort, key.Protocol = row.Key.Address.Bytes, row.Key.Port, row.Key.Protocol
	track = bpf.ConntrackEntry{Tag: uint32((uint64(slot)<<32 + size - 1) / size), Dsr: uint8(bpf.DSRIPIP)}
	track.Xlate.Destination.Bytes = bpf.AddressFrom(backendOf(backend).Addr.Addr()).Bytes
	track.Xlate.DestinationPort = bpf.NetworkOrder(8080)
	return key, track
}

// settledMemory returns a memory of some backends and without contested slots.
func settledMemory(t *testing.T, slots uint32, backends ...byte) *memory {
	m := newMemory(t, slots)
	m.apply(untrackedPlan(slotsOfTable, backends...))
	if w := m.words(); len(w) != 1 || w[0] != uint32(bpf.HistoryContested) {
		t.Fatalf("a new frontend remembers %#x: conntrack entries of an earlier one may lead anywhere", w)
	}
	m.now += 2
	m.gc(nil)
	if m.words() != nil {
		t.Fatal("a GC pass has found no conntrack entries, and slots are still contested")
	}
	mustCollect(t, m.s)
	return m
}
