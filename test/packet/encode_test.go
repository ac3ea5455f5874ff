// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"beeline.io/beeline/test/packet/model"
)

// probe describes a packet; gopacket makes the bytes and the checksums.
type probe struct {
	from, to       netip.AddrPort
	protocol       uint8 // TCP unless set
	flags          byte  // of TCP
	chunk          byte  // of SCTP: its type; payload is its contents
	seq, ack       uint32
	tcpOptions     []layers.TCPOption
	payload        []byte
	noChecksum     bool // UDP over IPv4
	hops           uint8
	class          uint8   // of traffic: DSCP and ECN
	dontFragment   bool    // IPv4
	source, target [6]byte // Ethernet; from the gateway to eth0 unless set
	ipOptions      []layers.IPv4Option
	// Extension headers of IPv6: the type of the first, and the bytes of all. The last one's next header is
	// filled in.
	extension  layers.IPProtocol
	extensions [][]byte
}

const (
	fin, syn, rst, psh, ack = 1, 2, 4, 8, 16

	tcp, udp, sctp = model.TCP, model.UDP, model.SCTP
)

// Chunks of SCTP (RFC 9260 section 3.2).
const (
	sctpData, sctpInit, sctpInitAck, sctpSack = 0, 1, 2, 3
	sctpHeartbeat, sctpAbort, sctpShutdown    = 4, 6, 7
	sctpShutdownAck, sctpCookieEcho           = 8, 10
	sctpCookieAck, sctpShutdownComplete       = 11, 14
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var eth0MAC = [6]byte{2, 0, 0, 0, 1, 0}

func (p probe) network() gopacket.NetworkLayer {
	if p.hops == 0 {
		p.hops = 64
	}
	if p.from.Addr().Is4() {
		var flags layers.IPv4Flag
		if p.dontFragment {
			flags = layers.IPv4DontFragment
		}
		return &layers.IPv4{Version: 4, TTL: p.hops, TOS: p.class, Id: 0x1234, Flags: flags, Protocol: p.transportType(), Options: p.ipOptions,
			SrcIP: p.from.Addr().AsSlice(), DstIP: p.to.Addr().AsSlice()}
	}
	next := p.transportType()
	if len(p.extensions) > 0 {
		next = p.extension
	}
	return &layers.IPv6{Version: 6, HopLimit: p.hops, TrafficClass: p.class, FlowLabel: 0x12345, NextHeader: next,
		SrcIP: p.from.Addr().AsSlice(), DstIP: p.to.Addr().AsSlice()}
}

func (p probe) transportType() layers.IPProtocol {
	if p.protocol == 0 {
		return layers.IPProtocolTCP
	}
	return layers.IPProtocol(p.protocol)
}

func (p probe) transport(network gopacket.NetworkLayer) gopacket.SerializableLayer {
	if p.protocol == udp {
		u := &layers.UDP{SrcPort: layers.UDPPort(p.from.Port()), DstPort: layers.UDPPort(p.to.Port())}
		u.SetNetworkLayerForChecksum(network)
		return u
	}
	if p.protocol == sctp {
		return &layers.SCTP{SrcPort: layers.SCTPPort(p.from.Port()), DstPort: layers.SCTPPort(p.to.Port()), VerificationTag: 0x1234567}
	}
	s := &layers.TCP{SrcPort: layers.TCPPort(p.from.Port()), DstPort: layers.TCPPort(p.to.Port()), Seq: p.seq, Ack: p.ack,
		FIN: p.flags&fin != 0, SYN: p.flags&syn != 0, RST: p.flags&rst != 0, PSH: p.flags&psh != 0,
		ACK: p.flags&ack != 0, Window: 4096, Options: p.tcpOptions}
	s.SetNetworkLayerForChecksum(network)
	return s
}

func (p probe) ethernet() *layers.Ethernet {
	if p.source == [6]byte{} {
		p.source, p.target = gatewayMAC, eth0MAC
	}
	kind := layers.EthernetTypeIPv4
	if p.from.Addr().Is6() {
		kind = layers.EthernetTypeIPv6
	}
	return &layers.Ethernet{SrcMAC: p.source[:], DstMAC: p.target[:], EthernetType: kind}
}

var computed = gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}

// frame is the packet's bytes.
func (p probe) frame(t testing.TB) []byte {
	t.Helper()
	network := p.network()
	b := serialize(t, p.ethernet(), network.(gopacket.SerializableLayer), p.chain(), p.transport(network), p.contents())
	if p.noChecksum {
		at := len(b) - len(p.payload) - 2
		b[at], b[at+1] = 0, 0
	}
	if p.protocol == model.ICMP || p.protocol == model.ICMPv6 {
		sumMessage(b[len(b)-p.length():], network)
	}
	return b
}

// length is that of layer 4: of a header of TCP, which stands for those of protocols without ports, and the payload.
func (p probe) length() int { return 20 + len(p.payload) }

// leaveSum leaves the checksum of a TCP segment or UDP datagram to the device: the field gets the sum of the pseudo
// header. The frame has neither options nor extension headers.
func leaveSum(frame []byte) {
	l4, at, addresses, protocol := 34, 16, frame[26:34], frame[23]
	length := int(binary.BigEndian.Uint16(frame[16:])) - 20
	if frame[12] == 0x86 {
		l4, addresses, protocol, length = 54, frame[22:54], frame[20], int(binary.BigEndian.Uint16(frame[18:]))
	}
	if protocol == udp {
		at = 6
	}
	pseudo := slices.Concat(addresses, []byte{0, protocol, byte(length >> 8), byte(length)})
	binary.BigEndian.PutUint16(frame[l4+at:], ^checksum(0, pseudo))
}

// sumMessage sets the checksum of an ICMP message.
func sumMessage(message []byte, network gopacket.NetworkLayer) {
	var pseudo []byte
	if ip, ok := network.(*layers.IPv6); ok {
		pseudo = slices.Concat(ip.SrcIP, ip.DstIP, []byte{0, model.ICMPv6, byte(len(message) >> 8), byte(len(message))})
	}
	message[2], message[3] = 0, 0
	binary.BigEndian.PutUint16(message[2:], checksum(0, slices.Concat(pseudo, message)))
}

// chain is the extension headers.
func (p probe) chain() (chain gopacket.Payload) {
	for i, header := range p.extensions {
		header = append([]byte(nil), header...)
		if i == len(p.extensions)-1 {
			header[0] = byte(p.transportType())
		}
		chain = append(chain, header...)
	}
	return chain
}

// contents is what follows the header of layer 4.
func (p probe) contents() gopacket.Payload {
	if p.protocol != sctp {
		return p.payload
	}
	length := 4 + len(p.payload)
	chunk := append([]byte{p.chunk, 0, byte(length >> 8), byte(length)}, p.payload...)
	return append(chunk, make([]byte, -length&3)...)
}

func serialize(t testing.TB, all ...gopacket.SerializableLayer) []byte {
	t.Helper()
	return serializeWith(t, computed, all...)
}

// fragments returns the packet's fragments as frames, with at most size bytes of layer 4 each (a multiple of
// 8).
func (p probe) fragments(t testing.TB, id uint32, size int) [][]byte {
	t.Helper()
	network := p.network()
	segment := serialize(t, p.transport(network), p.contents())
	var all [][]byte
	for at := 0; at < len(segment); at += size {
		part, more := segment[at:], false
		if len(part) > size {
			part, more = part[:size], true
		}
		switch ip := p.network().(type) {
		case *layers.IPv4:
			ip.Id, ip.FragOffset = uint16(id), uint16(at/8)
			if more {
				ip.Flags = layers.IPv4MoreFragments
			}
			all = append(all, serialize(t, p.ethernet(), ip, gopacket.Payload(part)))
		case *layers.IPv6:
			ip.NextHeader = layers.IPProtocolIPv6Fragment
			header := binary.BigEndian.AppendUint32([]byte{byte(p.transportType()), 0, byte(at >> 8), byte(at)}, id)
			if more {
				header[3] |= 1
			}
			all = append(all, serialize(t, p.ethernet(), ip, gopacket.Payload(header), gopacket.Payload(part)))
		}
	}
	return all
}

// forwarded is the packet as it leaves for a next hop: XDP writes the Ethernet addresses, after tc the kernel
// does.
func (p probe) forwarded(at hook, from, to netip.AddrPort, next [6]byte) probe {
	p.from, p.to = from, to
	if p.hops == 0 {
		p.hops = 64
	}
	p.hops--
	if at == atXDP {
		p.source, p.target = eth0MAC, next
	}
	return p
}

// translated is the packet as the stack, or the output device, gets it.
func (p probe) translated(from, to netip.AddrPort) probe {
	p.from, p.to = from, to
	return p
}
