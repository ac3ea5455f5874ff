// SPDX-License-Identifier: Apache-2.0

package testrun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Frame is what the prelude writes (FRAME_LENGTH in bench/bpf/frame.h): a complete Ethernet frame, padded with
// payload.
type Frame [80]byte

const (
	EthernetLength = 14
	hopsOfFrames   = 64

	FlagSYN, FlagACK = 0x02, 0x10
)

// Segment is a packet's source and destination.
type Segment struct {
	From, To netip.AddrPort
	Protocol uint8
	Flags    byte   // of TCP
	Sequence uint32 // of TCP
	// Outer has the addresses of an outer IP packet (RFC 2003), if any, of IPv4.
	Outer [2]netip.Addr
}

func (s Segment) String() string {
	return fmt.Sprintf("protocol %d, %s to %s", s.Protocol, s.From, s.To)
}

// Frame is the segment in bytes, with all checksums.
func (s Segment) Frame(source, target [6]byte) (f Frame) {
	copy(f[0:], target[:])
	copy(f[6:], source[:])
	ip := f[EthernetLength:]
	if s.Outer[0].IsValid() {
		headerIPv4(ip, s.Outer[0], s.Outer[1], unix.IPPROTO_IPIP)
		ip = ip[20:]
	}
	var l4 []byte
	if s.From.Addr().Is4() {
		l4 = ip[20:]
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
		headerIPv4(ip, s.From.Addr(), s.To.Addr(), s.Protocol)
	} else {
		l4 = ip[40:]
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IPV6)
		ip[0], ip[6], ip[7] = 0x60, s.Protocol, hopsOfFrames
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
		copy(ip[8:], s.From.Addr().AsSlice())
		copy(ip[24:], s.To.Addr().AsSlice())
	}
	binary.BigEndian.PutUint16(l4, s.From.Port())
	binary.BigEndian.PutUint16(l4[2:], s.To.Port())
	check := l4[6:]
	if s.Protocol == unix.IPPROTO_TCP {
		l4[12], l4[13] = 5<<4, s.Flags
		binary.BigEndian.PutUint32(l4[4:], s.Sequence)
		check = l4[16:]
	} else {
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	}
	sum := ^Sum(l4, s.pseudoHeader(len(l4)))
	if sum == 0 && s.Protocol == unix.IPPROTO_UDP {
		sum = 0xffff // 0 means no checksum (RFC 768)
	}
	binary.BigEndian.PutUint16(check, sum)
	return f
}

// headerIPv4 writes the header of the packet in the rest of a frame.
func headerIPv4(ip []byte, from, to netip.Addr, protocol uint8) {
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, hopsOfFrames, protocol
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], to.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^Sum(ip[:20], 0))
}

// pseudoHeader is the pseudo header's part of layer 4's checksum.
func (s Segment) pseudoHeader(length int) uint32 {
	sum := Sum(s.From.Addr().AsSlice(), uint32(s.Protocol)+uint32(length))
	return uint32(Sum(s.To.Addr().AsSlice(), uint32(sum)))
}

// Sum adds words in ones' complement (RFC 1071).
func Sum(b []byte, sum uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// ParseFrame parses a frame's segment and hops, and refuses one with wrong checksums.
func ParseFrame(f []byte) (s Segment, hops byte, err error) {
	if len(f) < len(Frame{})-20 { // after decapsulation it lacks its outer header
		return s, 0, fmt.Errorf("a frame of %d bytes", len(f))
	}
	ip := f[EthernetLength:]
	kind, is4 := binary.BigEndian.Uint16(f[12:]), ip[0]>>4 == 4
	if kind != unix.ETH_P_IP && kind != unix.ETH_P_IPV6 || is4 != (kind == unix.ETH_P_IP) {
		return s, 0, fmt.Errorf("a frame of type %#x, version %d", kind, ip[0]>>4)
	}
	if is4 && ip[9] == unix.IPPROTO_IPIP {
		outer := [2]netip.Addr{netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))}
		if Sum(ip[:20], 0) != 0xffff {
			return s, 0, errors.New("wrong checksum of the outer header")
		}
		s, hops, err = parsePacket(ip[20:])
		s.Outer = outer
		return s, hops, err
	}
	return parsePacket(ip)
}

// parsePacket does the same from the IP header on.
func parsePacket(ip []byte) (s Segment, hops byte, err error) {
	var from, to netip.Addr
	var l4 []byte
	if len(ip) < 40 {
		return s, 0, fmt.Errorf("a packet of %d bytes", len(ip))
	}
	if ip[0]>>4 == 4 {
		header := int(ip[0]&15) * 4
		l4 = ip[header:]
		if Sum(ip[:header], 0) != 0xffff || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) {
			return s, 0, errors.New("wrong checksum or length of the IP header")
		}
		from, to = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		s.Protocol, hops = ip[9], ip[8]
	} else {
		l4 = ip[40:]
		if int(binary.BigEndian.Uint16(ip[4:])) != len(l4) {
			return s, 0, errors.New("wrong length in the IPv6 header")
		}
		from, to = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		s.Protocol, hops = ip[6], ip[7]
	}
	if len(l4) < 20 {
		return s, 0, fmt.Errorf("%d bytes of layer 4", len(l4))
	}
	s.From = netip.AddrPortFrom(from, binary.BigEndian.Uint16(l4))
	s.To = netip.AddrPortFrom(to, binary.BigEndian.Uint16(l4[2:]))
	if s.Protocol == unix.IPPROTO_TCP {
		s.Flags, s.Sequence = l4[13], binary.BigEndian.Uint32(l4[4:])
	}
	if Sum(l4, s.pseudoHeader(len(l4))) != 0xffff {
		return s, 0, fmt.Errorf("%s: wrong checksum", s)
	}
	return s, hops, nil
}

// FrameSet is a range of the table of frames.
type FrameSet struct {
	First, Count uint32
	Resized      bool   // packets get another length
	Rest         []byte // of each packet, behind the frame
}

// Part is the set's first frames.
func (s FrameSet) Part(count uint32) FrameSet {
	return FrameSet{First: s.First, Count: min(s.Count, count), Rest: s.Rest}
}

// Turned exchanges source and destination of segments.
func Turned(all []Segment) []Segment {
	for i, s := range all {
		all[i].From, all[i].To = s.To, s.From
	}
	return all
}
