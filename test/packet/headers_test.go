// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// IPv4 options of every length are kept (RFC 791 section 3.1).
func TestIPv4Options(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		if !f.client.Is4() {
			return // extension headers: below
		}
		for words := 1; words <= 10; words++ {
			option := layers.IPv4Option{OptionType: 0x94, OptionLength: uint8(4 * words), OptionData: make([]byte, 4*words-2)}
			question := f.question(protocol, toRemote)
			question.ipOptions = []layers.IPv4Option{option}
			w.forget(t)
			own := on(f.own, w.snatPort(t, at, question.frame(t)))
			w.sends(t, at, question.frame(t), question.forwarded(at, own, on(f.remote, targetPort), nodeBMAC))
			local := f.question(protocol, toLocal)
			local.ipOptions = question.ipOptions
			w.passes(t, at, local.frame(t), local.translated(local.from, on(f.local, targetPort)))
		}
	})
}

// extensionHeader has n*8 bytes; its next header is another of its kind or what follows.
func extensionHeader(next layers.IPProtocol, n int) []byte {
	b := make([]byte, 8*n)
	b[0], b[1] = byte(next), byte(n-1)
	b[2], b[3] = 1, byte(8*n-4) // PadN
	return b
}

// routingHeader has so many segments left (RFC 8200 section 4.4).
func routingHeader(next layers.IPProtocol, n int, left byte) []byte {
	b := extensionHeader(next, n)
	b[2], b[3] = 4, left
	return b
}

const (
	hopByHop, routing, fragmentHeader, destinationOptions = layers.IPProtocolIPv6HopByHop,
		layers.IPProtocolIPv6Routing, layers.IPProtocolIPv6Fragment, layers.IPProtocolIPv6Destination
)

// The edge skips up to six IPv6 extension headers (RFC 8200 section 4). A packet with more, or with its upper
// layer too far in, passes. Segments that a routing header has left do not matter, as to netfilter.
func TestIPv6Extensions(t *testing.T) {
	atomic := []byte{0, 0, 0, 0, 1, 2, 3, 4} // a fragment that is the whole packet (RFC 6946)
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		if f.client.Is4() {
			return
		}
		for _, test := range []struct {
			name  string
			first layers.IPProtocol
			chain [][]byte
			ours  bool
		}{
			{"hop by hop", hopByHop, [][]byte{extensionHeader(0, 1)}, true},
			{"routing", routing, [][]byte{routingHeader(0, 3, 0)}, true},
			{"routing, segments left", routing, [][]byte{routingHeader(0, 3, 1)}, true},
			{"routing, all segments left", routing, [][]byte{routingHeader(0, 1, 255)}, true},
			{"routing, segments left, behind others", hopByHop, [][]byte{extensionHeader(routing, 1), routingHeader(destinationOptions, 2, 1),
				extensionHeader(0, 1)}, true},
			{"destination options", destinationOptions, [][]byte{extensionHeader(0, 2)}, true},
			{"atomic fragment", fragmentHeader, [][]byte{atomic}, true},
			{"all of them", hopByHop, [][]byte{extensionHeader(destinationOptions, 1), extensionHeader(routing, 2),
				routingHeader(fragmentHeader, 1, 0), append([]byte{byte(destinationOptions)}, atomic[1:]...),
				extensionHeader(0, 1)}, true},
			{"six", destinationOptions, sameHeader(destinationOptions, 6, 1), true},
			{"seven", destinationOptions, sameHeader(destinationOptions, 7, 1), false},
			{"long", destinationOptions, sameHeader(destinationOptions, 2, 27), true},
			{"so long that TCP's checksum is too far in", destinationOptions, sameHeader(destinationOptions, 2, 28), false},
			{"too long", destinationOptions, sameHeader(destinationOptions, 2, 32), false},
		} {
			question := f.question(protocol, toRemote)
			question.extension, question.extensions = test.first, test.chain
			w.forget(t)
			if !test.ours {
				w.ignores(t, at, question.frame(t))
				continue
			}
			own := on(f.own, w.snatPort(t, at, question.frame(t)))
			w.sends(t, at, question.frame(t), question.forwarded(at, own, on(f.remote, targetPort), nodeBMAC))
		}
	})
}

// Segments left do not matter in a quote of an ICMP error and in an encapsulated packet, either.
func TestSegmentsLeftInside(t *testing.T) {
	w := newDSRScene(t)
	f := families[1]
	for _, at := range []hook{atXDP, atIngress} {
		for _, left := range []byte{0, 1} {
			t.Run(fmt.Sprintf("%s/%d", at, left), func(t *testing.T) {
				w.enter(t)
				w.forget(t)
				question := f.question(udp, toRemote)
				own := on(f.own, w.snatPort(t, at, question.frame(t)))
				sent := question.translated(own, on(f.remote, targetPort))
				sent.extension, sent.extensions = routing, [][]byte{routingHeader(0, 1, left)}
				e := icmpError{kind: 1, about: sent, quoted: 16}
				before := w.counts(t)
				got := w.run(t, at, e.frame(t, probe{source: nodeBMAC, target: eth0MAC}, f.remote, f.own))
				if got.Action != model.ActionSend {
					t.Errorf("an error about a packet with %d segments left: action %v", left, got.Action)
				}
				w.counted(t, before, model.ICMPError)
				for _, how := range wrappings {
					w.forget(t)
					question := f.fromBalancer(f.question(udp, toMany+uint16(how.kind)), on(f.local, targetPort))
					question.extension, question.extensions = routing, [][]byte{routingHeader(0, 1, left)}
					frame := how.wrap(t, f, question)
					w.opens(t, at, frame, question.translated(question.from, question.backend))
				}
			})
		}
	}
}

func sameHeader(kind layers.IPProtocol, n, words int) (chain [][]byte) {
	for range n {
		chain = append(chain, extensionHeader(kind, words))
	}
	return chain
}

// A later fragment follows the first one, both ways. One that arrives before the first is dropped if it is for
// a Service: the stack could never complete it. The stack reassembles what is for the node itself.
func TestFragments(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toRemote)
		question.payload = bytes.Repeat([]byte("0123456789"), 10)
		backend := on(f.remote, targetPort)
		parts := question.fragments(t, 0x77, 32)
		w.drops(t, at, parts[1], model.DropFragment)
		unused := question
		unused.to = on(f.unused, 80)
		w.drops(t, at, unused.fragments(t, 0x76, 32)[1], model.DropFragment)
		toNode := question
		toNode.to = on(f.own, 80)
		before := w.counts(t)
		w.ignores(t, at, toNode.fragments(t, 0x76, 32)[1])
		w.counted(t, before, model.NotService)
		own := on(f.own, w.snatPort(t, at, parts[0]))
		want := question.forwarded(at, own, backend, nodeBMAC).fragments(t, 0x77, 32)
		for _, i := range []int{0, 3, 1, 2} {
			w.leaves(t, at, parts[i], model.ActionSend, want[i])
		}
		w.drops(t, at, question.fragments(t, 0x78, 32)[1], model.DropFragment) // of another datagram

		answer := reply(backend, own, protocol)
		answer.payload = question.payload
		parts = answer.fragments(t, 0x79, 64)
		want = answer.forwarded(at, question.to, question.from, gatewayMAC).fragments(t, 0x79, 64)
		for i := range parts {
			w.leaves(t, at, parts[i], model.ActionSend, want[i])
		}
		// And for a backend of this node.
		question = f.question(protocol, toLocal)
		question.payload = answer.payload
		parts = question.fragments(t, 0x80, 64)
		want = question.translated(question.from, on(f.local, targetPort)).fragments(t, 0x80, 64)
		for i := range parts {
			w.leaves(t, at, parts[i], model.ActionPass, want[i])
		}
		answer = reply(on(f.local, targetPort), question.from, protocol)
		answer.payload = question.payload
		parts = answer.fragments(t, 0x81, 64)
		want = answer.translated(question.to, question.from).fragments(t, 0x81, 64)
		for i := range parts {
			w.leaves(t, atEgress, parts[i], model.ActionPass, want[i])
		}
	})
}

// A later fragment without a first one is dropped if only a Service has its address (a ClusterIP, a load
// balancer's or an external IP), on its way out of the node, too. It passes if the address is the node's, which
// serves a NodePort, or anybody else's.
func TestStrayFragments(t *testing.T) {
	w := newScene(t)
	tables := w.scene()
	type target struct {
		to   netip.Addr
		lost bool
	}
	targets := map[string][]target{}
	for _, f := range families {
		add := func(to netip.Addr, lost bool, keys ...model.FrontendKey) {
			for _, key := range keys {
				tables.Frontends[key] = model.Frontend{Service: 1, Pod: model.Decision{Slots: []uint32{1}}, Outside: model.Decision{Slots: []uint32{1}}}
			}
			targets[f.name] = append(targets[f.name], target{to, lost})
		}
		external := f.client.Next().Next()
		add(f.vip, true)
		add(f.unused, true)
		add(external, true, model.FrontendKey{Address: external, Port: 80, Protocol: tcp}, model.FrontendKey{Address: external, Protocol: f.icmp()})
		add(f.own, false, model.FrontendKey{Address: f.own, Port: 30080, Protocol: tcp})
		add(f.remote, false)
	}
	w.apply(t, tables)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, target := range targets[f.name] {
			p := f.question(protocol, 80)
			p.to, p.payload = on(target.to, 80), make([]byte, 100)
			stray := p.fragments(t, 0x31, 32)[1]
			if target.lost {
				w.drops(t, at, stray, model.DropFragment)
				w.drops(t, atEgress, stray, model.DropFragment)
				continue
			}
			before := w.counts(t)
			w.ignores(t, at, stray)
			w.counted(t, before, model.NotService)
			w.ignores(t, atEgress, stray)
		}
	})
}

// Only the ports of datagrams of flows and for Services are stored: others would evict them. They are valid for
// 30 seconds; after that another datagram may have the identification (RFC 6864 section 4.3).
func TestFragmentPortsAreRemembered(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		others := f.question(protocol, 80)
		others.to, others.payload = on(f.client.Next(), 80), make([]byte, 100)
		first := others.fragments(t, 0x41, 32)[0]
		w.ignores(t, at, first)
		w.ignores(t, atEgress, first)
		if left := w.fragments(t); len(left) > 0 {
			t.Errorf("ports of other datagrams are stored: %v", left)
		}
		question := f.question(protocol, toRemote)
		question.payload = make([]byte, 100)
		parts := question.fragments(t, 0x42, 32)
		own := on(f.own, w.snatPort(t, at, parts[0]))
		want := question.forwarded(at, own, on(f.remote, targetPort), nodeBMAC).fragments(t, 0x42, 32)
		w.ageFragments(t, 29)
		w.leaves(t, at, parts[1], model.ActionSend, want[1])
		w.ageFragments(t, 2)
		w.drops(t, at, parts[2], model.DropFragment)
		w.leaves(t, at, parts[0], model.ActionSend, want[0]) // a new datagram
		w.leaves(t, at, parts[2], model.ActionSend, want[2])
	})
}

// ageFragments makes all stored ports so many seconds older.
func (w *world) ageFragments(t testing.TB, seconds uint32) {
	t.Helper()
	var key [40]byte
	var value [12]byte
	all := map[[40]byte][12]byte{}
	entries := w.maps[bpf.EdgeTCMapFragments].Iterate()
	for entries.Next(&key, &value) {
		binary.NativeEndian.PutUint32(value[4:], binary.NativeEndian.Uint32(value[4:])-seconds)
		all[key] = value
	}
	must(t, entries.Err())
	for key, value := range all {
		w.put(t, bpf.EdgeTCMapFragments, key, value)
	}
}

// What follows a packet in its frame does not belong to it: it is neither counted nor read, and leaves only as padding
// to Ethernet's minimum length, which not every driver adds to what XDP sends.
func TestPadding(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		question := f.question(protocol, toRemote)
		question.flags, question.payload = ack, nil
		for n, padding := range [][]byte{make([]byte, 6), bytes.Repeat([]byte{0xa5}, 18), bytes.Repeat([]byte{0xa5}, 300)} {
			w.forget(t)
			frame := question.frame(t)
			size := 14 + 20 + 8
			if f.client.Is6() {
				size += 20
			}
			if protocol == tcp {
				size += 12
			}
			frame = append(frame[:size:size], padding...)
			own := on(f.own, w.snatPort(t, at, frame))
			want := question.forwarded(at, own, on(f.remote, targetPort), nodeBMAC).frame(t)
			w.leaves(t, at, frame, model.ActionSend, append(want[:size:size], padding[:min(len(padding), max(0, 60-size))]...))
			for tuple, track := range w.records(t, "unreplied") {
				if !track.Reply && track.Bytes != 2*uint64(size-14) {
					t.Errorf("padding %d, %v: %d bytes, want %d", n, tuple, track.Bytes, 2*(size-14))
				}
			}
		}
		if at == atIngress && protocol == tcp { // which cannot be removed, and would become payload
			merged := append(question.frame(t), make([]byte, 2000)...)
			if got := w.runWith(t, at, merged, 0, 1000); got.Action != model.ActionDrop {
				t.Errorf("a merged packet with padding: action %v, want dropped", got.Action)
			}
		}
		// A truncated layer 4 header is not read from the padding.
		short := question.frame(t)
		if f.client.Is4() {
			short[14+3] = 20 + 4
		} else {
			short[14+5] = 4
		}
		before := w.counts(t)
		w.ignores(t, at, short)
		w.counted(t, before, model.Malformed)
	})
}

// Tagged frames belong to another network: to a VLAN device, or to none.
func TestVLANTags(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		frame := f.question(protocol, toRemote).frame(t)
		for _, kind := range []uint16{0x8100, 0x88a8} {
			tagged := append([]byte(nil), frame[:12]...)
			tagged = append(tagged, byte(kind>>8), byte(kind&0xff), 0, 100)
			before := w.counts(t)
			w.ignores(t, at, append(tagged, frame[12:]...))
			w.counted(t, before, model.NotService)
		}
	})
}

// R21: a ClusterIP refuses every IP protocol. The edge passes ARP.
func TestOtherProtocols(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, number := range []byte{1, 2, 47, 50, 58, 59, 136} {
			if number == f.icmp() { // whose checksum is wrong here
				continue
			}
			frame := f.question(protocol, toRemote).frame(t)
			if f.client.Is4() {
				frame[14+9] = number
				repair(frame, 14)
			} else {
				frame[14+6] = number
			}
			w.goes(t, at, frame, model.Rejected)
		}
		frame := f.question(protocol, toRemote).frame(t)
		frame[12], frame[13] = 0x08, 0x06
		w.ignores(t, at, frame)
	})
}

// IPv4-mapped addresses never appear in IPv6 packets (RFC 4942 section 2.2): such a packet is not taken for
// IPv4, which has the same bytes in the tables.
func TestMappedAddresses(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		if f.client.Is6() {
			return
		}
		frame := families[1].question(protocol, toLocal).frame(t)
		source, target := f.client.As16(), f.vip.As16()
		copy(frame[14+8:], source[:])
		copy(frame[14+24:], target[:])
		w.ignores(t, at, frame)
		if left := w.records(t, "unreplied"); len(left) > 0 {
			t.Errorf("conntrack entries of %v", left)
		}
	})
}

// A jumbo frame reaches XDP in several buffers.
func TestJumboFrames(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for _, size := range []int{1500, 3000, 5000, 8900} {
			if at == atIngress && size > 3000 {
				continue // test runs at tc have one page (Linux 6.18)
			}
			t.Run(fmt.Sprint(size), func(t *testing.T) {
				w.enter(t)
				question := f.question(protocol, toRemote)
				question.flags, question.payload = ack, bytes.Repeat([]byte{1, 2, 3, 4, 5}, size/5)
				own := on(f.own, w.snatPort(t, at, question.frame(t)))
				w.sends(t, at, question.frame(t), question.forwarded(at, own, on(f.remote, targetPort), nodeBMAC))
				refused := question
				refused.to = on(f.vip, rejected)
				w.answers(t, at, refused)
			})
		}
	})
}

// A packet that GRO merged may be too long for the length field, which is 0 then (BIG TCP, Linux 6.3; RFC 2675
// for IPv6).
func TestMergedPackets(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		if at != atIngress || protocol != tcp {
			return // XDP runs before GRO
		}
		question := f.question(protocol, toLocal)
		question.flags, question.payload = ack, bytes.Repeat([]byte("x"), 3000)
		frame := question.frame(t)
		want := question.translated(question.from, on(f.local, targetPort)).frame(t)
		for _, b := range [][]byte{frame, want} {
			if f.client.Is4() {
				// The IPv4 header's checksum covers the length.
				lengthless(b[14:34])
			} else {
				b[14+4], b[14+5] = 0, 0
			}
		}
		got := w.runWith(t, at, frame, 0, 1000)
		if got.Action != model.ActionPass || !bytes.Equal(got.Frame, want) {
			t.Errorf("action %v, want %v and the backend's address", got.Action, model.ActionPass)
		}
		before := w.counts(t)
		w.ignores(t, at, frame) // not merged: a length of 0 is wrong
		w.counted(t, before, model.Malformed)
	})
}
