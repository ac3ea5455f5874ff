// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// normalised is what two labs without any shortcut differ in. Nothing else is excused.
var normalised = []struct {
	what, why string
	// apply changes a packet to what is compared; keep false: it is not compared at all.
	apply func(s *side, a *arrival, p *seen) (keep bool)
}{
	{"ARP, neighbour discovery, group membership, frames of bridges", "the kernel's timers decide when they are sent, not the frames of the test", dropOwnTraffic},
	{"MAC addresses", "each lab draws its own: the devices that have them are compared", nameDevices},
	{"packets of WireGuard", "ciphertext, and messages that its timers send: what comes out of the tunnel is compared", dropCiphertext},
	{"the virtio header's bit for a valid checksum", "the receiver's own state, TP_STATUS_CSUM_VALID, is compared: it includes the bit (skb_csum_unnecessary in Linux)", forgetValid},
	{"the identification of IPv4 headers that the node makes", "random (RFC 6864 section 4.1): of ICMP errors, of replies to echo requests and of tunnels' outer headers", forgetID},
	{"the flow label of ICMPv6 errors and RSTs", "a hash with a secret of the kernel (RFC 6437 section 3), which nobody reads back", forgetFlowLabel},
	{"the identification of IPv6 fragments", "where the node has conntrack, by its rules or by a change, it reassembles the datagram, and the node fragments it with a random one (RFC 7739)", forgetFragmentID},
	{"the checksum of TCP or UDP of merged packets in ICMP errors", "left to the device, and so half done: the stack's conntrack translates it back as if it were whole", forgetQuotedChecksum},
	{"ports of masquerade", "drawn at random: a one-to-one map for each flow", restorePort},
	{"the source port of VXLAN around ICMP errors", "a hash of the socket that sends the error, which is another one in each lab", forgetTunnelPort},
}

// agree reports whether the same has arrived, but for five things. If the stack has verified a checksum on the way,
// as conntrack does, and the shortcut has not, the receiver does: it takes longer, and no wrong packet is received.
// The other way round is a difference. So what conntrack finds invalid for its checksum, and netfilter does not
// translate, the edge and flow offload may forward if the checksum is still wrong where it arrives, as the kernel's
// flowtables do. The stack answers each sender once a second what routes refuse, by a limit that no network
// namespace has of its own (ip_error, net.ipv4.route.error_cost): the shortcut may where the stack is silent. And of
// a merged packet of which only some segments have to be fragmented, the others may overtake these, because
// fragments take the stack. ICMP errors may overtake each other: each names its packet.
func agree(l *layout, got [2][]seen) bool {
	order := byEnd
	if (l.objects != nil || l.learns > 0) && !slices.ContainsFunc(got[1], seen.isDamaged) {
		got[0] = slices.DeleteFunc(slices.Clone(got[0]), seen.isDamaged)
	}
	if slices.ContainsFunc(got[1], seen.isFragment) || slices.ContainsFunc(got[1], seen.isError) {
		order = byContent
	}
	if !slices.ContainsFunc(got[1], seen.isRefusal) {
		got[0] = slices.DeleteFunc(slices.Clone(got[0]), seen.isRefusal)
	}
	shortcut, stack := slices.SortedStableFunc(slices.Values(got[0]), order), slices.SortedStableFunc(slices.Values(got[1]), order)
	return slices.EqualFunc(shortcut, stack, func(shortcut, stack seen) bool {
		if shortcut.status&unix.TP_STATUS_CSUM_VALID == 0 {
			stack.status &^= unix.TP_STATUS_CSUM_VALID
		}
		return shortcut == stack
	})
}

func byEnd(a, b seen) int { return cmp.Compare(a.end, b.end) }

func byContent(a, b seen) int { return cmp.Or(byEnd(a, b), cmp.Compare(a.frame, b.frame)) }

// isRefusal is about ICMP errors of routes: network or host unreachable, administratively prohibited.
func (p seen) isRefusal() bool {
	a := arrival{frame: []byte(p.frame), l3: p.l3}
	ip := a.packet()
	return len(ip) >= 22 && ip[0] == 0x45 && ip[9] == unix.IPPROTO_ICMP && ip[20] == 3 && slices.Contains([]byte{0, 1, 13}, ip[21])
}

// isError is about ICMP errors of both families.
func (p seen) isError() bool {
	a := arrival{frame: []byte(p.frame), l3: p.l3}
	ip := a.packet()
	return isError6(ip) || len(ip) > 20 && ip[0] == 0x45 && ip[9] == unix.IPPROTO_ICMP && slices.Contains([]byte{3, 11, 12}, ip[20])
}

func isError6(ip []byte) bool {
	return len(ip) > 40 && ip[0]>>4 == 6 && ip[6] == unix.IPPROTO_ICMPV6 && ip[40] < layers.ICMPv6TypeEchoRequest
}

// isDamaged reports whether a whole TCP or UDP packet has a checksum that its receiver finds wrong.
func (p seen) isDamaged() bool {
	a := arrival{frame: []byte(p.frame), l3: p.l3}
	ip := a.packet()
	t := transport(ip)
	if t == nil || p.isFragment() || p.status&unix.TP_STATUS_CSUMNOTREADY != 0 {
		return false
	}
	at, start, end := 6, len(ip)-len(t.header), int(binary.BigEndian.Uint16(ip[2:]))
	if t.v6 {
		end = 40 + int(binary.BigEndian.Uint16(ip[4:]))
	}
	if t.protocol == tcp {
		at = 16
	}
	if end > len(ip) || start+at+2 > end || t.v6 && ip[6] == unix.IPPROTO_FRAGMENT {
		return false
	}
	segment := ip[start:end]
	if t.protocol == udp && segment[at]|segment[at+1] == 0 {
		return t.v6
	}
	pseudo := slices.Concat(t.source.AsSlice(), t.destination.AsSlice(), []byte{0, byte(t.protocol), byte(len(segment) >> 8), byte(len(segment))})
	return sum(slices.Concat(pseudo, segment)) != 0xffff
}

// isFragment is about IPv4, which routers fragment.
func (p seen) isFragment() bool {
	a := arrival{frame: []byte(p.frame), l3: p.l3}
	ip := a.packet()
	return ip != nil && ip[0]>>4 == 4 && binary.BigEndian.Uint16(ip[6:])&0x3fff != 0
}

// seen is what is compared of an arrival.
type seen struct {
	end      string
	kind     uint8
	from, to string // devices
	tag      uint16
	vnet     vnetHeader
	status   uint32
	frame    string // without MAC addresses
	l3       bool   // the device has none
}

// normalise returns what is compared of an arrival; false: nothing.
func (s *side) normalise(a arrival) (seen, bool) {
	p := seen{end: a.end.String(), kind: a.kind, vnet: a.vnet, status: a.status & compared, l3: a.l3}
	if a.status&unix.TP_STATUS_VLAN_VALID != 0 {
		p.tag = a.vlan
	}
	for _, n := range normalised {
		if !n.apply(s, &a, &p) {
			return p, false
		}
	}
	p.frame = string(a.frame)
	return p, true
}

// compared are the states of an arrival that are compared.
const compared = unix.TP_STATUS_VLAN_VALID | unix.TP_STATUS_CSUMNOTREADY | unix.TP_STATUS_CSUM_VALID | unix.TP_STATUS_GSO_TCP

const ethernetHeader = 14

// packet is the packet from the IP header on; nil if the frame has none.
func (a *arrival) packet() []byte {
	kind, at := uint16(0), 0
	if !a.l3 {
		if len(a.frame) < ethernetHeader+4 {
			return nil
		}
		kind, at = binary.BigEndian.Uint16(a.frame[12:]), ethernetHeader
		if kind == unix.ETH_P_8021Q {
			kind, at = binary.BigEndian.Uint16(a.frame[16:]), at+4
		}
		if kind != unix.ETH_P_IP && kind != unix.ETH_P_IPV6 {
			return nil
		}
	}
	p := a.frame[at:]
	if len(p) >= 20 && p[0]>>4 == 4 || len(p) >= 40 && p[0]>>4 == 6 {
		return p
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

// minEtherType is the lowest value that is no length (IEEE 802.3).
const minEtherType = 0x600

// etherType is that of a frame which is no IP packet; 0 if it has none.
func (a *arrival) etherType() uint16 {
	if a.l3 || len(a.frame) < ethernetHeader {
		return 0
	}
	return binary.BigEndian.Uint16(a.frame[12:])
}

func dropOwnTraffic(_ *side, a *arrival, _ *seen) bool {
	p := a.packet()
	switch {
	case p == nil:
		kind := a.etherType()
		return kind >= minEtherType && kind != unix.ETH_P_ARP
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
	if a.l3 || len(a.frame) < ethernetHeader {
		return true
	}
	p.to, p.from = s.deviceOf(a.frame[:6]), s.deviceOf(a.frame[6:12])
	clear(a.frame[:12])
	return true
}

func (s *side) deviceOf(mac net.HardwareAddr) string {
	if name := s.names[string(mac)]; name != "" {
		return name
	}
	return mac.String()
}

func forgetValid(_ *side, _ *arrival, p *seen) bool {
	p.vnet.Flags &^= unix.VIRTIO_NET_HDR_F_DATA_VALID
	return true
}

// forgetID has the checksum of the header compared as right or wrong.
func forgetID(s *side, a *arrival, _ *seen) bool {
	for _, p := range [][]byte{a.packet(), tunnelled(a.packet())} {
		if len(p) == 0 || p[0]>>4 != 4 || !s.ownHeader(p) {
			continue
		}
		header := p[:min(len(p), int(p[0]&15)*4)]
		right := sum(header) == 0xffff
		clear(header[4:6])
		clear(header[10:12])
		if !right {
			header[10] = 1
		}
	}
	return true
}

func forgetFragmentID(_ *side, a *arrival, _ *seen) bool {
	p := a.packet()
	if len(p) < 48 || p[0]>>4 != 6 {
		return true
	}
	for next, at := p[6], 40; at+8 <= len(p); next, at = p[at], at+8+8*int(p[at+1]) {
		switch next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			continue
		case unix.IPPROTO_FRAGMENT:
			clear(p[at+4 : at+8])
		}
		break
	}
	return true
}

// forgetFlowLabel is about RSTs that the node sends.
func forgetFlowLabel(s *side, a *arrival, _ *seen) bool {
	const rst = 4
	for _, p := range [][]byte{a.packet(), tunnelled(a.packet())} {
		if len(p) <= 40 || p[0]>>4 != 6 {
			continue
		}
		if t := transport(p); isError6(p) || t != nil && t.protocol == tcp && t.source == s.own(true) && len(p) > 53 && p[53]&rst != 0 {
			p[1] &= 0xf0
			clear(p[2:4])
		}
	}
	return true
}

// forgetQuotedChecksum is about quoted packets that are longer than frames.
func forgetQuotedChecksum(_ *side, a *arrival, _ *seen) bool {
	const longest = 1500
	forget := func(message, quoted []byte, protocol byte) {
		at, ok := map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6}[protocol]
		if ok && len(quoted) >= at+2 {
			clear(message[2:4])
			clear(quoted[at:][:2])
		}
	}
	p := a.packet()
	switch {
	case len(p) > 48 && p[0] == 0x45 && p[9] == unix.IPPROTO_ICMP && p[28] == 0x45 && binary.BigEndian.Uint16(p[30:]) > longest:
		forget(p[20:], p[48:], p[37])
	case len(p) > 88 && isError6(p) && binary.BigEndian.Uint16(p[52:]) > longest:
		forget(p[40:], p[88:], p[54])
	}
	return true
}

// forgetTunnelPort keeps the ports around all packets but ICMP.
func forgetTunnelPort(_ *side, a *arrival, _ *seen) bool {
	inner := tunnelled(a.packet())
	if inner != nil && (inner[0]>>4 == 4 && inner[9] == unix.IPPROTO_ICMP || inner[0]>>4 == 6 && inner[6] == unix.IPPROTO_ICMPV6) {
		clear(a.packet()[20:22])
	}
	return true
}

// tunnelled is the packet inside of VXLAN over IPv4 without options (RFC 7348 section 5); nil if there is none.
func tunnelled(p []byte) []byte {
	const port, inside = 8472, 20 + 8 + 8 + ethernetHeader
	if len(p) < inside+20 || p[0] != 0x45 || p[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(p[22:]) != port {
		return nil
	}
	if inner := p[inside:]; inner[0]>>4 == 4 || inner[0]>>4 == 6 && len(inner) >= 40 {
		return inner
	}
	return nil
}

// innermost is the packet inside of VXLAN, or the packet itself.
func innermost(p []byte) []byte {
	if inner := tunnelled(p); inner != nil {
		return inner
	}
	return p
}

func dropCiphertext(s *side, a *arrival, _ *seen) bool {
	p := a.packet()
	if s.Shape.Network != lab.NetworkWireGuard || p == nil || p[0]>>4 != 4 || p[9] != unix.IPPROTO_UDP || a.l3 {
		return true
	}
	nodes := map[netip.Addr]bool{s.Host("node-a").Addr4: true, s.Host("node-b").Addr4: true}
	return !nodes[netip.AddrFrom4([4]byte(p[12:16]))] || !nodes[netip.AddrFrom4([4]byte(p[16:20]))]
}

// ownHeader reports whether a router made an IPv4 header: that of an ICMP error, of the reply to an echo request, or
// the outer one of the node's tunnel.
func (s *side) ownHeader(p []byte) bool {
	header, own := int(p[0]&15)*4, netip.AddrFrom4([4]byte(p[12:16])) == s.own(false)
	later := binary.BigEndian.Uint16(p[6:])&0x1fff != 0
	switch p[9] {
	case unix.IPPROTO_ICMP:
		return later && own || !later && len(p) > header && (isError(p[header]) || p[header] == layers.ICMPv4TypeEchoReply)
	case unix.IPPROTO_UDP:
		return tunnelled(p) != nil || later && own
	case unix.IPPROTO_IPIP:
		return own
	}
	return false
}

// isError reports whether a type of ICMP messages is of errors (RFC 1122 section 3.2.2).
func isError(kind byte) bool {
	switch kind {
	case layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4TypeTimeExceeded, layers.ICMPv4TypeParameterProblem:
		return true
	}
	return false
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
	for i := range min(len(d.Got[0]), len(d.Got[1])) {
		b.WriteString(firstDifference(d.Got[0][i].frame, d.Got[1][i].frame))
	}
	return b.String()
}

// firstDifference describes where two packets begin to differ.
func firstDifference(a, b string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("  octet %d of the frame: %x and %x\n", i, a[i:min(len(a), i+24)], b[i:min(len(b), i+24)])
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
	for _, layer := range p.layers() {
		b.WriteString("; " + describe(layer))
	}
	return fmt.Sprintf("%s; %d octets", &b, len(p.frame))
}

func (p seen) layers() []gopacket.Layer {
	first := gopacket.LayerType(layers.LayerTypeEthernet)
	if p.l3 {
		first = layers.LayerTypeIPv4
		if p.frame[0]>>4 == 6 {
			first = layers.LayerTypeIPv6
		}
	}
	return gopacket.NewPacket([]byte(p.frame), first, gopacket.Default).Layers()
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
