// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/packet/model"
)

// lengthless clears an IPv4 header's total length, and its checksum.
func lengthless(ip []byte) {
	sum := uint32(ip[10])<<8 + uint32(ip[11]) + uint32(ip[2])<<8 + uint32(ip[3])
	sum = sum>>16 + sum&0xffff
	ip[2], ip[3], ip[10], ip[11] = 0, 0, byte(sum>>8), byte(sum)
}

// answers runs a packet that must be refused, with a RST or port unreachable.
func (w *world) answers(t testing.TB, at hook, asked probe) {
	t.Helper()
	before := w.counts(t)
	w.leaves(t, at, asked.frame(t), model.ActionSend, asked.refusal(t))
	w.counted(t, before, model.Rejected)
}

// refusal is the frame that refuses a packet (RFC 9293 section 3.10.7.1, RFC 792 and RFC 4443 section 3.1).
func (p probe) refusal(t testing.TB) []byte {
	t.Helper()
	if p.protocol == udp || p.protocol == sctp {
		return p.icmpAnswer(t, p.to.Addr(), [2]uint8{3, 3}, [2]uint8{1, 4}, 0)
	}
	back := p.answer(p.to)
	back.flags = rst | ack
	back.ack = p.seq + uint32(len(p.payload)) + uint32(p.flags&syn)/syn + uint32(p.flags&fin)
	if p.flags&ack != 0 {
		back.flags, back.seq, back.ack = rst, p.ack, 0
	}
	network := back.network()
	s := back.transport(network).(*layers.TCP)
	s.Window = 0
	return plain(serialize(t, back.ethernet(), network.(gopacket.SerializableLayer), s))
}

// answer is a packet back to the sender, along the same path.
func (p probe) answer(from netip.AddrPort) probe {
	back := probe{from: from, to: p.from, protocol: p.protocol, hops: 64, dontFragment: true, source: eth0MAC, target: p.source}
	if p.source == [6]byte{} {
		back.target = gatewayMAC
	}
	return back
}

// plain clears what the programs leave open: identification, flow label, and gopacket's padding.
func plain(frame []byte) []byte {
	if frame[12] == 0x86 {
		frame[15] &= 0xf0
		frame[16], frame[17] = 0, 0
		return frame
	}
	noID(frame[14:34])
	return frame[:14+int(frame[16])<<8+int(frame[17])]
}

// precedence is "internetwork control" in the TOS of ICMP errors (RFC 1812 section 4.3.2.5).
const precedence = 0xc0

// withoutID clears the identification of an ICMP error of a program's own, which is random.
func withoutID(frame []byte) []byte {
	if len(frame) < 34 || frame[12] != 8 || frame[15]&precedence != precedence || frame[20]&0x40 != 0 || frame[23] != model.ICMP {
		return frame
	}
	frame = bytes.Clone(frame)
	noID(frame[14:34])
	return frame
}

// noID clears an IPv4 header's identification, and its checksum.
func noID(ip []byte) {
	sum := uint32(ip[10])<<8 + uint32(ip[11]) + uint32(ip[4])<<8 + uint32(ip[5])
	sum = sum>>16 + sum&0xffff
	ip[4], ip[5], ip[10], ip[11] = 0, 0, byte(sum>>8), byte(sum)
}

// icmpAnswer is an ICMP error about the packet, with type and code for each IP version and the four bytes after
// the checksum. It quotes what fits into 576 bytes (RFC 1812 section 4.3.2.3), or 1280 (RFC 4443 section 3.1).
func (p probe) icmpAnswer(t testing.TB, from netip.Addr, v4, v6 [2]uint8, rest uint32) []byte {
	t.Helper()
	return p.icmpAnswerOf(t, from, v4, v6, rest, 1<<16)
}

// icmpAnswerOf is icmpAnswer by a sender that has no more than so many bytes of the packet.
func (p probe) icmpAnswerOf(t testing.TB, from netip.Addr, v4, v6 [2]uint8, rest uint32, known int) []byte {
	t.Helper()
	quoted := p.frame(t)[14:]
	quoted = quoted[:min(len(quoted), known)]
	back := p.answer(netip.AddrPortFrom(from, 0))
	if from.Is4() {
		back.protocol = model.ICMP
		icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(v4[0], v4[1]), Id: uint16(rest >> 16), Seq: uint16(rest)}
		length := min(len(quoted), int(quoted[2])<<8+int(quoted[3]))
		back.class, back.dontFragment = quoted[1]&0x1e|precedence, false
		return plain(serialize(t, back.ethernet(), back.network().(gopacket.SerializableLayer), icmp,
			gopacket.Payload(quoted[:min(length, 576-20-8)])))
	}
	back.protocol = model.ICMPv6
	network := back.network()
	icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(v6[0], v6[1])}
	must(t, icmp.SetNetworkLayerForChecksum(network))
	quoted = quoted[:min(len(quoted), 1280-40-8)]
	return plain(serialize(t, back.ethernet(), network.(gopacket.SerializableLayer), icmp,
		gopacket.Payload(append(binary.BigEndian.AppendUint32(nil, rest), quoted...))))
}

// R16, R18, R21: what nobody serves is refused at once, whoever the client is.
func TestRefusal(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		asked := f.question(protocol, rejected)
		if protocol == udp {
			w.answers(t, at, asked)
			// The whole packet is quoted, odd lengths included, up to the limit.
			for size := range 1400 {
				if size%64 < 5 || size >= 510 && size < 525 || size >= 1175 && size < 1195 {
					asked.payload = bytes.Repeat([]byte{0xa5}, size)
					w.answers(t, at, asked)
				}
			}
			asked.payload = nil
			w.answers(t, at, asked)
			asked.to = on(f.vip, 9999) // R21: an unknown port
			w.answers(t, at, asked)
			return
		}
		mss := []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 0xb4}}}
		for _, segment := range []probe{
			{flags: syn, seq: 1000},
			{flags: syn, seq: 0xffffffff},
			{flags: syn, seq: 7, tcpOptions: mss},
			{flags: syn, seq: 7, payload: []byte("fast open")},
			{flags: ack, seq: 5, ack: 0xfedcba98},
			{flags: syn | ack, seq: 5, ack: 6},
			{flags: fin | ack, seq: 5, ack: 6, payload: make([]byte, 1000)},
			{flags: ack, seq: 5, payload: []byte("odd")},
			{flags: psh | ack, seq: 5, payload: make([]byte, 999), tcpOptions: mss},
		} {
			segment.from, segment.to = asked.from, asked.to
			w.answers(t, at, segment)
			segment.to = on(f.vip, 9999)
			w.answers(t, at, segment)
		}
	})
}

// The ICMP error quotes options and extension headers of a refused packet. Its own header has none.
func TestRefusalOfOptions(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		for words := 1; words <= 10; words++ {
			asked := f.question(protocol, rejected)
			if f.client.Is4() {
				asked.ipOptions = []layers.IPv4Option{{OptionType: 0x94, OptionLength: uint8(4 * words), OptionData: make([]byte, 4*words-2)}}
			} else {
				asked.extension, asked.extensions = destinationOptions, [][]byte{extensionHeader(0, words)}
			}
			w.answers(t, at, asked)
		}
	})
}

// A RST gets no reply (RFC 9293 section 3.10.7.1), nor do later fragments of a datagram whose first fragment
// got one (RFC 1122 section 3.2.2).
func TestNoAnswer(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		asked := f.question(protocol, rejected)
		if protocol == tcp {
			for _, flags := range []byte{rst, rst | ack, rst | psh} {
				asked.flags = flags
				w.drops(t, at, asked.frame(t), model.Rejected)
			}
			return
		}
		asked.payload = make([]byte, 100)
		parts := asked.fragments(t, 5, 48)
		if got := w.run(t, at, parts[0]); got.Action != model.ActionSend {
			t.Fatalf("the first fragment: action %v, want an answer", got.Action)
		}
		for _, part := range parts[1:] {
			w.drops(t, at, part, model.Rejected)
		}
	})
}
