// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// normalised is what two labs without any shortcut differ in. Nothing else is excused.
var normalised = []struct {
	what, why string
	// apply changes a packet to what is compared; keep false: it is not compared at all.
	apply func(s *side, a *arrival, p *seen) (keep bool)
}{
	{"neighbour discovery, group membership", "the kernel's timers decide when they are sent, not the frames of the test", dropOwnTraffic},
	{"MAC addresses", "each lab draws its own: the devices that have them are compared", nameDevices},
	{"the identification of IPv4 headers that the node makes", "random (RFC 6864 section 4.1): of ICMP errors and of tunnels' outer headers", forgetID},
}

// seen is what is compared of an arrival.
type seen struct {
	end      string
	kind     uint8
	from, to string // devices
	tag      uint16
	vnet     vnetHeader
	status   uint32
	bytes    string // from the EtherType on, or from the IP header at a device without MAC addresses
}

// normalise returns what is compared of an arrival; false: nothing.
func (s *side) normalise(a arrival) (seen, bool) {
	p := seen{end: a.end.String(), kind: a.kind, vnet: a.vnet, status: a.status & compared}
	if a.status&unix.TP_STATUS_VLAN_VALID != 0 {
		p.tag = a.vlan
	}
	for _, n := range normalised {
		if !n.apply(s, &a, &p) {
			return p, false
		}
	}
	p.bytes = string(a.frame)
	return p, true
}

// compared are the states of an arrival that are compared.
const compared = unix.TP_STATUS_VLAN_VALID | unix.TP_STATUS_CSUMNOTREADY | unix.TP_STATUS_CSUM_VALID | unix.TP_STATUS_GSO_TCP

const ethernetHeader = 14

// packetOf is the packet of a frame from the IP header on; nil if it has none.
func packetOf(frame []byte) []byte {
	if len(frame) < ethernetHeader {
		return nil
	}
	at := ethernetHeader
	kind := binary.BigEndian.Uint16(frame[12:])
	if kind == unix.ETH_P_8021Q && len(frame) >= at+4 {
		kind, at = binary.BigEndian.Uint16(frame[16:]), at+4
	}
	switch {
	case kind == unix.ETH_P_IP && len(frame) >= at+20, kind == unix.ETH_P_IPV6 && len(frame) >= at+40:
		return frame[at:]
	}
	return nil
}

// Numbers of protocols and ICMPv6 messages that dropOwnTraffic knows (RFC 4443, 4861, 2710, 3810).
const (
	protocolIGMP     = 2
	listenerQuery    = 130
	listenerDone     = 132
	routerSolicit    = 133
	redirectMessage  = 137
	listenerReportV2 = 143
)

func dropOwnTraffic(_ *side, a *arrival, _ *seen) bool {
	p := packetOf(a.frame)
	switch {
	case p == nil:
		return false
	case p[0]>>4 == 4:
		return p[9] != protocolIGMP
	}
	next, at := p[6], 40
	if next == unix.IPPROTO_HOPOPTS && len(p) >= at+8 {
		next, at = p[at], at+8+8*int(p[at+1])
	}
	if next != unix.IPPROTO_ICMPV6 || len(p) <= at {
		return true
	}
	kind := p[at]
	return kind != listenerReportV2 && (kind < listenerQuery || kind > listenerDone) && (kind < routerSolicit || kind > redirectMessage)
}

func nameDevices(s *side, a *arrival, p *seen) bool {
	if len(a.frame) < ethernetHeader {
		return true
	}
	p.to, p.from = s.deviceOf(a.frame[:6]), s.deviceOf(a.frame[6:12])
	a.frame = a.frame[12:]
	return true
}

func (s *side) deviceOf(mac net.HardwareAddr) string {
	if name := s.names[string(mac)]; name != "" {
		return name
	}
	return mac.String()
}

// forgetID acts after nameDevices. The checksum of the header is compared as right or wrong.
func forgetID(s *side, a *arrival, _ *seen) bool {
	p := packetOf(append(make([]byte, 12), a.frame...))
	if p == nil || p[0]>>4 != 4 || !s.ownHeader(p) {
		return true
	}
	header := p[:min(len(p), int(p[0]&15)*4)]
	right := sum(header) == 0xffff
	clear(header[4:6])
	clear(header[10:12])
	if !right {
		header[10] = 1
	}
	a.frame = append(a.frame[:len(a.frame)-len(p)], p...)
	return true
}

// ownHeader reports whether the node made an IPv4 header: those of ICMP errors and of tunnels have its address.
func (s *side) ownHeader(p []byte) bool {
	from := net.IP(p[12:16])
	if !from.Equal(net.IP(s.Host(nodeA).Addr4.AsSlice())) {
		return false
	}
	return p[9] != unix.IPPROTO_TCP
}

// A Difference is a frame after which other packets arrived in one lab than in the other.
type Difference struct {
	Frame   Frame
	Cached  bool // the frame came a moment after an equal one
	Layout  string
	Changes []string // made at the node
	Got     [2][]seen
}

// Kind says how they differ.
func (d Difference) Kind() string {
	shortcut, stack := ends(d.Got[0]), ends(d.Got[1])
	switch {
	case len(shortcut) > len(stack) && subset(stack, shortcut):
		return Passes
	case len(shortcut) < len(stack) && subset(shortcut, stack):
		return Drops
	case slices.Equal(shortcut, stack):
		return Other
	}
	return Elsewhere
}

// Kinds of differences.
const (
	Passes    = "the shortcut passes what the stack drops"
	Drops     = "the shortcut drops what the stack passes"
	Elsewhere = "packets arrive elsewhere"
	Other     = "packets are other ones"
)

// ends are the ends of arrivals, sorted.
func ends(all []seen) (names []string) {
	for _, p := range all {
		names = append(names, p.end)
	}
	slices.Sort(names)
	return names
}

func subset(small, large []string) bool {
	for _, name := range small {
		if !slices.Contains(large, name) {
			return false
		}
	}
	return true
}

func (d Difference) String() string {
	var b strings.Builder
	state := "cold"
	if d.Cached {
		state = "cached"
	}
	fmt.Fprintf(&b, "%s, layout %s, %s", d.Kind(), d.Layout, state)
	if len(d.Changes) > 0 {
		fmt.Fprintf(&b, ", after %s", strings.Join(d.Changes, " + "))
	}
	fmt.Fprintf(&b, "\n  frame %s\n", d.Frame)
	for i, name := range sides {
		if len(d.Got[i]) == 0 {
			fmt.Fprintf(&b, "  %-8s: nothing arrives\n", name)
		}
		for _, p := range d.Got[i] {
			fmt.Fprintf(&b, "  %-8s: %s\n", name, p)
		}
	}
	if len(d.Got[0]) == 1 && len(d.Got[1]) == 1 {
		b.WriteString(firstDifference(d.Got[0][0].bytes, d.Got[1][0].bytes))
	}
	return b.String()
}

// firstDifference describes where two packets begin to differ.
func firstDifference(a, b string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("  octet %d of the packet: %x and %x\n", i-2, a[i:min(len(a), i+24)], b[i:min(len(b), i+24)])
		}
	}
	return ""
}

func (p seen) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %s, %s to %s, type %d", p.end, p.from, p.to, p.kind)
	if p.tag != 0 || p.status&unix.TP_STATUS_VLAN_VALID != 0 {
		fmt.Fprintf(&b, ", tag %#x", p.tag)
	}
	fmt.Fprintf(&b, ", checksum and segments %+v, status %#x", p.vnet, p.status)
	if len(p.bytes) < 2 {
		return b.String()
	}
	frame := append(make([]byte, 12), p.bytes...)
	for _, layer := range gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).Layers()[1:] {
		b.WriteString("; " + describe(layer))
	}
	return fmt.Sprintf("%s; %d octets", &b, len(p.bytes)-2)
}

// describe is a layer in short.
func describe(layer gopacket.Layer) string {
	switch l := layer.(type) {
	case *layers.IPv4:
		return fmt.Sprintf("IPv4 %s to %s, TTL %d, TOS %#x, ID %d, %s, offset %d, length %d", l.SrcIP, l.DstIP, l.TTL, l.TOS, l.Id, l.Flags, l.FragOffset*8, l.Length)
	case *layers.IPv6:
		return fmt.Sprintf("IPv6 %s to %s, hop limit %d, class %#x, length %d", l.SrcIP, l.DstIP, l.HopLimit, l.TrafficClass, l.Length)
	case *layers.TCP:
		return fmt.Sprintf("TCP %d to %d, seq %d", l.SrcPort, l.DstPort, l.Seq)
	case *layers.UDP:
		return fmt.Sprintf("UDP %d to %d", l.SrcPort, l.DstPort)
	case *layers.ICMPv4:
		return fmt.Sprintf("ICMP %s, rest %#04x%04x", l.TypeCode, l.Id, l.Seq)
	case *layers.ICMPv6:
		return fmt.Sprintf("ICMPv6 %s", l.TypeCode)
	}
	return layer.LayerType().String()
}
