// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"maps"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/packet/model"
)

// reply is what comes back from the backend to whoever asked it.
func reply(backend, asker netip.AddrPort, protocol uint8) probe {
	p := probe{from: backend, to: asker, protocol: protocol, payload: []byte("an answer"), source: nodeBMAC, target: eth0MAC}
	if protocol == tcp {
		p.flags, p.seq, p.ack, p.payload = syn|ack, 77, 0xfffffff1, nil
		p.tcpOptions = []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}}}
	}
	return p
}

// askRemote begins a flow to the backend elsewhere: what the client asks, from which end
// of the node that goes on, and to which of the backend.
func (w *world) askRemote(t *testing.T, at hook, f family, protocol uint8) (question probe, own, backend netip.AddrPort) {
	t.Helper()
	question = f.question(protocol, toRemote)
	return question, on(f.own, w.snatPort(t, at, question.frame(t))), on(f.remote, targetPort)
}

// A backend elsewhere is asked in the node's name, and answers in the Service's
// (R19, R20): both ways every byte is what another encoder makes of the same words.
func TestRemoteBackend(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question, own, backend := w.askRemote(t, at, f, protocol)
		// Again, for askRemote has looked at the ends only: the same flow, the same port.
		w.sends(t, at, question.frame(t), question.forwarded(at, own, backend, nodeBMAC))
		answer := reply(backend, own, protocol)
		w.sends(t, at, answer.frame(t), answer.forwarded(at, question.to, question.from, gatewayMAC))
		question.flags, question.payload = psh|ack, bytes.Repeat([]byte("odd"), 301)
		w.sends(t, at, question.frame(t), question.forwarded(at, own, backend, nodeBMAC))
		want := [model.Reasons]uint64{model.New: 1, model.Established: 2, model.Reply: 1}
		if got := w.counts(t); got != want {
			t.Errorf("counted %v, want %v", got, want)
		}
	})
}

// A backend of this node gets the client's address, and its answer leaves in the
// Service's name.
func TestLocalBackend(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toLocal)
		backend := on(f.local, targetPort)
		w.passes(t, at, question.frame(t), question.translated(question.from, backend))
		answer := reply(backend, question.from, protocol)
		w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
		question.hops, question.flags = 1, ack // it is the stack that counts hops
		w.passes(t, at, question.frame(t), question.translated(question.from, backend))
		want := [model.Reasons]uint64{model.New: 1, model.Established: 1, model.Reply: 1}
		if got := w.counts(t); got != want {
			t.Errorf("counted %v, want %v", got, want)
		}
	})
}

// At tc egress only answers of this node's backends are changed: what the node has
// forwarded, or sends itself, is left alone.
func TestEgressLeavesOthersAlone(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question, own, backend := w.askRemote(t, at, f, protocol)
		counts := w.counts(t)
		for _, p := range []probe{
			question,
			question.forwarded(at, own, backend, nodeBMAC),
			reply(backend, own, protocol),
			reply(on(f.local, targetPort), question.from, protocol), // of no flow
			reply(question.to, question.from, protocol),
		} {
			w.ignores(t, atEgress, p.frame(t))
		}
		counts[model.NotService] += 3 // three of them are of no flow
		if got := w.counts(t); got != counts {
			t.Errorf("counted %v, want %v", got, counts)
		}
	})
}

// UDP without a checksum (IPv4) stays so; with one, the sum 0 is sent as 0xffff (RFC
// 768, RFC 8200 section 8.1).
func TestUDPChecksums(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question, own, backend := w.askRemote(t, at, f, udp)
		check := 14 + 20 + 6
		if f.client.Is4() {
			bare := question
			bare.noChecksum, bare.payload = true, make([]byte, 18)
			w.sends(t, at, bare.frame(t), bare.forwarded(at, own, backend, nodeBMAC))
		} else {
			check += 20
		}
		// The payload that fills the sum up to 0xffff is the checksum without it.
		question.payload = []byte{0, 0}
		question.payload = question.forwarded(at, own, backend, nodeBMAC).frame(t)[check : check+2]
		want := question.forwarded(at, own, backend, nodeBMAC).frame(t)
		if want[check] != want[check+1] || want[check] != 0 && want[check] != 0xff {
			t.Fatalf("the checksum is %x: the test is wrong", want[check:check+2])
		}
		want[check], want[check+1] = 0xff, 0xff
		w.leaves(t, at, question.frame(t), model.ActionSend, want)
	})
}

// What XDP cannot send by itself it leaves to tc as it is, and tc sends it: by another
// device, or to a neighbour that is yet to be asked for.
func TestLeftToTC(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for port, backend := range map[uint16]netip.Addr{toEth1: f.behindEth1, toNoNeighbour: f.noNeighbour} {
			question := f.question(protocol, port)
			before := w.counts(t)
			if at == atXDP {
				w.ignores(t, at, question.frame(t))
				w.counted(t, before, model.ToTC)
			}
			own := on(f.own, w.snatPort(t, atIngress, question.frame(t)))
			if port == toEth1 {
				own = on(w.tables().Devices[w.index["eth1"]][0], own.Port())
				if f.client.Is6() {
					own = on(w.tables().Devices[w.index["eth1"]][1], own.Port())
				}
			}
			w.sends(t, atIngress, question.frame(t), question.forwarded(atIngress, own, on(backend, targetPort), nodeBMAC))
			if at == atXDP {
				w.ignores(t, at, question.frame(t)) // also those that follow
			}
		}
	})
}

// One route, address or port is missing: the packet is dropped, and the counter says
// which it was.
func TestNoWay(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		w.drops(t, at, f.question(protocol, toNoRoute).frame(t), model.DropNoRoute)
		w.drops(t, at, f.question(protocol, noBackends).frame(t), model.DropNoBackend)
		// eth2 is another device than the packet's, so that this is tc's.
		w.drops(t, atIngress, f.question(protocol, toNoAddress).frame(t), model.DropNoAddress)
		for _, table := range []string{"conntrack", "unreplied"} {
			if left := w.records(t, table); len(left) > 0 {
				t.Errorf("table %s has %v", table, left)
			}
		}
	})
}

// The kernel forwards nothing that comes by a device: first packets, packets of flows and answers
// are dropped, and the counter says why. What needs no forwarding is served.
func TestForwardingOff(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toRemote)
		w.goes(t, at, question.frame(t), model.New)
		w.forwarding(t, "0")
		defer w.forwarding(t, "1")
		time.Sleep(70 * time.Millisecond) // the way that is remembered
		w.drops(t, at, question.frame(t), model.DropForwarding)
		another := question
		another.from = on(f.client, clientPort+1)
		w.drops(t, at, another.frame(t), model.DropForwarding)
		for _, dsr := range encapsulations {
			w.drops(t, at, f.question(protocol, direct(toRemote, dsr)).frame(t), model.DropForwarding)
		}
		w.goes(t, at, f.question(protocol, rejected).frame(t), model.Rejected)
	})
}

// goes runs a frame of which something has to leave, whatever that is.
func (w *world) goes(t *testing.T, at hook, frame []byte, reason model.Reason) {
	t.Helper()
	before := w.counts(t)
	if got := w.run(t, at, frame); got.Action != model.ActionSend {
		t.Fatalf("%s: the packet met %v, want it sent", at, got.Action)
	}
	w.counted(t, before, reason)
}

// forwarding says whether the kernel forwards what comes by eth0.
func (w *world) forwarding(t *testing.T, value string) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		must(t, os.WriteFile("/proc/sys/net/"+family+"/conf/eth0/forwarding", []byte(value), 0))
	}
}

// A packet whose last hop is the node, be it a flow's first or not, is answered in the
// node's name: time exceeded (RFC 792, RFC 4443 section 3.3). It is nothing of its flow.
func TestHops(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		exceeded := func(p probe) {
			t.Helper()
			before := w.counts(t)
			w.leaves(t, at, p.frame(t), model.ActionSend, p.icmpAnswer(t, f.own, [2]uint8{11, 0}, [2]uint8{3, 0}, 0))
			w.counted(t, before, model.TTLExceeded)
		}
		question := f.question(protocol, toRemote)
		question.hops = 1
		exceeded(question)
		elsewhere := f.question(protocol, toEth1)
		elsewhere.hops = 1
		exceeded(elsewhere)
		w.remembersNothing(t)
		question.hops = 2
		own := on(f.own, w.snatPort(t, at, question.frame(t)))
		records := w.records(t, halfOpen)
		question.hops = 1
		exceeded(question)
		answer := reply(on(f.remote, targetPort), own, protocol)
		answer.hops = 1
		exceeded(answer)
		zero := answer.frame(t)
		if f.client.Is4() {
			zero[14+8], zero[14+10] = 0, zero[14+10]+1
		} else {
			zero[14+7] = 0
		}
		before := w.counts(t)
		if got := w.run(t, at, zero); got.Action != model.ActionSend {
			t.Errorf("without any hop left it met %v, want an answer", got.Action)
		}
		w.counted(t, before, model.TTLExceeded)
		if after := w.records(t, halfOpen); !maps.Equal(after, records) {
			t.Errorf("records %v became %v", records, after)
		}
	})
}

// No error about an error, nor about the rest of a datagram (RFC 1122 section 3.2.2,
// RFC 4443 section 2.4).
func TestHopsUnanswered(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toRemote)
		question.payload = make([]byte, 100)
		parts := question.fragments(t, 0x90, 64)
		own := on(f.own, w.snatPort(t, at, parts[0]))
		question.hops = 1
		w.drops(t, at, question.fragments(t, 0x90, 64)[1], model.TTLExceeded)
		question.hops = 0
		sent := question.translated(own, on(f.remote, targetPort))
		for _, e := range errorsOf(f, sent) {
			w.drops(t, at, e.frame(t, probe{hops: 1, source: nodeBMAC, target: eth0MAC}, f.remote, f.own), model.TTLExceeded)
		}
	})
}
