// SPDX-License-Identifier: Apache-2.0

package testrun

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Kinds of direct server return, as in the annotation.
const (
	DSRIPIP   = "ipip"
	DSRGeneve = "geneve"
	DSROpt    = "opt"
)

// A Journey is how a balancer has sent a packet.
type Journey struct {
	From, To netip.Addr     // of the outer header; with an option, of the packet itself
	Named    netip.AddrPort // Geneve: the backend; option: the client's original destination
}

// The layouts of bpf/encap/wire.h, written down a second time.
const (
	genevePort     = 6081
	frontendOption = 158
)

// geneveHeader is the constant part of the header: three words of options, critical ones, IPv4 inside, no
// network; class 0xffbe, type 0x81, two words.
var geneveHeader = []byte{3, 0x40, 8, 0, 0, 0, 0, 0, 0xff, 0xbe, 0x81, 2}

// ParseDirect parses a packet that was sent to a backend with DSR: the inner packet, and its journey. It
// refuses any other. Geneve and options are those of IPv4.
func ParseDirect(kind string, f []byte) (s Segment, hops byte, j Journey, err error) {
	if len(f) < EthernetLength+60 {
		return s, 0, j, fmt.Errorf("a frame of %d bytes", len(f))
	}
	ip := f[EthernetLength:]
	if binary.BigEndian.Uint16(f[12:]) == unix.ETH_P_IPV6 {
		j.From, j.To = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		if kind != DSRIPIP || ip[6] != unix.IPPROTO_IPV6 || int(binary.BigEndian.Uint16(ip[4:])) != len(ip)-40 {
			return s, 0, j, fmt.Errorf("a packet with the IPv6 header %x", ip[:40])
		}
		s, hops, err = parsePacket(ip[40:])
		return s, hops, j, err
	}
	header := int(ip[0]&15) * 4
	if ip[0]>>4 != 4 || header < 20 || Sum(ip[:header], 0) != 0xffff || int(binary.BigEndian.Uint16(ip[2:])) != len(ip) {
		return s, 0, j, fmt.Errorf("a packet with the IPv4 header %x", ip[:20])
	}
	j.From, j.To = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	l4, udp := ip[header:], binary.BigEndian.Uint16(ip[header+2:]) == genevePort
	switch {
	case kind == DSRIPIP && header == 20 && ip[9] == unix.IPPROTO_IPIP:
		s, hops, err = parsePacket(l4)
	case kind == DSRGeneve && header == 20 && ip[9] == unix.IPPROTO_UDP && udp && bytes.Equal(l4[8:20], geneveHeader):
		j.Named = netip.AddrPortFrom(netip.AddrFrom4([4]byte(l4[24:])), binary.BigEndian.Uint16(l4[20:]))
		s, hops, err = parsePacket(l4[28:])
	case kind == DSROpt && header == 28 && ip[20] == frontendOption && ip[21] == 8:
		j.Named = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[24:])), binary.BigEndian.Uint16(ip[22:]))
		s, hops, err = parsePacket(ip)
	default:
		err = fmt.Errorf("a packet that begins with %x", ip[:60])
	}
	return s, hops, j, err
}
