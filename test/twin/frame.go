// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// A Frame is one Ethernet frame in values that are the same for both labs.
type Frame struct {
	At       string // the layout's point where it is sent
	From, To netip.Addr
	Protocol layers.IPProtocol // TCP, UDP, ICMPv4 (an echo in the family of the addresses), or any other with a payload alone
	Ports    [2]uint16         // of an ICMP echo: identifier and sequence number
	Flags    string            // of TCP: letters of "SAFRPU"
	Seq, Ack uint32
	Reply    bool // of an ICMP echo
	Length   int  // of the payload in octets

	TTL, TOS  uint8 // TTL 0: 64
	ID        uint16
	DF        bool               // of IPv4
	Options   []byte             // of IPv4
	Extension *layers.IPProtocol // an IPv6 header with padding
	Offset    int                // of a fragment, in octets
	More      bool               // fragments follow
	Rest      int                // the rest of the datagram, from this octet on, follows at once

	FrameTo string  // "host/device" whose MAC address it is for; empty: the next hop's
	VLAN    *uint16 // a tag: priority and VID
	Padding int     // octets after the packet
	Wrong   wrong   // what is wrong with it
	Partial bool    // the checksum of TCP or UDP is left to the device
	Segment int     // a merged packet: octets of each segment's payload; implies Partial

	Kinds []string // the kinds that have made it odd
}

// wrong is a fault of a frame.
type wrong string

const (
	wrongIPChecksum wrong = "IPv4 checksum"
	wrongChecksum   wrong = "checksum"
	wrongLength     wrong = "IP length beyond the frame"
)

func (f Frame) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %s: %s %s", f.At, netip.AddrPortFrom(f.From, f.Ports[0]), netip.AddrPortFrom(f.To, f.Ports[1]))
	fmt.Fprintf(&b, " %s %s, %d octets", f.Protocol, f.Flags, f.Length)
	for _, o := range []struct {
		is   bool
		text string
	}{
		{f.Reply, "reply"}, {f.TTL != 0, fmt.Sprintf("TTL %d", f.TTL)}, {f.TOS != 0, fmt.Sprintf("TOS %#x", f.TOS)}, {f.DF, "DF"},
		{f.Options != nil, fmt.Sprintf("options %x", f.Options)}, {f.Extension != nil, "with an extension header"},
		{f.Offset != 0 || f.More, fmt.Sprintf("fragment at %d, more: %t", f.Offset, f.More)},
		{f.Rest != 0, fmt.Sprintf("in fragments of %d and %d octets", f.Rest, f.Length-f.Rest)},
		{f.FrameTo != "", "frame for " + f.FrameTo}, {f.VLAN != nil, "tagged"}, {f.Padding != 0, fmt.Sprintf("%d octets of padding", f.Padding)},
		{f.Wrong != "", "wrong " + string(f.Wrong)}, {f.Partial, "partial checksum"}, {f.Segment != 0, fmt.Sprintf("segments of %d", f.Segment)},
	} {
		if o.is {
			b.WriteString(", " + o.text)
		}
	}
	return b.String()
}

// parts are the frame, or its fragments in the order in which they are sent.
func (f Frame) parts() []Frame {
	if f.Rest == 0 {
		return []Frame{f}
	}
	f.Partial, f.Segment = false, 0 // no sender leaves that of fragments to the device
	first, last := f, f
	first.More, last.Offset = true, f.Rest
	return []Frame{first, last}
}

// vnetHeader is struct virtio_net_hdr.
type vnetHeader struct {
	Flags, GSO            uint8
	HeaderLength, GSOSize uint16
	CsumStart, CsumOffset uint16
}

const vnetHeaderSize = 10

// encode returns the frame with its virtio header. number begins the payload, so that each frame is another one.
func (f Frame) encode(from, to net.HardwareAddr, number uint32) ([]byte, error) {
	eth := &layers.Ethernet{SrcMAC: from, DstMAC: to}
	if f.To.IsMulticast() {
		eth.DstMAC = multicastMAC(f.To)
	}
	all := []gopacket.SerializableLayer{eth}
	kind := &eth.EthernetType
	if f.VLAN != nil {
		tag := &layers.Dot1Q{Priority: uint8(*f.VLAN >> 13), VLANIdentifier: *f.VLAN & 0xfff}
		*kind, kind = layers.EthernetTypeDot1Q, &tag.Type
		all = append(all, tag)
	}
	*kind = layers.EthernetTypeIPv4
	if f.To.Is6() {
		*kind = layers.EthernetTypeIPv6
	}
	head, err := serialize(false, all...)
	if err != nil {
		return nil, err
	}
	head = head[:ethernetHeader+4*(len(all)-1)] // without gopacket's padding
	packet, transport, err := f.packet(number)
	if err != nil {
		return nil, err
	}
	f.damage(packet, transport)
	vnet := f.offload(packet, len(head), transport)
	frame := append(vnet, head...)
	frame = append(frame, packet...)
	return append(frame, make([]byte, f.Padding)...), nil
}

// packet is the packet from the IP header on, and where the transport header begins.
func (f Frame) packet(number uint32) (packet []byte, transport int, err error) {
	body, err := f.body(number)
	if err != nil {
		return nil, 0, err
	}
	if f.Offset > 0 || f.More {
		body = body[min(f.Offset, len(body)):]
		if f.More {
			body = body[:min(cmp.Or(f.Rest, len(body)), len(body))&^7]
		}
	}
	header, err := f.header(len(body))
	return append(header, body...), len(header), err
}

func (f Frame) protocol() layers.IPProtocol {
	if f.Protocol == layers.IPProtocolICMPv4 && f.To.Is6() {
		return layers.IPProtocolICMPv6
	}
	return f.Protocol
}

// header is the IP header with options or extension headers, before a body.
func (f Frame) header(body int) ([]byte, error) {
	ttl := f.TTL
	if ttl == 0 {
		ttl = 64
	}
	if f.To.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: ttl, TOS: f.TOS, Id: f.ID, Protocol: f.protocol(), SrcIP: f.From.AsSlice(), DstIP: f.To.AsSlice(), FragOffset: uint16(f.Offset / 8)}
		if f.DF {
			ip.Flags |= layers.IPv4DontFragment
		}
		if f.More {
			ip.Flags |= layers.IPv4MoreFragments
		}
		if f.Options != nil {
			ip.Options = []layers.IPv4Option{{OptionType: f.Options[0], OptionLength: uint8(len(f.Options)), OptionData: f.Options[2:]}}
		}
		header, err := serialize(true, ip, gopacket.Payload(make([]byte, body)))
		return header[:len(header)-body], err
	}
	ip := &layers.IPv6{Version: 6, HopLimit: ttl, TrafficClass: f.TOS, NextHeader: f.protocol(), SrcIP: f.From.AsSlice(), DstIP: f.To.AsSlice()}
	var more []byte
	if f.Offset > 0 || f.More {
		fragment := []byte{byte(ip.NextHeader), 0, 0, 0, 0, 0, byte(f.ID >> 8), byte(f.ID)}
		offset := uint16(f.Offset)
		if f.More {
			offset |= 1
		}
		binary.BigEndian.PutUint16(fragment[2:], offset)
		more, ip.NextHeader = fragment, layers.IPProtocolIPv6Fragment
	}
	if f.Extension != nil {
		more = append([]byte{byte(ip.NextHeader), 0, 1, 4, 0, 0, 0, 0}, more...) // PadN
		ip.NextHeader = *f.Extension
	}
	header, err := serialize(true, ip, gopacket.Payload(append(more, make([]byte, body)...)))
	return header[:len(header)-body], err
}

// body is what follows the IP headers of the unfragmented packet.
func (f Frame) body(number uint32) ([]byte, error) {
	payload := f.payload(number)
	var network gopacket.NetworkLayer = &layers.IPv4{SrcIP: f.From.AsSlice(), DstIP: f.To.AsSlice(), Protocol: f.protocol()}
	if f.To.Is6() {
		network = &layers.IPv6{SrcIP: f.From.AsSlice(), DstIP: f.To.AsSlice(), NextHeader: f.protocol()}
	}
	switch f.protocol() {
	case layers.IPProtocolTCP:
		tcp := &layers.TCP{SrcPort: layers.TCPPort(f.Ports[0]), DstPort: layers.TCPPort(f.Ports[1]), Seq: f.Seq, Ack: f.Ack, Window: 65535}
		for letter, bit := range map[string]*bool{"S": &tcp.SYN, "A": &tcp.ACK, "F": &tcp.FIN, "R": &tcp.RST, "P": &tcp.PSH, "U": &tcp.URG} {
			*bit = strings.Contains(f.Flags, letter)
		}
		if err := tcp.SetNetworkLayerForChecksum(network); err != nil {
			return nil, err
		}
		return serialize(true, tcp, payload)
	case layers.IPProtocolUDP:
		udp := &layers.UDP{SrcPort: layers.UDPPort(f.Ports[0]), DstPort: layers.UDPPort(f.Ports[1])}
		if err := udp.SetNetworkLayerForChecksum(network); err != nil {
			return nil, err
		}
		return serialize(true, udp, payload)
	case layers.IPProtocolICMPv4:
		kind := uint8(layers.ICMPv4TypeEchoRequest)
		if f.Reply {
			kind = layers.ICMPv4TypeEchoReply
		}
		return serialize(true, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(kind, 0), Id: f.Ports[0], Seq: f.Ports[1]}, payload)
	case layers.IPProtocolICMPv6:
		kind := uint8(layers.ICMPv6TypeEchoRequest)
		if f.Reply {
			kind = layers.ICMPv6TypeEchoReply
		}
		icmp := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(kind, 0)}
		if err := icmp.SetNetworkLayerForChecksum(network); err != nil {
			return nil, err
		}
		return serialize(true, icmp, &layers.ICMPv6Echo{Identifier: f.Ports[0], SeqNumber: f.Ports[1]}, payload)
	}
	return payload, nil
}

// payload is a pattern after the number.
func (f Frame) payload(number uint32) gopacket.Payload {
	p := make([]byte, f.Length)
	for i := range p {
		p[i] = byte(i)
	}
	if len(p) >= 4 {
		binary.BigEndian.PutUint32(p, number)
	}
	return p
}

func serialize(fix bool, all ...gopacket.SerializableLayer) ([]byte, error) {
	buffer := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: fix, ComputeChecksums: fix}, all...)
	return buffer.Bytes(), err
}

func (f Frame) damage(packet []byte, transport int) {
	switch f.Wrong {
	case wrongIPChecksum:
		if f.To.Is4() {
			packet[10] ^= 0x55
		}
	case wrongChecksum:
		if at := f.checksumAt(transport); at > 0 && at < len(packet) {
			packet[at] ^= 0x55
		}
	case wrongLength:
		at := 2
		if f.To.Is6() {
			at = 4
		}
		binary.BigEndian.PutUint16(packet[at:], binary.BigEndian.Uint16(packet[at:])+8)
	}
}

// checksumAt is the offset of the transport's checksum, 0 if it has none.
func (f Frame) checksumAt(transport int) int {
	switch f.Protocol {
	case layers.IPProtocolTCP:
		return transport + 16
	case layers.IPProtocolUDP:
		return transport + 6
	case layers.IPProtocolICMPv4:
		return transport + 2
	}
	return 0
}

// offload is the virtio header. For a checksum that is left to the device it replaces the packet's by that of the
// pseudo header.
func (f Frame) offload(packet []byte, link, transport int) []byte {
	h := vnetHeader{}
	at := f.checksumAt(transport)
	if (f.Partial || f.Segment > 0) && f.Protocol != layers.IPProtocolICMPv4 && at > 0 {
		binary.BigEndian.PutUint16(packet[at:], f.pseudoSum(len(packet)-transport))
		h.Flags = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
		h.CsumStart, h.CsumOffset = uint16(link+transport), uint16(at-transport)
	}
	if f.Segment > 0 && f.Length > f.Segment {
		h.GSO, h.GSOSize, h.HeaderLength = f.gsoType(), uint16(f.Segment), uint16(link+len(packet)-f.Length)
	}
	header, err := binary.Append(nil, binary.NativeEndian, h)
	if err != nil {
		panic(err) // the structure has a fixed size
	}
	return header
}

func (f Frame) gsoType() uint8 {
	switch {
	case f.Protocol == layers.IPProtocolUDP:
		return unix.VIRTIO_NET_HDR_GSO_UDP_L4
	case f.To.Is4():
		return unix.VIRTIO_NET_HDR_GSO_TCPV4
	}
	return unix.VIRTIO_NET_HDR_GSO_TCPV6
}

// pseudoSum is the sum over the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1), not complemented.
func (f Frame) pseudoSum(length int) uint16 {
	b := append(f.From.AsSlice(), f.To.AsSlice()...)
	b = binary.BigEndian.AppendUint32(b, uint32(f.protocol()))
	b = binary.BigEndian.AppendUint32(b, uint32(length))
	return sum(b)
}

// sum is the Internet checksum (RFC 1071), not complemented.
func sum(b []byte) uint16 {
	total := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		total += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		total += uint32(b[len(b)-1]) << 8
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// multicastMAC is as in RFC 1112 section 6.4 and RFC 2464 section 7.
func multicastMAC(to netip.Addr) net.HardwareAddr {
	if to.Is4() {
		a := to.As4()
		return net.HardwareAddr{1, 0, 0x5e, a[1] & 0x7f, a[2], a[3]}
	}
	a := to.As16()
	return net.HardwareAddr{0x33, 0x33, a[12], a[13], a[14], a[15]}
}
