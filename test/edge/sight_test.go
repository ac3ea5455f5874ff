// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/lab"
)

// The numbers on the wire, of bpf/encap/wire.h.
const (
	genevePort       = 6081
	geneveClass      = 0xffbe
	geneveType       = 0x81
	optionFrontend4  = 158  // IPv4, RFC 4727
	optionFrontend6  = 0x5e // IPv6 destination options, RFC 4727
	headersIPv4      = 20
	headersIPv6      = 40
	dsrOptionLength4 = 8
	dsrOptionLength6 = 18
)

// A sighting is what a captured packet contains: the packet of a client or its reply, and its encapsulation.
type sighting struct {
	device   string // of the fabric at which the packet arrived
	kind     string // of encapsulation, "" for none
	protocol string // tcp, udp, icmp, or empty
	from, to netip.AddrPort
	// outer are the addresses of the outer header (ipip, geneve).
	outer struct{ from, to netip.Addr }
	// told is the backend in Geneve's option, or the frontend in the IP option (opt).
	told      netip.AddrPort
	hops      uint8
	outerHops uint8
	// mtu of ICMP "too big".
	mtu  int
	text string // the whole packet, for messages
}

func (s sighting) String() string {
	return fmt.Sprintf("%s: %s %s %s -> %s, outer %s -> %s, told %s\n%s", s.device, s.kind, s.protocol, s.from, s.to, s.outer.from, s.outer.to, s.told, s.text)
}

// sight parses a packet.
func sight(p *lab.CapturedPacket) (s sighting) {
	packet := p.Layers()
	s.device, s.text = p.Device, packet.String()
	var ends [][2]netip.Addr
	var hops []uint8
	var ports [2]uint16
	for _, layer := range packet.Layers() {
		switch l := layer.(type) {
		case *layers.IPv4:
			ends, hops = append(ends, flowOf(l.NetworkFlow())), append(hops, l.TTL)
			s.kind = ifNested(s.kind, len(ends))
			for _, o := range l.Options {
				if o.OptionType == optionFrontend4 && o.OptionLength == dsrOptionLength4 {
					s.kind, s.told = "opt", toldBy(o.OptionData, 2)
				}
			}
		case *layers.IPv6:
			ends, hops = append(ends, flowOf(l.NetworkFlow())), append(hops, l.HopLimit)
			s.kind = ifNested(s.kind, len(ends))
		case *layers.IPv6Destination:
			for _, o := range l.Options {
				if o.OptionType == optionFrontend6 && o.OptionLength == dsrOptionLength6 {
					s.kind, s.told = "opt", toldBy(o.OptionData, 2)
				}
			}
		case *layers.Geneve:
			for _, o := range l.Options {
				if o.Class == geneveClass && o.Type == geneveType {
					s.kind, s.told = "geneve", toldBy(o.Data, 4)
				}
			}
		case *layers.TCP:
			s.protocol, ports = "tcp", [2]uint16{uint16(l.SrcPort), uint16(l.DstPort)}
		case *layers.UDP:
			s.protocol, ports = "udp", [2]uint16{uint16(l.SrcPort), uint16(l.DstPort)}
		case *layers.ICMPv4:
			s.protocol, ports = "icmp", [2]uint16{}
			if l.TypeCode == layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodeFragmentationNeeded) {
				s.mtu = int(l.Seq)
			}
		case *layers.ICMPv6:
			s.protocol, ports = "icmp", [2]uint16{}
			if l.TypeCode.Type() == layers.ICMPv6TypePacketTooBig && len(l.Payload) >= 4 {
				s.mtu = int(binary.BigEndian.Uint32(l.Payload))
			}
		}
	}
	if len(ends) == 0 {
		return s
	}
	inner := len(ends) - 1
	s.from, s.to, s.hops = netip.AddrPortFrom(ends[inner][0], ports[0]), netip.AddrPortFrom(ends[inner][1], ports[1]), hops[inner]
	if inner > 0 {
		s.outer.from, s.outer.to, s.outerHops = ends[0][0], ends[0][1], hops[0]
	}
	return s
}

// ifNested is the encapsulation of an inner packet, unless it is known already.
func ifNested(kind string, depth int) string {
	if depth == 2 && kind == "" {
		return "ipip"
	}
	return kind
}

func flowOf(f gopacket.Flow) [2]netip.Addr {
	from, _ := netip.AddrFromSlice(f.Src().Raw())
	to, _ := netip.AddrFromSlice(f.Dst().Raw())
	return [2]netip.Addr{from, to}
}

// toldBy reads a port in network byte order and the address at an offset.
func toldBy(b []byte, at int) netip.AddrPort {
	if len(b) < at {
		return netip.AddrPort{}
	}
	addr, _ := netip.AddrFromSlice(b[at:])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(b))
}

// sightings begins to capture packets that arrive at the fabric's devices.
func (w *world) sightings(devices ...string) (seen func() []sighting) {
	w.t.Helper()
	capture, err := w.Host("fabric").Capture(lab.CaptureOptions{
		Devices: devices, Limit: 200_000, Keep: func(p *lab.CapturedPacket) bool { return !p.Sent },
	})
	w.must(err)
	w.t.Cleanup(func() { capture.Stop() })
	return func() (all []sighting) {
		w.t.Helper()
		packets, err := capture.Packets()
		w.must(err)
		for i := range packets {
			all = append(all, sight(&packets[i]))
		}
		return all
	}
}
