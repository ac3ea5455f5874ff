// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"net/netip"
)

// sum adds 16-bit words in ones' complement, not folded (RFC 1071).
func sum(start uint64, b []byte) uint64 {
	for len(b) >= 2 {
		start += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		start += uint64(b[0]) << 8
	}
	return start
}

func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// amend is the checksum after some of the bytes under it have changed (RFC 1624, equation 3).
func amend(check []byte, before, after []byte) {
	inverted := make([]byte, len(before))
	for i, b := range before {
		inverted[i] = ^b
	}
	binary.BigEndian.PutUint16(check, ^fold(sum(sum(uint64(^binary.BigEndian.Uint16(check)), inverted), after)))
}

// change is translate without the rest of the frame after an IPv4 fragment, which belongs to the other
// fragments. Ethernet pads frames of less than 60 octets.
func (p *packet) change(to Tuple, hops byte) []byte {
	out := p.translate(to, hops)
	if !p.is6() && p.fragment != whole && l3+p.length >= 60 {
		out = out[:l3+p.length]
	}
	return out
}

// translate gives the packet another tuple, and decreases its hops.
func (p *packet) translate(to Tuple, hops byte) []byte {
	out := append([]byte(nil), p.frame...)
	ip := out[l3:]
	source, destination := to.Source.AsSlice(), to.Destination.AsSlice()
	at := 8
	if !p.is6() {
		at = 12
	}
	n := len(source)
	before := append([]byte(nil), ip[at:at+2*n]...)
	copy(ip[at:], source)
	copy(ip[at+n:], destination)
	after := ip[at : at+2*n]
	if p.is6() {
		ip[7] -= hops
	} else {
		word := []byte{ip[8], ip[9]}
		ip[8] -= hops
		amend(ip[10:12], append(word, before...), append([]byte{ip[8], ip[9]}, after...))
	}
	if p.fragment == laterFragment || p.tuple.Protocol == SCTP {
		return out
	}
	l4 := out[p.l4:]
	before = append(before, l4[:4]...)
	binary.BigEndian.PutUint16(l4, to.SourcePort)
	binary.BigEndian.PutUint16(l4[2:], to.DestinationPort)
	after = append(append([]byte(nil), after...), l4[:4]...)
	if p.tuple.Protocol == TCP {
		amend(l4[16:18], before, after)
		return out
	}
	check := l4[6:8]
	if check[0]|check[1] == 0 {
		return out
	}
	amend(check, before, after)
	if check[0]|check[1] == 0 {
		check[0], check[1] = 0xff, 0xff
	}
	return out
}

// refusal is the reply to a rejected packet, as a whole frame.
func (p *packet) refusal() []byte {
	if p.tuple.Protocol == TCP {
		return p.answer(p.tuple.Destination, TCP, p.reset())
	}
	return p.icmp(p.tuple.Destination, [2]byte{3, 3}, [2]byte{1, 4}, 0)
}

// timeExceeded follows RFC 792, and RFC 4443 section 3.3.
func (p *packet) timeExceeded(from netip.Addr) []byte {
	return p.icmp(from, [2]byte{11, 0}, [2]byte{3, 0}, 0)
}

// packetTooBig follows RFC 1191 section 4, and RFC 4443 section 3.2.
func (p *packet) packetTooBig(mtu int) []byte {
	return p.icmp(p.tuple.Destination, [2]byte{3, 4}, [2]byte{2, 0}, uint32(mtu))
}

// reset follows RFC 9293 section 3.10.7.1.
func (p *packet) reset() []byte {
	asked := p.frame[p.l4:]
	tcp := make([]byte, 20)
	copy(tcp, asked[2:4])
	copy(tcp[2:], asked[:2])
	tcp[12] = 5 << 4
	tcp[13] = rst
	if p.flags&ack != 0 {
		copy(tcp[4:8], asked[8:12])
		return tcp
	}
	tcp[13] |= ack
	length := l3 + p.length - p.l4 - int(asked[12]>>4)*4
	for _, flag := range []byte{syn, fin} {
		if p.flags&flag != 0 {
			length++
		}
	}
	binary.BigEndian.PutUint32(tcp[8:], binary.BigEndian.Uint32(asked[4:])+uint32(length))
	return tcp
}

// icmp is an ICMP error about the packet, with type and code for each IP version. It quotes what fits into 576
// or 1280 bytes (RFC 1812 section 4.3.2.3, RFC 4443 section 3.1).
func (p *packet) icmp(from netip.Addr, v4, v6 [2]byte, rest uint32) []byte {
	kind, most := v4, 576-20-8
	if p.is6() {
		kind, most = v6, 1280-40-8
	}
	message := binary.BigEndian.AppendUint32([]byte{kind[0], kind[1], 0, 0}, rest)
	return p.answer(from, ICMP, append(message, p.frame[l3:l3+min(p.length, most)]...))
}

func (p *packet) answer(from netip.Addr, protocol byte, payload []byte) []byte {
	out := append([]byte(nil), p.frame[6:12]...)
	out = append(out, p.frame[:6]...)
	out = append(out, p.frame[12:14]...)
	to := p.tuple.Source
	var pseudo uint64
	if p.is6() {
		if protocol == ICMP {
			protocol = ICMPv6
		}
		ip := []byte{6 << 4, 0, 0, 0, 0, 0, protocol, 64}
		binary.BigEndian.PutUint16(ip[4:], uint16(len(payload)))
		ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
		pseudo = sum(0, ip[8:])
		out = append(out, ip...)
	} else {
		const dontFragment = 0x40
		ip := []byte{4<<4 | 5, 0, 0, 0, 0, 0, dontFragment, 0, 64, protocol, 0, 0}
		if protocol == ICMP { // an error: its precedence is "internetwork control" (RFC 1812 section 4.3.2.5)
			ip[1], ip[6] = p.frame[l3+1]&0x1e|0xc0, 0
		}
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(payload)))
		ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
		if protocol == TCP {
			pseudo = sum(0, ip[12:])
		}
		binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
		out = append(out, ip...)
	}
	at := 2
	if protocol == TCP {
		at = 16
	}
	if protocol != ICMP {
		pseudo += uint64(protocol) + uint64(len(payload))
	}
	binary.BigEndian.PutUint16(payload[at:], ^fold(sum(pseudo, payload)))
	return append(out, payload...)
}
