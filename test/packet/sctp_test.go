// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/packet/model"
)

// Ports of the Service's address only for SCTP; behind the first two, the same port.
const (
	sctpRemote, sctpLocal, sctpNarrow = 3868, 3869, 3870
	sctpOther                         = 3871 // behind it: targetPort
)

// addSCTP adds them, with backend IDs from one on.
func (w *world) addSCTP(tables *model.Tables, f family, id uint32) {
	for i, b := range []model.Backend{
		{Address: f.remote, Port: sctpRemote}, {Address: f.local, Port: sctpLocal, Local: true},
		{Address: f.narrow, Port: sctpNarrow}, {Address: f.remote, Port: targetPort},
	} {
		tables.Backends[id+uint32(i)] = b
		d := model.Decision{Slots: []uint32{id + uint32(i)}}
		tables.Frontends[model.FrontendKey{Address: f.vip, Port: sctpRemote + uint16(i), Protocol: sctp}] =
			model.Frontend{Service: sctpRemote + uint32(i), Pod: d, Outside: d}
	}
	for port, v := range map[uint16]model.Verdict{rejected: model.Reject, dropped: model.Drop} {
		tables.Frontends[model.FrontendKey{Address: f.vip, Port: port, Protocol: sctp}] =
			model.Frontend{Service: uint32(port), Pod: model.Decision{Verdict: v}, Outside: model.Decision{Verdict: v}}
	}
}

// association is the INIT of a client.
func (f family) association(port uint16) probe {
	return probe{from: on(f.client, clientPort), to: on(f.vip, port), protocol: sctp, chunk: sctpInit, payload: make([]byte, 16)}
}

// with is a packet with the same tuple and another chunk.
func (p probe) with(chunk byte, payload string) probe {
	p.chunk, p.payload = chunk, []byte(payload)
	return p
}

// An SCTP packet gets other addresses and keeps its ports, so that its CRC32c is what another encoder writes
// for the new packet. The client's port is outside the SNAT ports.
func TestSCTPRemoteBackend(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		question := f.association(sctpRemote)
		own, backend := on(f.own, clientPort), on(f.remote, sctpRemote)
		answer := probe{from: backend, to: own, protocol: sctp, source: nodeBMAC, target: eth0MAC}
		for _, p := range []probe{question, question.with(sctpCookieEcho, "cookie"), question.with(sctpData, string(bytes.Repeat([]byte("odd"), 301)))} {
			w.sends(t, at, p.frame(t), p.forwarded(at, own, backend, nodeBMAC))
			back := answer.with(sctpInitAck, "an answer")
			w.sends(t, at, back.frame(t), back.forwarded(at, question.to, question.from, gatewayMAC))
		}
		want := [model.Reasons]uint64{model.New: 1, model.Established: 2, model.Reply: 3}
		if got := w.counts(t); got != want {
			t.Errorf("counted %v, want %v", got, want)
		}
	})
}

// A backend of this node sees the client's address, and its reply leaves from the Service's address.
func TestSCTPLocalBackend(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		question := f.association(sctpLocal)
		backend := on(f.local, sctpLocal)
		w.passes(t, at, question.frame(t), question.translated(question.from, backend))
		answer := probe{from: backend, to: question.from, protocol: sctp}.with(sctpInitAck, "an answer")
		w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
		for _, part := range question.with(sctpData, string(make([]byte, 200))).fragments(t, 4, 64) {
			if got := w.run(t, at, part); got.Action != model.ActionPass || bytes.Contains(got.Frame, f.vip.AsSlice()) {
				t.Errorf("a fragment: action %v, and it became\n%x", got.Action, got.Frame)
			}
		}
		parts := answer.with(sctpData, string(make([]byte, 200)))
		want := parts.translated(question.to, question.from).fragments(t, 5, 64)
		for i, part := range parts.fragments(t, 5, 64) {
			w.leaves(t, atEgress, part, model.ActionPass, want[i])
		}
	})
}

// R28, and what cannot happen: a backend with another port than the client asked for gets nothing, because the
// CRC would not be computed again.
func TestSCTPPortsAreNeverTranslated(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		w.drops(t, at, f.association(sctpOther).frame(t), model.DropSCTPPort)
		w.drops(t, at, f.association(sctpOther).with(sctpData, "x").frame(t), model.DropSCTPPort)
		if n := len(w.records(t, halfOpen)); n > 0 {
			t.Errorf("%d conntrack entries, want none", n)
		}
	})
}

// A second client with another one's port cannot have the same backend through the node's address, nor can a
// client have one backend of this node twice; existing flows stay.
func TestSCTPPortIsTaken(t *testing.T) {
	w := newScene(t)
	tables := w.scene()
	for _, f := range families {
		for port, like := range map[uint16]uint16{sctpLocal: sctpLocal, sctpRemote: sctpRemote} {
			tables.Frontends[model.FrontendKey{Address: f.own, Port: port, Protocol: sctp}] =
				tables.Frontends[model.FrontendKey{Address: f.vip, Port: like, Protocol: sctp}]
		}
	}
	w.apply(t, tables)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		own, backend := on(f.own, clientPort), on(f.remote, sctpRemote)
		first := f.association(sctpRemote)
		second := first
		second.from = on(f.client.Next(), clientPort)
		w.sends(t, at, first.frame(t), first.forwarded(at, own, backend, nodeBMAC))
		w.loses(t, f.remote, bpf.LostWithoutPort, 1, f.remote, func() { w.drops(t, at, second.frame(t), model.DropNoPort) })
		second.from = on(f.client.Next(), clientPort+1)
		w.sends(t, at, second.frame(t), second.forwarded(at, on(f.own, clientPort+1), backend, nodeBMAC))
		again := first.with(sctpCookieEcho, "cookie")
		w.sends(t, at, again.frame(t), again.forwarded(at, own, backend, nodeBMAC))

		local := f.association(sctpLocal)
		w.passes(t, at, local.frame(t), local.translated(local.from, on(f.local, sctpLocal)))
		local.to = on(f.own, sctpLocal)
		w.drops(t, at, local.frame(t), model.DropNoPort)
	})
}

// R16, R21: refused with ICMP port unreachable, or silently; an ABORT gets no reply (RFC 9260 section 8.4).
// SCTP does not use TCP's and UDP's ports (R28).
func TestSCTPRefused(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, port := range []uint16{rejected, toRemote, 9999} {
			w.answers(t, at, f.association(port))
			w.drops(t, at, f.association(port).with(sctpAbort, "").frame(t), model.Rejected)
		}
		w.drops(t, at, f.association(dropped).frame(t), model.DropPolicy)
	})
}

// ICMP errors about packets of an association reach their sender, with its own addresses and ports.
func TestICMPErrorsOfSCTP(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		question := f.association(sctpRemote)
		own, backend := on(f.own, clientPort), on(f.remote, sctpRemote)
		w.run(t, at, question.frame(t))
		sent := question.translated(own, backend)
		answer := probe{from: backend, to: own, protocol: sctp, source: nodeBMAC, target: eth0MAC}.with(sctpInitAck, "an answer")
		back := answer.translated(question.to, question.from)
		for i := range errorsOf(f, sent) {
			for _, by := range []netip.Addr{f.remote, f.remote.Next()} {
				from, to := errorsOf(f, sent)[i], errorsOf(f, question)[i]
				in := probe{source: nodeBMAC, target: eth0MAC}
				w.leaves(t, at, from.frame(t, in, by, f.own), model.ActionSend, to.frame(t, in.forwarded(at, in.from, in.to, gatewayMAC), f.vip, f.client))
			}
			from, to := errorsOf(f, back)[i], errorsOf(f, answer)[i]
			in := probe{}
			w.leaves(t, at, from.frame(t, in, f.client, f.vip), model.ActionSend, to.frame(t, in.forwarded(at, in.from, in.to, nodeBMAC), f.own, f.remote))
		}
	})
}

// A packet that ends before its first chunk is invalid; padding after it does not count.
func TestSCTPWithoutChunk(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for left := range 16 {
			frame := f.association(sctpRemote).frame(t)
			length := 14 + 20 + left
			if f.client.Is4() {
				frame[14+3] = byte(20 + left)
			} else {
				length += 20
				frame[14+5] = byte(left)
			}
			for _, b := range [][]byte{frame, frame[:max(length, 14+40)]} {
				before := w.counts(t)
				w.ignores(t, at, b)
				w.counted(t, before, model.Malformed)
			}
		}
	})
}

// The sum that a device computed stays correct; the path MTU does not apply to a merged packet, which the
// kernel splits itself.
func TestSCTPSummedUpOrMerged(t *testing.T) {
	w := newScene(t)
	sums := needs.Has(t, needs.SummedTestRuns)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.enter(t)
			w.forget(t)
			run := func(at hook, frame []byte, flags, segment uint32, action model.Action) {
				t.Helper()
				if got := w.runWith(t, at, frame, flags, segment); got.Action != action {
					t.Errorf("action %v, want %v", got.Action, action)
				}
			}
			const byFragments = 0xffff // GSO_BY_FRAGS
			large := f.association(sctpNarrow).with(sctpData, string(make([]byte, 2*narrowMTU)))
			large.dontFragment = true
			run(atIngress, large.frame(t), 0, byFragments, model.ActionSend)
			w.counted(t, [model.Reasons]uint64{}, model.New)
			before := w.counts(t)
			run(atIngress, large.frame(t), 0, 0, model.ActionSend)
			w.counted(t, before, model.DropTooBig)
			if !sums {
				t.Log("this kernel's test runs cannot have CHECKSUM_COMPLETE: that needs BPF_F_TEST_SKB_CHECKSUM_COMPLETE (Linux 6.17)")
				return
			}
			remote, local := f.association(sctpRemote), f.association(sctpLocal)
			run(atIngress, remote.frame(t), bpfTestChecksumComplete, 0, model.ActionSend)
			run(atIngress, local.frame(t), bpfTestChecksumComplete, 0, model.ActionPass)
			for _, part := range local.fragments(t, 9, 16) {
				run(atIngress, part, bpfTestChecksumComplete, 0, model.ActionPass)
			}
			answer := probe{from: on(f.local, sctpLocal), to: local.from, protocol: sctp}.with(sctpInitAck, "an answer")
			run(atEgress, answer.frame(t), bpfTestChecksumComplete, 0, model.ActionPass)
		})
	}
}
