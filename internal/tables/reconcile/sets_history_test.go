// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// TestHistoryInTables: a slot whose backend has changed is contested, with the previous one as stable;
// others are not. It is contested until flows without entries have timed out and no entry has another
// backend. Then the history is removed and its slots are freed.
func TestHistoryInTables(t *testing.T) {
	m := settledMemory(t, 2000, 1, 2, 3)
	used := m.s.alloc.slots.used()
	before := m.table()
	plan := untrackedPlan(slotsOfTable, 1, 2, 4)
	plan.Retained = keptOf(3)
	m.apply(plan)
	changed := -1
	for slot, word := range m.words() {
		contested := word&uint32(bpf.HistoryContested) != 0
		if contested != (m.table()[slot] != before[slot]) {
			t.Fatalf("slot %d went from %d to %d; contested: %v", slot, before[slot], m.table()[slot], contested)
		}
		if contested && m.stable(word) != before[slot] {
			t.Fatalf("slot %d went from %d to %d; stable: %d", slot, before[slot], m.table()[slot], m.stable(word))
		}
		if contested {
			changed = slot
		}
	}
	m.k.mustHold(t, map[service.Ref]*service.Plan{untrackedOwner: plan}, "with a history")
	m.now += 50
	m.gc(nil)
	if m.words()[changed] == 0 {
		t.Fatal("no longer contested before flows without conntrack entries have timed out")
	}
	m.now += 60
	m.gc(map[uint32]byte{uint32(changed): before[changed]})
	if w := m.words(); w == nil || w[changed] == 0 || slices.Max(w) != w[changed] {
		t.Fatal("only the slot with a conntrack entry of another backend should be contested")
	}
	m.gc(map[uint32]byte{uint32(changed): m.table()[changed]})
	if m.words() != nil {
		t.Fatal("still contested, though no conntrack entry has another backend")
	}
	m.apply(untrackedPlan(slotsOfTable, 1, 2, 4))
	mustCollect(t, m.s)
	if now := m.s.alloc.slots.used(); now != used {
		t.Errorf("%d slots are in use, and %d were before", now, used)
	}
}

func keptOf(backends ...byte) []service.BackendSet {
	kept := service.BackendSet{Key: service.SetKey{Port: service.Port{Owner: untrackedOwner, Protocol: service.TCP}, Family: service.IPv4, Scope: service.ScopeRetained}}
	for _, n := range backends {
		kept.Backends = append(kept.Backends, backendOf(n))
	}
	return []service.BackendSet{kept}
}

// TestStableThatServesNoMore: the flows of a stable backend that does not serve go to the current backend,
// until it serves again. Its id is not reused meanwhile.
func TestStableThatServesNoMore(t *testing.T) {
	m := settledMemory(t, 3000, 1, 2)
	slot := slices.Index(m.table(), 2)
	m.apply(untrackedPlan(slotsOfTable, 1))
	if w := m.words()[slot]; w != uint32(bpf.HistoryContested) {
		t.Fatalf("word %#x, want contested and no backend", w)
	}
	for range 3 {
		mustCollect(t, m.s)
	}
	plan := untrackedPlan(slotsOfTable, 1)
	plan.Retained = keptOf(2)
	m.apply(plan)
	if w := m.words()[slot]; m.stable(w) != 2 {
		t.Fatalf("word %#x leads to %d, want 2, which serves again", w, m.stable(w))
	}
	mustCollect(t, m.s)
}

// TestHistoryAfterRestart: the next agent restores the history from the tables, restarts the timeout, and
// writes nothing.
func TestHistoryAfterRestart(t *testing.T) {
	m := settledMemory(t, 3000, 1, 2)
	m.apply(untrackedPlan(slotsOfTable, 1, 2, 3))
	words := slices.Clone(m.words())
	m.now += 99
	m.restart()
	m.apply(m.plan)
	if n := m.s.Stats().Updates; n != 0 || !slices.Equal(m.words(), words) {
		t.Fatalf("%d frontends have changed", n)
	}
	mustCollect(t, m.s)
	if !slices.Equal(m.words(), words) {
		t.Fatal("what the history uses has been freed")
	}
	m.now += 50
	m.gc(nil)
	if m.words() == nil {
		t.Fatal("no longer contested before flows without conntrack entries have timed out since the restart")
	}
	m.now += 60
	m.gc(nil)
	if m.words() != nil {
		t.Fatal("still contested")
	}
}

// explainEntry is a conntrack entry in the words of a failed test.
func explainEntry(key bpf.Tuple, e *bpf.ConntrackEntry) string {
	how := "by NAT"
	if e.Dsr != 0 {
		how = "by DSR"
	}
	if e.Flags&uint8(bpf.ConntrackLocal) != 0 {
		how += ", as to a backend on this node"
	}
	if e.Flags&uint8(bpf.ConntrackReply) != 0 {
		how += ", of replies"
	}
	to := netip.AddrPortFrom(netip.AddrFrom16(e.Xlate.Destination.Bytes).Unmap(), bpf.NetworkOrder(e.Xlate.DestinationPort))
	return fmt.Sprintf("a flow of %s that goes to %s %s", key, to, how)
}

// TestWhatKeepsASlotContested: a slot stays contested while a conntrack entry leads elsewhere than a packet without one
// would go: to another backend or port, or to the same one by NAT instead of DSR, or as if it were on this node.
func TestWhatKeepsASlotContested(t *testing.T) {
	const slot = 7
	address := func(text string) [16]byte { return bpf.AddressFrom(netip.MustParseAddr(text)).Bytes }
	client, pod, node := address("198.51.100.7"), address("10.244.1.9"), address("192.0.2.12")
	for _, c := range []struct {
		name   string
		source [16]byte
		change func(e *bpf.ConntrackEntry)
		stays  bool
	}{
		{"DSR to the slot's backend", client, func(*bpf.ConntrackEntry) {}, false},
		{"another backend", client, func(e *bpf.ConntrackEntry) { e.Xlate.Destination.Bytes[15]++ }, true},
		{"another port", client, func(e *bpf.ConntrackEntry) { e.Xlate.DestinationPort++ }, true},
		{"NAT to the slot's backend", client, func(e *bpf.ConntrackEntry) { e.Dsr = 0 }, true},
		{"NAT for a client that is the backend's node", node, func(e *bpf.ConntrackEntry) { e.Dsr = 0 }, false},
		{"as if the backend were on this node", client, func(e *bpf.ConntrackEntry) { e.Flags = uint8(bpf.ConntrackLocal) }, true},
		{"the entry of replies", client, func(e *bpf.ConntrackEntry) { e.Dsr, e.Flags = 0, uint8(bpf.ConntrackReply) }, false},
		{"NAT for a pod, which is not outside", pod, func(e *bpf.ConntrackEntry) { e.Dsr = 0 }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := settledMemory(t, 2000, 1, 2)
			m.s.mu.Lock()
			m.s.networks.pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
			m.s.mu.Unlock()
			m.apply(untrackedPlan(slotsOfTable, 1, 2, 4))
			w := m.s.beginSlotPass()
			key, e := m.entryOf(slot, m.table()[slot])
			group := w.frontends[codec.AskedFrontend(key)]
			b := group.backends[group.table[slot]]
			b.Node.Bytes = node
			group.backends[group.table[slot]] = b
			key.Source.Bytes = c.source
			c.change(&e)
			w.note(key, &e)
			if group.busy[slot] != c.stays {
				flow := explainEntry(key, &e)
				t.Errorf("slot %d leads to %s by DSR, on another node; conntrack has %s: the slot stays contested: %t, want %t: it does while an entry leads elsewhere than a packet without one",
					slot, b.AddrPort(), flow, group.busy[slot], c.stays)
			}
		})
	}
}

// TestSettling: SlotUsage counts the contested slots in the tables, each once even if frontends share it,
// and the time until a GC pass ends the contest.
func TestSettling(t *testing.T) {
	m := newMemory(t, 3000)
	plan := func(backends ...byte) *service.Plan {
		plan := untrackedPlan(slotsOfTable, backends...)
		f := plan.Frontends[0]
		f.Key.Port++
		plan.Frontends = append(plan.Frontends, f)
		return plan
	}
	want := func(when string, want SlotUsage) {
		t.Helper()
		if got := m.s.SlotUsage(func(service.Protocol) time.Duration { return idle }); got != want {
			t.Errorf("%s: %+v, want %+v", when, got, want)
		}
	}
	want("no frontends", SlotUsage{})
	m.apply(plan(1, 2))
	want("a new frontend", SlotUsage{slotsOfTable, slotsOfTable, 0})
	m.now += 2
	m.gc(nil)
	want("a GC pass has ended it", SlotUsage{slotsOfTable, 0, 0})
	m.apply(plan(1, 3))
	contested := 0
	for _, word := range m.words() {
		if word != 0 {
			contested++
		}
	}
	if contested == 0 || contested == slotsOfTable {
		t.Fatalf("%d slots are contested of %d", contested, slotsOfTable)
	}
	want("a change", SlotUsage{slotsOfTable, contested, 101}) // its second is the next one
	m.now += 41
	want("41 s later", SlotUsage{slotsOfTable, contested, 60})
	m.now += 60
	m.gc(nil)
	want("in the end", SlotUsage{slotsOfTable, 0, 0})
}

// TestOtherSizeAndRandom: after a change to a table of another size, or to none, packets find their
// backends by the old table, until flows without conntrack entries have timed out.
func TestOtherSizeAndRandom(t *testing.T) {
	random := untrackedPlan(0, 1, 2)
	random.Frontends[0].Untracked, random.Frontends[0].DSR = false, ""
	for name, plan := range map[string]*service.Plan{"another size": untrackedPlan(257, 1, 2), "random": random} {
		m := settledMemory(t, 3000, 1, 2)
		before := m.table()
		m.apply(plan)
		words := m.words()
		if len(words) != len(before) {
			t.Fatalf("%s: %d words, want the %d of the old table", name, len(words), len(before))
		}
		for slot, word := range words {
			if m.stable(word) != before[slot] || word&uint32(bpf.HistoryContested) == 0 {
				t.Fatalf("%s: slot %d had %d; word %#x leads to %d", name, slot, before[slot], word, m.stable(word))
			}
		}
		if kind := m.lists().HistoryDSR; kind != bpf.DSRIPIP {
			t.Errorf("%s: packets of flows without conntrack entries are sent by DSR kind %d, want IPIP", name, kind)
		}
		m.now += 50
		m.gc(nil)
		if m.words() == nil {
			t.Fatalf("%s: forgotten too early", name)
		}
		m.now += 60
		m.gc(nil)
		if m.words() != nil {
			t.Fatalf("%s: not forgotten", name)
		}
		if on := m.k.untracked.rows[0].Any(); on != (plan != random) {
			t.Errorf("%s: the edge looks for untracked frontends: %v", name, on)
		}
	}
}

// TestGCOfEarlierTable: a GC pass that began before a change of the table does not apply to the new one.
func TestGCOfEarlierTable(t *testing.T) {
	m := newMemory(t, 3000)
	m.apply(untrackedPlan(slotsOfTable, 1, 2))
	m.now += 2
	w := m.s.beginSlotPass()
	m.apply(untrackedPlan(slotsOfTable, 1, 3))
	if err := m.s.endSlotPass(w, func(service.Protocol) time.Duration { return idle }); err != nil {
		t.Fatal(err)
	}
	if m.words() == nil {
		t.Fatal("no longer contested after a GC pass that began before the change")
	}
}

// TestSettlingIsNoMatterOfOthers: a GC pass does not fail because another Service cannot be served.
func TestSettlingIsNoMatterOfOthers(t *testing.T) {
	m := newMemory(t, 2000)
	m.apply(untrackedPlan(slotsOfTable, 1, 2))
	other := ref("other")
	broken := maglevPlan(other, 2, 0, 4) // not a prime number
	broken.Sets[0].Backends = []service.Backend{backendOf(1)}
	if err := m.s.Apply(service.Delta{Plans: map[service.Ref]*service.Plan{other: broken}}); err == nil {
		t.Fatal("a table of 4 slots is served")
	}
	m.now += 2
	m.gc(nil) // fails the test on an error
	if m.words() != nil {
		t.Error("still contested")
	}
}

// TestFrontendsShareHistory: the frontends of a port share one history.
func TestFrontendsShareHistory(t *testing.T) {
	m := newMemory(t, 2000)
	two := func(backends ...byte) *service.Plan {
		plan := untrackedPlan(slotsOfTable, backends...)
		f := plan.Frontends[0]
		f.Key.Port++
		plan.Frontends = append(plan.Frontends, f)
		return plan
	}
	m.apply(two(1, 2))
	m.now += 2
	m.gc(nil)
	mustCollect(t, m.s)
	m.apply(two(1, 3))
	firsts := map[uint32]bool{}
	for _, row := range m.k.index.entries {
		firsts[m.k.listsOf(row).History.First] = true
	}
	if len(firsts) != 1 || m.lists().History.Count == 0 {
		t.Errorf("two frontends remember at %v", firsts)
	}
	mustCollect(t, m.s)
	// A conntrack entry of either frontend keeps the slot contested for both: they share it.
	m.now += 200
	m.gc(nil)
	if m.words() != nil {
		t.Error("still contested")
	}
}

// TestAuditRepairsHistory: changes of a history by other programs are repaired, and so is the word that
// makes the edge look up untracked frontends.
func TestAuditRepairsHistory(t *testing.T) {
	m := settledMemory(t, 2000, 1, 2)
	m.apply(untrackedPlan(slotsOfTable, 1, 3))
	want := slices.Clone(m.words())
	m.k.slots.rows[m.lists().History.First+7] ^= 1 << 31
	m.k.lists.rows[m.rowNumber()].History.Count--
	untracked := m.k.untracked.rows[0]
	m.k.untracked.rows[0].Bits = [8]uint64{}
	m.k.t = &testing.T{} // repairs overwrite what a program may be reading: it is wrong anyway
	if n, err := m.s.Audit(); n != 3 || err != nil {
		t.Errorf("%d repairs, %v; want 3", n, err)
	}
	m.k.t = t
	if !slices.Equal(m.words(), want) || m.k.untracked.rows[0].Bits != untracked.Bits {
		t.Error("not repaired")
	}
}

// TestAuditForgetsNoHistory: a damaged row is replaced, and flows without conntrack entries keep their
// backends: the slots that change afterwards have them as stable ones.
func TestAuditForgetsNoHistory(t *testing.T) {
	m := settledMemory(t, 3000, 1, 2)
	slot := slices.Index(m.table(), 2)
	m.k.rows.rows[m.k.index.entries[codec.FrontendKey(m.plan.Frontends[0].Key)]].SourceSet++
	m.k.t = &testing.T{} // repairs overwrite what a program may be reading: it is wrong anyway
	if n, err := m.s.Audit(); n != 1 || err != nil {
		t.Errorf("%d repairs, %v; want 1", n, err)
	}
	m.k.t = t
	if m.words() != nil {
		t.Error("slots are contested, though nothing has changed")
	}
	plan := untrackedPlan(slotsOfTable, 1)
	plan.Retained = keptOf(2)
	m.apply(plan)
	if words := m.words(); words == nil || m.stable(words[slot]) != 2 {
		t.Error("a slot has another backend now, and its stable one, which serves, is lost")
	}
}

// TestHistoryDoesNotFit: a new frontend without room for its history tracks all flows, reports that with
// the name of the flag, and is untracked as soon as there is room.
func TestHistoryDoesNotFit(t *testing.T) {
	m := newMemory(t, roundSlots(slotsOfTable+3)*3+9) // two tables, and room for the change of one
	other := ref("other")
	mustApply(t, m.s, service.Delta{Plans: map[service.Ref]*service.Plan{other: maglevPlan(other, 2, 2, slotsOfTable)}})
	histories, _ := m.s.alloc.slots.take(250) // stands for those of other frontends
	plan := untrackedPlan(slotsOfTable, 1, 2)
	err := m.s.Apply(service.Delta{Plans: map[service.Ref]*service.Plan{untrackedOwner: plan}})
	m.s.alloc.slots.put(histories)
	if err == nil || !strings.Contains(err.Error(), "--max-slots") || !strings.Contains(err.Error(), "every flow is tracked") {
		t.Errorf("want an error that names --max-slots and says what happens: %v", err)
	}
	if flags := m.row().Flags; m.row().Decisions[service.FromOutside].Count != slotsOfTable || flags&uint16(bpf.FlagUntracked) != 0 {
		t.Errorf("the frontend should be served and tracked; its flags are %#x", flags)
	}
	mustApply(t, m.s, service.Delta{Plans: map[service.Ref]*service.Plan{other: nil, untrackedOwner: plan}})
	mustCollect(t, m.s)
	if _, err := m.s.Retry(time.Now().Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if m.row().Flags&uint16(bpf.FlagUntracked) == 0 {
		t.Error("the frontend is still tracked, though there is room")
	}
}

// TestChangeThatDoesNotFit: if flows without conntrack entries could lose their backend, the change waits,
// and the previous state stays in effect.
func TestChangeThatDoesNotFit(t *testing.T) {
	m := settledMemory(t, roundSlots(slotsOfTable+3)*2+10, 1, 2)
	before := m.row()
	err := m.s.Apply(service.Delta{Plans: map[service.Ref]*service.Plan{untrackedOwner: untrackedPlan(slotsOfTable, 1, 3)}})
	if err == nil || !strings.Contains(err.Error(), "--max-slots") {
		t.Errorf("want an error that names --max-slots: %v", err)
	}
	if m.row() != before {
		t.Error("the frontend has changed")
	}
}
