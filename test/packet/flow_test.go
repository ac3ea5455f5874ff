// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// reply is a backend's reply to a client.
func reply(backend, asker netip.AddrPort, protocol uint8) probe {
	p := probe{from: backend, to: asker, protocol: protocol, payload: []byte("an answer"), source: nodeBMAC, target: eth0MAC}
	if protocol == tcp {
		p.flags, p.seq, p.ack, p.payload = syn|ack, 77, 0xfffffff1, nil
		p.tcpOptions = []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}}}
	}
	return p
}

// askRemote begins a flow to the remote backend. It returns the client's packet, the node's source address and
// port, and the backend's.
func (w *world) askRemote(t *testing.T, at hook, f family, protocol uint8) (question probe, own, backend netip.AddrPort) {
	t.Helper()
	question = f.question(protocol, toRemote)
	return question, on(f.own, w.snatPort(t, at, question.frame(t))), on(f.remote, targetPort)
}

// A packet to a remote backend has the node's address, and its reply the Service's (R19, R20): both ways every
// byte is what another encoder writes.
func TestRemoteBackend(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question, own, backend := w.askRemote(t, at, f, protocol)
		// Again, since askRemote compares only addresses and ports: the same flow, the same SNAT port.
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

// A backend of this node sees the client's address, and its reply leaves from the Service's address.
func TestLocalBackend(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toLocal)
		backend := on(f.local, targetPort)
		w.passes(t, at, question.frame(t), question.translated(question.from, backend))
		answer := reply(backend, question.from, protocol)
		w.passes(t, atEgress, answer.frame(t), answer.translated(question.to, question.from))
		question.hops, question.flags = 1, ack // the stack counts hops
		w.passes(t, at, question.frame(t), question.translated(question.from, backend))
		want := [model.Reasons]uint64{model.New: 1, model.Established: 1, model.Reply: 1}
		if got := w.counts(t); got != want {
			t.Errorf("counted %v, want %v", got, want)
		}
	})
}

// At tc egress only replies of this node's backends are translated: what the node forwards or sends itself
// passes.
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
		counts[model.NotService] += 3 // three of them belong to no flow
		if got := w.counts(t); got != counts {
			t.Errorf("counted %v, want %v", got, counts)
		}
	})
}

// UDP without a checksum (IPv4) keeps none; with one, the sum 0 is sent as 0xffff (RFC 768, RFC 8200 section
// 8.1).
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
		// The payload that completes the sum to 0xffff is the checksum without it.
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

// What XDP cannot send it leaves to tc, unchanged, and tc sends it: by another device, or to a neighbour that
// is not resolved yet.
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

// A route, address or port is missing: the packet is dropped, and the counter says which.
func TestNoWay(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		w.loses(t, f.noRoute, bpf.LostWithoutRoute, 1, f.noRoute, func() { w.answersWithoutRoute(t, at, f.question(protocol, toNoRoute)) })
		long := f.question(protocol, toNoRoute)
		long.payload = make([]byte, 100)
		parts := long.fragments(t, 0x91, 64)
		w.run(t, at, parts[0])
		w.drops(t, at, parts[1], model.DropNoRoute) // no error about a later fragment (RFC 1122 section 3.2.2)
		w.drops(t, at, f.question(protocol, noBackends).frame(t), model.DropNoBackend)
		// eth2 is not the packet's device, so tc handles it.
		w.loses(t, f.noAddress, bpf.LostWithoutAddress, 1, f.noAddress, func() {
			w.drops(t, atIngress, f.question(protocol, toNoAddress).frame(t), model.DropNoAddress)
		})
		for _, table := range []string{"conntrack", "unreplied"} {
			if left := w.records(t, table); len(left) > 0 {
				t.Errorf("table %s has %v", table, left)
			}
		}
	})
}

// answersWithoutRoute checks that a packet gets the stack's ICMP error, and is counted.
func (w *world) answersWithoutRoute(t *testing.T, at hook, question probe) {
	t.Helper()
	before := w.counts(t)
	w.leaves(t, at, question.frame(t), model.ActionSend, question.icmpAnswer(t, question.to.Addr(), [2]uint8{3, 0}, [2]uint8{1, 0}, 0))
	w.counted(t, before, model.DropNoRoute)
}

// With forwarding disabled in the kernel, packets that need it are dropped with that reason: first packets,
// packets of flows, and replies. What needs no forwarding is served.
func TestForwardingOff(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toRemote)
		w.goes(t, at, question.frame(t), model.New)
		w.forwarding(t, "0")
		defer w.forwarding(t, "1")
		time.Sleep(70 * time.Millisecond) // until the fib cache has expired
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

// goes runs a frame that must be sent, whatever it becomes.
func (w *world) goes(t *testing.T, at hook, frame []byte, reason model.Reason) {
	t.Helper()
	before := w.counts(t)
	if got := w.run(t, at, frame); got.Action != model.ActionSend {
		t.Fatalf("%s: action %v, want 2 (sent)", at, got.Action)
	}
	w.counted(t, before, reason)
}

// forwarding sets whether the kernel forwards what arrives at eth0.
func (w *world) forwarding(t *testing.T, value string) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		must(t, os.WriteFile("/proc/sys/net/"+family+"/conf/eth0/forwarding", []byte(value), 0))
	}
}

// A packet whose hops end at the node, a flow's first or not, gets "time exceeded" from the address that it was sent to
// (RFC 792, RFC 4443 section 3.3). It does not count for its flow.
func TestHops(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		exceeded := func(p probe) {
			t.Helper()
			before := w.counts(t)
			w.leaves(t, at, p.frame(t), model.ActionSend, p.icmpAnswer(t, p.to.Addr(), [2]uint8{11, 0}, [2]uint8{3, 0}, 0))
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
			t.Errorf("without hops left: action %v, want an answer", got.Action)
		}
		w.counted(t, before, model.TTLExceeded)
		if after := w.records(t, halfOpen); !maps.Equal(after, records) {
			t.Errorf("the conntrack entries %v became %v", records, after)
		}
	})
}

// The first packet of a flow to a backend on this node gets the error as well, and makes no entry: the node would
// forward it to the pod.
func TestHopsToAPodOfTheNode(t *testing.T) {
	w := newScene(t)
	w.localPods(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toLocal)
		question.hops = 1
		before := w.counts(t)
		w.leaves(t, at, question.frame(t), model.ActionSend, question.icmpAnswer(t, f.vip, [2]uint8{11, 0}, [2]uint8{3, 0}, 0))
		w.counted(t, before, model.TTLExceeded)
		w.remembersNothing(t)
		question.hops = 2
		w.passes(t, at, question.frame(t), question.translated(question.from, on(f.local, targetPort)))
	})
}

// A sender to which a route forbids packets gets no answer, as by the stack: neither an error, a RST nor an echo.
func TestForbiddenSender(t *testing.T) {
	w := newScene(t)
	for _, kind := range []int{unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT} {
		var routes []*netlink.Route
		for _, f := range families {
			route := &netlink.Route{Type: kind, Dst: &net.IPNet{IP: f.client.AsSlice(), Mask: net.CIDRMask(f.client.BitLen(), f.client.BitLen())}}
			must(t, netlink.RouteAdd(route))
			routes = append(routes, route)
		}
		w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
			w.drops(t, at, f.question(protocol, rejected).frame(t), model.DropNoRoute)
			w.drops(t, at, f.question(protocol, toNoRoute).frame(t), model.DropNoRoute)
			w.drops(t, at, f.ping("abcdefgh").frame(t), model.DropNoRoute)
			last := f.question(protocol, toRemote)
			last.hops = 1
			w.drops(t, at, last.frame(t), model.DropNoRoute)
			other := f.question(protocol, rejected)
			other.from = on(f.client.Next(), clientPort)
			w.goes(t, at, other.frame(t), model.Rejected)
		})
		for _, route := range routes {
			must(t, netlink.RouteDel(route))
		}
	}
}

// No error about an error, nor about a later fragment (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
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
