// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"net/netip"
	"slices"

	"github.com/gopacket/gopacket/layers"
)

// A kind of frames, made from plain datagrams of a flow.
type kind struct {
	name string
	odd  func(*Frame)
}

// kinds are what a stack looks at before it forwards a packet.
var kinds = []kind{
	{"TTL 1", func(f *Frame) { f.TTL = 1 }},
	{"TTL 2", func(f *Frame) { f.TTL = 2 }},
	{"TTL 255", func(f *Frame) { f.TTL = 255 }},
	{"a TOS", func(f *Frame) { f.TOS = 0xb9 }},
	{"options", func(f *Frame) { f.Options = []byte{148, 4, 0, 0} }},
	{"source route option", func(f *Frame) { f.Options = []byte{131, 7, 4, 10, 10, 1, 13, 0} }},
	{"hop-by-hop options", extension(layers.IPProtocolIPv6HopByHop)},
	{"destination options", extension(layers.IPProtocolIPv6Destination)},
	{"routing header", extension(layers.IPProtocolIPv6Routing)},
	{"first fragment", func(f *Frame) { f.DF, f.More, f.Length = false, true, 800 }},
	{"a datagram in fragments", func(f *Frame) { f.DF, f.Length, f.Rest = false, 1200, 800 }},
	{"later fragment", func(f *Frame) { f.DF, f.Offset, f.Length = false, 400, 800 }},
	{"fragment of a merged packet", func(f *Frame) { f.More, f.Length = true, 1400 }},
	{"wrong IPv4 checksum", func(f *Frame) { f.Wrong = wrongIPChecksum }},
	{"wrong UDP checksum", func(f *Frame) { f.Wrong = wrongChecksum }},
	{"wrong TCP checksum", func(f *Frame) { f.Wrong = wrongChecksum; segment(f) }},
	{"wrong ICMP checksum", func(f *Frame) { f.Protocol, f.Wrong = icmp, wrongChecksum }},
	{"longer than its frame", func(f *Frame) { f.Wrong = wrongLength }},
	{"TCP longer than its frame", func(f *Frame) { f.Wrong = wrongLength; segment(f) }},
	{"ICMP longer than its frame", func(f *Frame) { f.Protocol, f.Wrong = icmp, wrongLength }},
	{"padding", func(f *Frame) { f.Length, f.Padding = 4, 18 }},
	{"padding after TCP", func(f *Frame) { segment(f); f.Length, f.Padding = 4, 18 }},
	{"padding after merged TCP segments", func(f *Frame) { segment(f); f.Length, f.Segment, f.Padding = 5000, 1000, 18 }},
	{"no payload", func(f *Frame) { f.Length = 0 }},
	{"partial UDP checksum", func(f *Frame) { f.Partial = true }},
	{"partial TCP checksum", func(f *Frame) { f.Partial = true; segment(f) }},
	{"merged TCP segments", func(f *Frame) { segment(f); f.Length, f.Segment = 20000, 1400 }},
	{"merged TCP segments without DF", func(f *Frame) { segment(f); f.DF, f.Length, f.Segment = false, 5000, 1000 }},
	{"merged datagrams", func(f *Frame) { f.Length, f.Segment = 5000, 1000 }},
	{"merged TCP segments that are too long", func(f *Frame) { segment(f); f.Length, f.Segment = 6000, 1600 }},
	{"merged TCP segments that are too long, without DF", func(f *Frame) { segment(f); f.DF, f.Length, f.Segment = false, 6000, 1600 }},
	{"an acknowledgement", func(f *Frame) { segment(f); f.Length, f.Flags = 0, "A" }},
	{"SYN and FIN", func(f *Frame) { segment(f); f.Length, f.Flags = 0, "SF" }},
	{"a FIN", func(f *Frame) { segment(f); f.Length, f.Flags = 0, "FA" }},
	{"no flags of TCP", func(f *Frame) { segment(f); f.Flags = "" }},
	{"port 0", func(f *Frame) { f.Ports = [2]uint16{} }},
	{"an echo request", func(f *Frame) { f.Protocol = icmp }},
	{"an echo reply", func(f *Frame) { f.Protocol, f.Reply = icmp, true }},
	{"SCTP", protocol(layers.IPProtocolSCTP)},
	{"GRE", protocol(layers.IPProtocolGRE)},
	{"ESP", protocol(layers.IPProtocolESP)},
	{"AH", protocol(layers.IPProtocolAH)},
	{"UDP-Lite", protocol(layers.IPProtocolUDPLite)},
	{"a tag with a priority only", func(f *Frame) { f.VLAN = tag(5 << 13) }},
	{"a tag of another network", func(f *Frame) { f.VLAN = tag(5<<13 | 7) }},
	{"a frame for another pod", func(f *Frame) { f.FrameTo = "a3/eth0" }},
	{"a frame for the receiver", func(f *Frame) { f.FrameTo = "a2/eth0" }},
	{"to itself", func(f *Frame) { f.To = f.From }},
	{"from the unspecified address", source("0.0.0.0", "::")},
	{"from a loopback address", source("127.0.0.1", "::1")},
	{"from a multicast address", source("224.0.0.5", "ff02::5")},
	{"from the broadcast address", source("255.255.255.255", "ff02::1")},
	{"from a link-local address", source("169.254.9.9", "fe80::9")},
	{"from an unused address of the node's pod network", source("10.10.1.99", "fd00:10:1::99")},
	{"from an unused address of the other node's pod network", source("10.10.2.99", "fd00:10:2::99")},
	{"from a pod of the node", source("10.10.1.13", "fd00:10:1::13")},
	{"from the node", source("192.168.100.1", "fd00:100::1")},
	{"to an unused address of the node's pod network", destination("10.10.1.99", "fd00:10:1::99")},
	{"to a multicast address", destination("224.0.0.251", "ff02::fb")},
	{"to the broadcast address", destination("255.255.255.255", "ff02::1")},
}

// kindsOf are the kinds that are compared in a layout.
func kindsOf(l *layout) []kind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return slices.Contains(l.skips, k.name) })
}

// make makes a frame odd.
func (k kind) make(f *Frame) {
	k.odd(f)
	f.Kinds = append(f.Kinds, k.name)
}

// combined are the kinds of a frame, and those that they are together or with its protocol.
func (f Frame) combined() []string {
	all := slices.Clone(f.Kinds)
	add := func(is bool, name string) {
		if is {
			all = append(all, name)
		}
	}
	add(f.Protocol == icmp && !f.Reply, "an echo request")
	add(f.Protocol == icmp && f.Wrong == wrongLength, "ICMP longer than its frame")
	add(f.Protocol == tcp && f.Wrong == wrongChecksum, "wrong TCP checksum")
	add(f.Protocol == udp && f.Wrong == wrongChecksum, "wrong UDP checksum")
	padded := f.Wrong == wrongLength && f.Padding > 0 // which belongs to the packet then
	add(padded && f.Protocol == tcp, "wrong TCP checksum")
	add(padded && f.Protocol == udp, "wrong UDP checksum")
	add(f.Segment > 0 && f.DF, "merged TCP segments that are too long")
	add(f.Segment > 0 && !f.DF, "merged TCP segments that are too long, without DF")
	return all
}

func segment(f *Frame) {
	f.Protocol, f.Flags = tcp, "PA"
}

func tag(priorityAndID uint16) *uint16 { return &priorityAndID }

func extension(p layers.IPProtocol) func(*Frame) { return func(f *Frame) { f.Extension = &p } }

func protocol(p layers.IPProtocol) func(*Frame) {
	return func(f *Frame) { f.Protocol, f.Ports = p, [2]uint16{} }
}

func source(ipv4, ipv6 string) func(*Frame) {
	return func(f *Frame) { f.From = oneOf(f.From, ipv4, ipv6) }
}

func destination(ipv4, ipv6 string) func(*Frame) {
	return func(f *Frame) { f.To = oneOf(f.To, ipv4, ipv6) }
}

// oneOf is the address in the family of another one.
func oneOf(like netip.Addr, ipv4, ipv6 string) netip.Addr {
	if like.Is4() {
		return netip.MustParseAddr(ipv4)
	}
	return netip.MustParseAddr(ipv6)
}

// of returns frames of a kind in new flows of each pair, and the plain frames of the same flows.
func (w *world) of(k kind) (odd, plain []Frame) {
	w.t.Helper()
	port := w.nextPort()
	w.warm(port, false)
	for _, f := range w.flows() {
		frame := f.datagram(port)
		base := frame
		k.make(&frame)
		if frame.Protocol == tcp {
			base = f.segment(port, "PA", 100)
		}
		odd, plain = append(odd, frame), append(plain, base)
	}
	return odd, plain
}
