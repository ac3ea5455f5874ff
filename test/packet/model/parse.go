// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"net/netip"
)

// Tuple has the addresses, ports and protocol of a packet.
type Tuple struct {
	Source, Destination         netip.Addr
	SourcePort, DestinationPort uint16
	Protocol                    uint8
}

// Reverse is the tuple of a reply.
func (t Tuple) Reverse() Tuple {
	return Tuple{t.Destination, t.Source, t.DestinationPort, t.SourcePort, t.Protocol}
}

type fragment uint8

const (
	whole fragment = iota
	firstFragment
	laterFragment
)

type parsed uint8

const (
	ours parsed = iota
	other
	malformed
)

// packet is a frame with parsed headers.
type packet struct {
	frame    []byte
	shift    int // of this frame inside the one that contains it
	tuple    Tuple
	l4       int // offset in the frame
	length   int // from the IP header on
	fragment fragment
	id       uint32 // of fragments, in network byte order
	offset   int    // of a fragment, in bytes
	more     bool   // a fragment, and not the last one
	flags    byte   // of TCP; of SCTP those with the same meaning
	hops     byte
	// Of TCP.
	sequence, acknowledged uint32
	payload                int
}

const (
	l3 = 14

	fin, syn, rst, psh, ack, urg, ece, cwr = 1, 2, 4, 8, 16, 32, 64, 128

	// The programs read no headers beyond this offset.
	headersEnd = 512
	extensions = 6
)

func (p *packet) is6() bool { return p.tuple.Source.Is6() }

// at is n bytes of the frame, or nil if it ends before or they are too far in.
func (p *packet) at(offset, n int) []byte {
	if offset+p.shift > headersEnd || offset+n > len(p.frame) {
		return nil
	}
	return p.frame[offset : offset+n]
}

func parse(frame []byte) (packet, parsed) { return parseIn(frame, 0) }

func parseIn(frame []byte, shift int) (packet, parsed) {
	p := packet{frame: frame, shift: shift}
	result := other
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		result = p.parse4()
	case 0x86dd:
		result = p.parse6()
	}
	if result != ours {
		return p, result
	}
	left := l3 + p.length - p.l4
	if l3+p.length > len(frame) || left < 0 {
		return p, malformed
	}
	if p.l4+shift > headersEnd-20 {
		return p, other
	}
	if p.fragment == laterFragment {
		return p, ours
	}
	return p, p.parsePorts(left)
}

func (p *packet) parse4() parsed {
	ip := p.at(l3, 20)
	if ip == nil || ip[0]>>4 != 4 || ip[0]&15 < 5 {
		return malformed
	}
	header := int(ip[0]&15) * 4
	p.tuple.Source = netip.AddrFrom4([4]byte(ip[12:16]))
	p.tuple.Destination = netip.AddrFrom4([4]byte(ip[16:20]))
	p.tuple.Protocol = ip[9]
	p.hops = ip[8]
	p.length = int(binary.BigEndian.Uint16(ip[2:]))
	p.l4 = l3 + header
	if p.length < header || !p.headerSumIsRight(header) {
		return malformed
	}
	p.id = uint32(binary.BigEndian.Uint16(ip[4:]))
	where := binary.BigEndian.Uint16(ip[6:])
	p.offset, p.more = int(where&0x1fff)*8, where&0x2000 != 0
	switch {
	case where&0x1fff != 0:
		p.fragment = laterFragment
	case where&0x2000 != 0:
		p.fragment = firstFragment
	}
	return hasPorts(p.tuple.Protocol)
}

// headerSumIsRight verifies the checksum of an IPv4 header, which must be complete.
func (p *packet) headerSumIsRight(header int) bool {
	last := p.at(l3+header-4, 4)
	return last != nil && fold(sum(0, p.frame[l3:l3+header])) == 0xffff
}

func hasPorts(protocol byte) parsed {
	if protocol == TCP || protocol == UDP || protocol == SCTP {
		return ours
	}
	return other
}

func (p *packet) parse6() parsed {
	ip := p.at(l3, 40)
	if ip == nil || ip[0]>>4 != 6 {
		return malformed
	}
	p.tuple.Source = netip.AddrFrom16([16]byte(ip[8:24]))
	p.tuple.Destination = netip.AddrFrom16([16]byte(ip[24:40]))
	if p.tuple.Source.Is4In6() || p.tuple.Destination.Is4In6() {
		return other
	}
	p.hops = ip[7]
	p.length = 40 + int(binary.BigEndian.Uint16(ip[4:]))
	p.l4 = l3 + 40
	next := ip[6]
	for range extensions {
		after, ok := p.skip(next)
		if !ok {
			break
		}
		next = after
		if p.fragment == laterFragment {
			break
		}
	}
	p.tuple.Protocol = next
	return hasPorts(next)
}

// skip skips one extension header.
func (p *packet) skip(header byte) (next byte, ok bool) {
	switch header {
	case 0, 43, 60:
		extension := p.at(p.l4, 2)
		if extension == nil {
			return 0, false
		}
		p.l4 += 8 * (int(extension[1]) + 1)
		return extension[0], true
	case 44:
		extension := p.at(p.l4, 8)
		if extension == nil {
			return 0, false
		}
		p.l4 += 8
		p.id = binary.BigEndian.Uint32(extension[4:])
		where := binary.BigEndian.Uint16(extension[2:])
		p.offset, p.more = int(where&0xfff8), where&1 != 0
		switch {
		case where&0xfff8 != 0:
			p.fragment = laterFragment
		case where&1 != 0:
			p.fragment = firstFragment
		}
		return extension[0], true
	}
	return 0, false
}

// validFlags are those that the kernel's conntrack does not call invalid, besides others that go with all.
var validFlags = map[byte]bool{
	syn: true, syn | urg: true, syn | ack: true, rst: true, rst | ack: true, fin | ack: true, fin | ack | urg: true, ack: true, ack | urg: true,
}

// parsePorts parses layer 4, which has `left` bytes.
func (p *packet) parsePorts(left int) parsed {
	header := p.at(p.l4, 8)
	if p.tuple.Protocol == SCTP {
		if header = p.at(p.l4, 12); header == nil || left < 16 {
			return malformed
		}
		// INIT begins a flow, SHUTDOWN and SHUTDOWN ACK are one side's end each, ABORT and SHUTDOWN
		// COMPLETE end it.
		p.flags = map[byte]byte{1: syn, 6: rst, 7: fin, 8: fin, 14: rst}[p.frame[p.l4+12]]
	} else if p.tuple.Protocol == TCP {
		header = p.at(p.l4, 20)
		if header == nil || header[12]>>4 < 5 || int(header[12]>>4)*4 > left {
			return malformed
		}
		if p.flags = header[13]; !validFlags[p.flags&^(psh|ece|cwr)] {
			return malformed
		}
		p.sequence, p.acknowledged = binary.BigEndian.Uint32(header[4:]), binary.BigEndian.Uint32(header[8:])
		p.payload = left - int(header[12]>>4)*4
	} else {
		if header == nil || left < 8 {
			return malformed
		}
		length := int(binary.BigEndian.Uint16(header[4:]))
		if length < 8 || p.fragment == whole && length > left {
			return malformed
		}
	}
	p.tuple.SourcePort = binary.BigEndian.Uint16(header)
	p.tuple.DestinationPort = binary.BigEndian.Uint16(header[2:])
	return ours
}

// Ends is the tuple of a whole packet, or of a datagram's first fragment.
func Ends(frame []byte) (Tuple, bool) {
	p, result := parse(frame)
	return p.tuple, result == ours && p.fragment != laterFragment
}
