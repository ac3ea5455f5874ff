// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// untracked makes the scene's frontends with DSR untracked, with a history if given.
func (w *world) untracked(t testing.TB, history ...model.Slot) {
	t.Helper()
	tables := w.scene()
	for key, f := range tables.Frontends {
		if f.DSR != model.SNAT && !key.Address.IsLoopback() {
			f.Untracked, f.History, f.Before = true, history, f.DSR
			tables.Frontends[key] = f
		}
	}
	w.apply(t, tables)
}

// traffic is the sum of a Service's counters.
func (w *world) traffic(t testing.TB, id uint32) (sum bpf.EdgeTCServiceCounters) {
	t.Helper()
	var each []bpf.EdgeTCServiceCounters
	if err := w.maps[bpf.EdgeTCMapServiceCounts].Lookup(id, &each); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	for _, c := range each {
		sum.Flows += c.Flows
		sum.SentPackets += c.SentPackets
		sum.SentBytes += c.SentBytes
		sum.ReceivedPackets += c.ReceivedPackets
		sum.ReceivedBytes += c.ReceivedBytes
	}
	var sent []bpf.EdgeTCServicePackets
	if err := w.maps[bpf.EdgeTCMapServiceUntracked].Lookup(id, &sent); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	for _, c := range sent {
		sum.SentPackets += c.Packets
		sum.SentBytes += c.Bytes
	}
	return sum
}

// A packet in a stable slot needs no entry: every byte is what DSR makes of it, and nothing is looked up or
// stored. Connections are counted as they begin, and packets as they are sent.
func TestUntracked(t *testing.T) {
	w := newScene(t)
	w.untracked(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		question, way := f.question(protocol, direct(toRemote, dsr)), f.way(dsr)
		before := w.traffic(t, uint32(direct(toRemote, dsr)))
		flows, octets := uint64(0), uint64(0)
		for _, flags := range []byte{syn, ack, psh | ack, fin | ack, rst} {
			question.flags = flags
			packet, _ := split(question.frame(t))
			octets += uint64(len(packet))
			w.leaves(t, at, question.frame(t), model.ActionSend, way.sent(t, at, question, nodeBMAC))
			if protocol == tcp && flags == syn {
				flows++
			}
		}
		if got, want := w.counts(t), ([model.Reasons]uint64{model.Untracked: 5}); got != want {
			t.Errorf("counted %v, want %v", got, want)
		}
		if n := len(w.records(t, tracks)) + len(w.records(t, halfOpen)); n != 0 {
			t.Errorf("%d conntrack entries", n)
		}
		after := w.traffic(t, uint32(direct(toRemote, dsr)))
		if after.Flows-before.Flows != flows || after.SentPackets-before.SentPackets != 5 || after.SentBytes-before.SentBytes != octets {
			t.Errorf("the Service's counters went from %+[2]v to %+[1]v; want %[3]d flows and 5 packets of %[4]d bytes more", after, before, flows, octets)
		}
	})
}

// Packets are counted for every Service ID: low IDs are found without a hash.
func TestUntrackedCountsEachID(t *testing.T) {
	w := newScene(t)
	few := w.maps[bpf.EdgeTCMapServiceUntracked].MaxEntries()
	for _, id := range []uint32{1, few - 1, few, few + 1} {
		tables := w.scene()
		for key, f := range tables.Frontends {
			if f.DSR == model.IPIP {
				f.Untracked, f.Service = true, id
				tables.Frontends[key] = f
			}
		}
		w.apply(t, tables)
		w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
			if dsr != model.IPIP {
				return
			}
			question, before := f.question(protocol, direct(toRemote, dsr)), w.traffic(t, id)
			w.run(t, at, question.frame(t))
			if n := w.traffic(t, id).SentPackets - before.SentPackets; n != 1 {
				t.Errorf("Service %d: %d packets counted", id, n)
			}
		})
	}
}

// Flows to backends of this node are tracked; so are those of pods. Sources that are not admitted get their
// verdict.
func TestTrackedAllTheSame(t *testing.T) {
	w := newScene(t)
	w.untracked(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		local := f.question(protocol, direct(toLocal, dsr))
		w.passes(t, at, local.frame(t), local.translated(local.from, on(f.local, targetPort)))
		pod := f.question(protocol, direct(toRemote, dsr))
		pod.from = on(f.pod, clientPort)
		w.run(t, at, pod.frame(t))
		want := [model.Reasons]uint64{model.New: 2}
		if got := w.counts(t); got != want {
			t.Errorf("counted %v, want %v", got, want)
		}
	})
}

// In a contested slot a SYN goes to the current backend and a packet of an older connection to the stable one.
// Both get entries, which decide from then on. UDP never gets one: its Service is annotated so.
func TestContested(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		stable := on(f.remote.Next(), targetPort)
		first := uint32(1)
		if f.client.Is6() {
			first = 11
		}
		w.untracked(t, model.Slot{Contested: true, Stable: first + 6})
		current, before := f.way(dsr), way{dsr, f.own, stable.Addr(), stable}
		begins, goesOn := f.question(protocol, direct(toRemote, dsr)), f.question(protocol, direct(toRemote, dsr))
		goesOn.from = on(f.client, clientPort+1)
		if protocol == udp {
			for range 2 {
				w.leaves(t, at, goesOn.frame(t), model.ActionSend, current.sent(t, at, goesOn, nodeBMAC))
			}
			if n := len(w.records(t, tracks)) + len(w.records(t, halfOpen)); n != 0 {
				t.Errorf("%d conntrack entries", n)
			}
			return
		}
		w.leaves(t, at, begins.frame(t), model.ActionSend, current.sent(t, at, begins, nodeBMAC))
		begins.flags, begins.seq = ack, begins.seq+1
		w.leaves(t, at, begins.frame(t), model.ActionSend, current.sent(t, at, begins, nodeBMAC))
		goesOn.flags = psh | ack
		w.leaves(t, at, goesOn.frame(t), model.ActionSend, before.sent(t, at, goesOn, nodeBMAC))
		for _, r := range w.records(t, halfOpen) {
			if r.State != model.StateEstablished {
				t.Errorf("a continuing connection is in state %d: it would be forgotten like a SYN", r.State)
			}
		}
		w.untracked(t, model.Slot{Contested: true, Stable: first}) // the entry takes precedence
		w.leaves(t, at, goesOn.frame(t), model.ActionSend, before.sent(t, at, goesOn, nodeBMAC))
		want := [model.Reasons]uint64{model.New: 2, model.Established: 2}
		if got := w.counts(t); got != want {
			t.Errorf("counted %v, want %v", got, want)
		}
	})
}

// A SYN that somebody forges with the tuple of a connection without an entry, in a contested slot, moves
// nothing: packets that do not continue near it go to the stable backend, and the entry stays for the SYN's
// sender. Only a contested slot and a half-open entry leave a second place where the packet might belong.
func TestForgedSYN(t *testing.T) {
	w := newScene(t)
	w.eachDirectFamily(t, func(t *testing.T, at hook, f family, dsr model.DSR) {
		stable := on(f.remote.Next(), targetPort)
		first := uint32(1)
		if f.client.Is6() {
			first = 11
		}
		current, before := f.way(dsr), way{dsr, f.own, stable.Addr(), stable}
		question := f.question(tcp, direct(toRemote, dsr))
		goes := func(flags byte, seq uint32, way way, reason model.Reason) {
			t.Helper()
			p := question
			p.flags, p.seq, p.ack = flags, seq, 7000
			counts := w.counts(t)
			w.leaves(t, at, p.frame(t), model.ActionSend, way.sent(t, at, p, nodeBMAC))
			w.counted(t, counts, reason)
		}
		const forged, own, window = 5000, 1 << 31, 1 << 22
		slot := model.Slot{Contested: true, Stable: first + 6}
		w.untracked(t, slot)
		goes(syn, forged, current, model.New)
		for _, seq := range []uint32{own, own + 1, forged + 1 + window, 1<<32 + forged - window} {
			goes(ack, seq, before, model.Untracked)
		}
		goes(psh|ack, own, before, model.Untracked)
		goes(fin|ack, own, before, model.Untracked)
		goes(rst, own, before, model.Untracked)
		goes(syn, forged, current, model.Established)
		records := w.records(t, halfOpen)
		if len(records) != 1 || len(w.records(t, tracks)) != 0 {
			t.Fatalf("there is more than the SYN's entry: %v", records)
		}
		for _, r := range records {
			if r.State != model.StateNew || r.Packets != 2 || r.Next != forged+1 || r.Becomes.Destination != f.remote {
				t.Errorf("the entry has changed: %+v", r)
			}
		}
		// The slot's stable backend is unknown, or the same as in the entry; or the slot is no longer
		// contested, and the entry is not read.
		w.untracked(t, model.Slot{Contested: true})
		goes(syn, forged, current, model.Established)
		goes(ack, own, current, model.Established)
		w.untracked(t, model.Slot{Contested: true, Stable: first})
		goes(syn, forged, current, model.Established)
		goes(ack, own, current, model.Established)
		w.untracked(t, slot)
		// The entry applies to packets that continue the SYN, near it or at once.
		goes(syn, forged, current, model.Established)
		goes(ack, forged+1+window-1, current, model.Established)
		goes(syn, forged, current, model.Established)
		goes(ack, forged+1, current, model.Established)
		goes(ack, own, current, model.Established)
		if len(w.records(t, tracks)) != 1 {
			t.Error("the connection of the SYN has not been established")
		}
	})
}

// An ICMP error about a reply to a client without an entry finds its backend by the slot: the stable one if the
// slot is contested.
func TestErrorsOfUntrackedFlows(t *testing.T) {
	w := newScene(t)
	w.eachDirect(t, func(t *testing.T, at hook, f family, protocol uint8, dsr model.DSR) {
		first := uint32(1)
		if f.client.Is6() {
			first = 11
		}
		stable := on(f.remote.Next(), targetPort)
		for _, c := range []struct {
			history []model.Slot
			way     way
		}{
			{nil, f.way(dsr)},
			{[]model.Slot{{Contested: false, Stable: first + 6}}, f.way(dsr)},
			{[]model.Slot{{Contested: true, Stable: first + 6}}, way{dsr, f.own, stable.Addr(), stable}},
		} {
			w.untracked(t, c.history...)
			question, way := f.question(protocol, direct(toRemote, dsr)), c.way
			if protocol == udp {
				way = f.way(dsr)
			}
			answer := reply(way.backend, question.from, protocol)
			answer.payload = []byte("some payload, so that there is something to be too large")
			back := answer.translated(question.to, question.from)
			for _, e := range errorsOf(f, back) {
				out := probe{}.forwarded(at, netip.AddrPort{}, netip.AddrPort{}, nodeBMAC)
				want := e.frame(t, out, f.client, f.vip)
				if dsr == model.Opt {
					out.to = question.to
					// A router on the path may drop packets from its own address.
					want = e.frame(t, out.withOption(way.backend), f.own, way.backend.Addr())
				} else {
					want = way.around(t, want, question.hash())
				}
				w.leaves(t, at, e.frame(t, probe{}, f.client, f.vip), model.ActionSend, want)
			}
		}
	})
}

// A new connection without an entry is reported to watchers like others.
func TestUntrackedIsTold(t *testing.T) {
	w := newScene(t)
	w.untracked(t)
	f := families[0]
	w.put(t, bpf.EdgeTCMapEdgeWatched, uint32(0), uint32(1))
	question := f.question(tcp, direct(toRemote, model.IPIP))
	for _, flags := range []byte{syn, ack} {
		question.flags = flags
		w.run(t, atIngress, question.frame(t))
	}
	got := w.events(t)
	if len(got) != 1 || got[0].Reason != uint8(model.Untracked) ||
		netip.AddrFrom16(got[0].Xlate.Destination.Bytes).Unmap() != f.remote || got[0].Service != uint32(direct(toRemote, model.IPIP)) {
		t.Errorf("reported %+v, want only the SYN's, with its backend", got)
	}
}

// events are the events emitted so far.
func (w *world) events(t testing.TB) (all []bpf.EdgeTCEdgeEvent) {
	t.Helper()
	r, err := ringbuf.NewReader(w.maps[bpf.EdgeTCMapEdgeEvents])
	must(t, err)
	defer r.Close()
	r.SetDeadline(time.Now()) // read only what is there
	for {
		record, err := r.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all
		}
		must(t, err)
		var event bpf.EdgeTCEdgeEvent
		must(t, binary.Read(bytes.NewReader(record.RawSample), binary.LittleEndian, &event))
		all = append(all, event)
	}
}
