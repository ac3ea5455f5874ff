// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/packet/model"
)

// ping is an ICMP message with its addresses, and type and code for each IP version.
type ping struct {
	probe
	kind, code byte // ICMPv6's type is 120 more
	payload    string
}

// ping is the client's ping of the Service's address.
func (f family) ping(payload string) ping {
	return ping{probe{from: on(f.client, 0), to: on(f.vip, 0), protocol: f.icmp(), hops: 63}, 8, 0, payload}
}

// reply is the echo reply: same identifier, sequence number and payload, with the addresses swapped.
func (p ping) reply() ping {
	p.from, p.to, p.hops = p.to, p.from, 64
	p.source, p.target = eth0MAC, gatewayMAC
	if p.kind = 0; p.protocol == model.ICMPv6 {
		p.kind = 9
	}
	return p
}

// message is the packet from its ICMP header on.
func (p ping) message(t testing.TB, network gopacket.NetworkLayer) []gopacket.SerializableLayer {
	t.Helper()
	const id, sequence = 0xbee1, 0x1234
	if p.protocol == model.ICMP {
		return []gopacket.SerializableLayer{
			&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(p.kind, p.code), Id: id, Seq: sequence}, gopacket.Payload(p.payload)}
	}
	header := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(p.kind+120, p.code)}
	must(t, header.SetNetworkLayerForChecksum(network))
	return []gopacket.SerializableLayer{header, gopacket.Payload(append(binary.BigEndian.AppendUint32(nil, id<<16|sequence), p.payload...))}
}

func (p ping) frame(t testing.TB) []byte {
	t.Helper()
	network := p.network()
	all := []gopacket.SerializableLayer{p.ethernet(), network.(gopacket.SerializableLayer)}
	if len(p.extensions) > 0 && p.protocol == model.ICMPv6 {
		header := slices.Clone(p.extensions[0])
		header[0] = byte(p.transportType())
		all = append(all, gopacket.Payload(header))
	}
	return serialize(t, append(all, p.message(t, network)...)...)
}

// other runs a message that nobody here answers.
func (w *world) other(t testing.TB, at hook, frame []byte) {
	t.Helper()
	before := w.counts(t)
	w.ignores(t, at, frame)
	w.counted(t, before, model.NotService)
}

// A ping of a Service's address is answered with the bytes that arrived, however few hops it has left: byte for
// byte what another encoder writes.
func TestEcho(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for n, payload := range []string{"", "a", "abcdefgh", string(bytes.Repeat([]byte{0xff}, 57)), string(bytes.Repeat([]byte("0123456789"), 140))} {
			asked := f.ping(payload)
			asked.hops = byte(1 + 60*n)
			before := w.counts(t)
			w.leaves(t, at, asked.frame(t), model.ActionSend, asked.reply().frame(t))
			w.counted(t, before, model.Echoed)
		}
		asked := f.ping("of a pod")
		asked.from = on(f.pod, 0)
		w.leaves(t, at, asked.frame(t), model.ActionSend, asked.reply().frame(t))
		if n := len(w.records(t, halfOpen)) + len(w.records(t, tracks)); n > 0 {
			t.Errorf("%d conntrack entries of pings", n)
		}
	})
}

// The reply's checksum is that of a full computation (RFC 1071), whatever the payload: for every value of a
// word, and for zeros.
func TestEchoChecksum(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		at4, pseudo := 14+20, []byte(nil)
		if f.client.Is6() {
			at4 += 20
		}
		for _, rest := range []int{0, 1, 52, 1300} { // zeros behind the word; with 52 and less Ethernet's padding, too
			asked := f.ping(string(make([]byte, 2+rest)))
			frame := asked.frame(t)
			clear(frame[at4+4:])
			message := frame[at4 : at4+8+2+rest]
			want := asked.reply().frame(t)
			copy(want[at4+4:], frame[at4+4:])
			answer := want[at4 : at4+len(message)]
			if f.client.Is6() { // the pseudo header's sum stays the same: source and destination are swapped
				pseudo = slices.Concat(f.client.AsSlice(), f.vip.AsSlice(), []byte{0, model.ICMPv6, byte(len(message) >> 8), byte(len(message))})
			}
			step := 1
			if rest > 0 {
				step = 251 // the edges: 0 is among them
			}
			for word := 0; word < 1<<16; word += step {
				for _, m := range [][]byte{message, answer} {
					binary.BigEndian.PutUint16(m[8:], uint16(word))
					m[2], m[3] = 0, 0
					binary.BigEndian.PutUint16(m[2:], checksum(0, slices.Concat(pseudo, m)))
				}
				got := w.run(t, at, frame)
				if got.Action != model.ActionSend || !bytes.Equal(got.Frame[12:], want[12:]) {
					t.Fatalf("word %#04x, %d zeros: action %v, checksum %x, want %x", word, rest, got.Action, got.Frame[at4+2:at4+4], want[at4+2:at4+4])
				}
			}
		}
	})
}

// A request with a wrong checksum is left to the stack, which discards it, and so is one at an address that refuses
// pings.
func TestEchoOfDamagedRequest(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		at4 := 14 + 20
		if f.client.Is6() {
			at4 += 20
		}
		defer w.apply(t, w.scene())
		for _, payload := range []string{"even", "uneven!", strings.Repeat("0123456789", 140)} {
			for _, echo := range []bool{true, false} {
				tables := w.scene()
				if !echo {
					delete(tables.Frontends, model.FrontendKey{Address: f.vip, Protocol: f.icmp()})
				}
				w.apply(t, tables)
				frame := f.ping(payload).frame(t)
				for _, octet := range []int{0, len(payload)} {
					frame[at4+7+octet] ^= 0x10
					before := w.counts(t)
					w.ignores(t, at, frame)
					w.counted(t, before, model.Malformed)
					frame[at4+7+octet] ^= 0x10
				}
			}
		}
	})
}

// Not answered: other messages, other addresses, packets with options, and classes of clients or sources for
// which the address does not answer. A ClusterIP refuses all of these (R21).
func TestNoEcho(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		defer w.apply(t, w.scene())
		for _, kind := range []byte{0, 3, 5, 7, 9, 11, 13} {
			asked := f.ping("payload")
			if asked.kind = kind; (kind == 3 || kind == 5 || kind == 11) && f.client.Is4() || kind == 13 && f.client.Is6() {
				w.other(t, at, asked.frame(t)) // an error, or neighbour discovery
				continue
			}
			w.goes(t, at, asked.frame(t), model.Rejected) // R21
		}
		asked := f.ping("payload")
		asked.code = 1
		w.goes(t, at, asked.frame(t), model.Rejected)
		for _, to := range []netip.Addr{f.unused, f.vip.Next()} {
			asked.to = on(to, 0)
			w.drops(t, at, asked.frame(t), model.DropNoService)
		}
		for _, to := range []netip.Addr{f.own, f.local, f.loopback()} {
			asked := f.ping("payload")
			asked.to = on(to, 0)
			w.other(t, at, asked.frame(t))
		}
		asked = f.ping("payload")
		asked.ipOptions = []layers.IPv4Option{{OptionType: 7, OptionLength: 7, OptionData: []byte{4, 0, 0, 0, 0}}, {OptionType: 1}}
		asked.extension, asked.extensions = layers.IPProtocolIPv6Destination, [][]byte{extensionHeader(0, 1)}
		w.goes(t, at, asked.frame(t), model.Rejected)
		w.ignores(t, atEgress, f.ping("the node's own").frame(t))

		tables := w.scene()
		key := model.FrontendKey{Address: f.vip, Protocol: f.icmp()}
		tables.Frontends[key] = model.Frontend{Service: 99, SourceSet: 7, Pod: model.Decision{Verdict: model.Pass}, Outside: model.Decision{Verdict: model.Answer}}
		w.apply(t, tables)
		asked = f.ping("admitted")
		w.leaves(t, at, asked.frame(t), model.ActionSend, asked.reply().frame(t))
		asked.from = on(f.client.Next(), 0)
		w.drops(t, at, asked.frame(t), model.DropSource)
		tables.Frontends[key] = model.Frontend{Service: 99, Pod: model.Decision{Verdict: model.Pass}, Outside: model.Decision{Verdict: model.Answer}}
		w.apply(t, tables)
		asked.from = on(f.pod, 0)
		w.goes(t, at, asked.frame(t), model.Rejected)
		delete(tables.Frontends, key)
		w.apply(t, tables)
		w.goes(t, at, f.ping("nobody serves").frame(t), model.Rejected)
		delete(tables.Frontends, model.FrontendKey{Address: f.vip})
		tables.Services = nil
		w.apply(t, tables)
		w.other(t, at, f.ping("nobody's ClusterIP").frame(t))
	})
}

// A fragmented request is dropped, and a truncated one passes; both are counted.
func TestEchoInPieces(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		asked := f.ping(string(make([]byte, 100)))
		network := asked.network()
		message := serialize(t, asked.message(t, network)...)
		for _, piece := range []struct{ from, to int }{{0, 64}, {64, len(message)}} {
			w.drops(t, at, asked.piece(t, message, piece.from, piece.to), model.DropFragment)
		}
		whole := asked.frame(t)
		headers := len(whole) - len(message)
		for _, length := range []int{len(whole) - 1, headers + 9, max(headers+7, 14+40)} {
			before := w.counts(t)
			w.ignores(t, at, whole[:length])
			w.counted(t, before, model.Malformed)
		}
	})
}

// piece is a fragment of a message: bytes `from` to `to`, `from` being a multiple of 8.
func (p ping) piece(t testing.TB, message []byte, from, to int) []byte {
	t.Helper()
	more := to < len(message)
	switch ip := p.network().(type) {
	case *layers.IPv4:
		ip.Id, ip.FragOffset = 77, uint16(from/8)
		if more {
			ip.Flags = layers.IPv4MoreFragments
		}
		return serialize(t, p.ethernet(), ip, gopacket.Payload(message[from:to]))
	case *layers.IPv6:
		ip.NextHeader = layers.IPProtocolIPv6Fragment
		header := binary.BigEndian.AppendUint32([]byte{byte(p.transportType()), 0, byte(from >> 8), byte(from)}, 77)
		if more {
			header[3] |= 1
		}
		return serialize(t, p.ethernet(), ip, gopacket.Payload(header), gopacket.Payload(message[from:to]))
	}
	return nil
}

// The sum that a device computed stays correct.
func TestEchoSummedUp(t *testing.T) {
	w := newScene(t)
	needs.Kernel(t, needs.SummedTestRuns)
	for _, f := range families {
		w.enter(t)
		for _, payload := range []string{"even", "uneven!"} {
			if got := w.runWith(t, atIngress, f.ping(payload).frame(t), bpfTestChecksumComplete, 0); got.Action != model.ActionSend {
				t.Errorf("%s: action %v, want %v", f.name, got.Action, model.ActionSend)
			}
		}
	}
}
