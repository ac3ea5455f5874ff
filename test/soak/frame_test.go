// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ends are the two ends of a packet.
type ends struct{ from, to netip.AddrPort }

// TCP flags.
const (
	fin, syn, rst, psh, ack = 1, 2, 4, 8, 16
)

// ipPacket puts an IP header before a payload of layer 4.
func ipPacket(from, to netip.Addr, protocol byte, payload []byte) []byte {
	if from.Is4() {
		h := make([]byte, 20, 20+len(payload))
		h[0], h[8], h[9] = 0x45, 64, protocol
		binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
		copy(h[12:], from.AsSlice())
		copy(h[16:], to.AsSlice())
		binary.BigEndian.PutUint16(h[10:], checksum(0, h))
		return append(h, payload...)
	}
	h := make([]byte, 40, 40+len(payload))
	h[0], h[6], h[7] = 0x60, protocol, 64
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	copy(h[8:], from.AsSlice())
	copy(h[24:], to.AsSlice())
	return append(h, payload...)
}

// fragments cuts the payload of an IP packet without options into two fragments with an identification.
func fragments(packet []byte, cut int, id uint32) (all [2][]byte) {
	header := 40
	if packet[0]>>4 == 4 {
		header = 20
	}
	payload := packet[header:]
	cut = min(cut, len(payload)) &^ 7
	for i, part := range [][]byte{payload[:cut], payload[cut:]} {
		offset, more := uint16(i*cut), byte(1-i)
		h := append([]byte(nil), packet[:header]...)
		if header == 20 {
			binary.BigEndian.PutUint16(h[4:], uint16(id))
			binary.BigEndian.PutUint16(h[6:], offset/8|uint16(more)<<13)
			binary.BigEndian.PutUint16(h[2:], uint16(20+len(part)))
			h[10], h[11] = 0, 0
			binary.BigEndian.PutUint16(h[10:], checksum(0, h))
		} else {
			extension := make([]byte, 8)
			extension[0], h[6] = h[6], unix.IPPROTO_FRAGMENT
			binary.BigEndian.PutUint16(extension[2:], offset|uint16(more))
			binary.BigEndian.PutUint32(extension[4:], id)
			binary.BigEndian.PutUint16(h[4:], uint16(8+len(part)))
			h = append(h, extension...)
		}
		all[i] = append(h, part...)
	}
	return all
}

// tcpPacket is a segment without payload.
func tcpPacket(e ends, flags byte, seq, acked uint32) []byte {
	b := make([]byte, 20)
	ports(b, e)
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], acked)
	b[12], b[13] = 5<<4, flags
	binary.BigEndian.PutUint16(b[14:], 64240)
	binary.BigEndian.PutUint16(b[16:], layer4Sum(e, unix.IPPROTO_TCP, b))
	return ipPacket(e.from.Addr(), e.to.Addr(), unix.IPPROTO_TCP, b)
}

func udpPacket(e ends, payload []byte) []byte {
	b := append(make([]byte, 8), payload...)
	ports(b, e)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	sum := layer4Sum(e, unix.IPPROTO_UDP, b)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], sum)
	return ipPacket(e.from.Addr(), e.to.Addr(), unix.IPPROTO_UDP, b)
}

// icmpPacket is an ICMP message, in the numbers of the family.
func icmpPacket(from, to netip.Addr, kind, code byte, rest uint32, payload []byte) []byte {
	b := append(make([]byte, 8), payload...)
	b[0], b[1] = kind, code
	binary.BigEndian.PutUint32(b[4:], rest)
	protocol := byte(unix.IPPROTO_ICMP)
	if from.Is4() {
		binary.BigEndian.PutUint16(b[2:], checksum(0, b))
	} else {
		protocol = unix.IPPROTO_ICMPV6
		binary.BigEndian.PutUint16(b[2:], layer4Sum(ends{netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0)}, protocol, b))
	}
	return ipPacket(from, to, protocol, b)
}

func ports(b []byte, e ends) {
	binary.BigEndian.PutUint16(b, e.from.Port())
	binary.BigEndian.PutUint16(b[2:], e.to.Port())
}

// layer4Sum is the checksum over a pseudo-header and a packet whose checksum is zero.
func layer4Sum(e ends, protocol byte, b []byte) uint16 {
	return checksum(part(part(uint32(protocol)+uint32(len(b)), e.from.Addr().AsSlice()), e.to.Addr().AsSlice()), b)
}

func part(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// checksum is that of RFC 1071.
func checksum(sum uint32, b []byte) uint16 {
	sum = part(sum, b)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
