// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/cluster/service"
)

func isICMP(p service.Protocol) bool { return p == service.ICMP || p == service.ICMPv6 }

// frameOf builds a client's first packet (a SYN, an empty datagram, an INIT or an echo request) with an
// Ethernet header for a device.
func frameOf(e Ends, device net.HardwareAddr) []byte {
	const hops = 64
	l4 := firstOf(e)
	source, destination := e.Source.Addr().AsSlice(), e.Destination.Addr().AsSlice()
	frame := make([]byte, 14, 14+60+len(l4))
	copy(frame, device) // nil for a device without a MAC address
	frame[6] = 2        // source MAC: locally administered
	if e.Source.Addr().Is4() {
		binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
		ip := make([]byte, 20)
		ip[0], ip[8], ip[9] = 0x45, hops, byte(e.Protocol)
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
		copy(ip[12:], source)
		copy(ip[16:], destination)
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		return slices.Concat(frame, ip, l4)
	}
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IPV6)
	ip := make([]byte, 8, 40)
	ip[0], ip[6], ip[7] = 0x60, byte(e.Protocol), hops
	binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
	return slices.Concat(frame, ip, source, destination, l4)
}

// firstOf builds the transport header, with a valid checksum.
func firstOf(e Ends) (l4 []byte) {
	at := 0 // offset of the checksum
	switch e.Protocol {
	case service.TCP:
		l4, at = make([]byte, 20), 16
		l4[12], l4[13] = 5<<4, 2 // header length, SYN
		binary.BigEndian.PutUint16(l4[14:], 65535)
	case service.UDP:
		l4, at = make([]byte, 8), 6
		binary.BigEndian.PutUint16(l4[4:], 8)
	case service.SCTP:
		return initOf(e)
	case service.ICMP:
		l4 = []byte{8, 0, 0, 0, 0, 1, 0, 1} // identifier 1, sequence 1
		binary.BigEndian.PutUint16(l4[2:], checksum(l4))
		return l4
	case service.ICMPv6:
		l4, at = []byte{128, 0, 0, 0, 0, 1, 0, 1}, 2
	}
	if !isICMP(e.Protocol) {
		binary.BigEndian.PutUint16(l4[0:], e.Source.Port())
		binary.BigEndian.PutUint16(l4[2:], e.Destination.Port())
	}
	pseudo := slices.Concat(e.Source.Addr().AsSlice(), e.Destination.Addr().AsSlice(), []byte{0, byte(e.Protocol), byte(len(l4) >> 8), byte(len(l4))})
	binary.BigEndian.PutUint16(l4[at:], checksum(append(pseudo, l4...)))
	return l4
}

// initOf builds an SCTP packet with one INIT chunk (RFC 9260 section 3.3.2).
func initOf(e Ends) []byte {
	const initLength = 20
	l4 := make([]byte, 12+initLength)
	binary.BigEndian.PutUint16(l4[0:], e.Source.Port())
	binary.BigEndian.PutUint16(l4[2:], e.Destination.Port())
	l4[12], l4[15] = 1, initLength
	binary.BigEndian.PutUint32(l4[16:], 1)     // initiate tag
	binary.BigEndian.PutUint32(l4[20:], 65535) // receiver window
	l4[25], l4[27] = 1, 1                      // outbound and inbound streams
	binary.BigEndian.PutUint32(l4[28:], 1)     // initial TSN
	binary.LittleEndian.PutUint32(l4[8:], crc32.Checksum(l4, crc32.MakeTable(crc32.Castagnoli)))
	return l4
}

// checksum computes the Internet checksum of an even number of bytes (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
