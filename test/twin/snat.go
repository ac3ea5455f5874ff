// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// The ports that a node translates clients' ports to are drawn at random, in each lab others. The first packet of a
// flow that arrives at a server tells the port; from then on it is the flow's in both directions, and no other
// flow's. The edge translates also the port of a client whose address it leaves.
type snat struct {
	ports   map[snatFlow]uint16
	clients map[snatPort]uint16
	ended   map[snatFlow]bool // flows that may get another port: a change has ended them, or a frame of their client's port
	ending  bool              // a change is in force that ends flows
}

// A snatFlow is a client's flow, a snatPort the port that it was translated to.
type (
	snatFlow struct {
		client, server netip.Addr // as the server sees them
		protocol       layers.IPProtocol
		port           uint16
	}
	snatPort struct {
		source   netip.Addr
		protocol layers.IPProtocol
		port     uint16
	}
)

func newSNAT() snat {
	return snat{ports: map[snatFlow]uint16{}, clients: map[snatPort]uint16{}, ended: map[snatFlow]bool{}}
}

// translate returns the frame as the server sends it to the port that a lab's node has given to its flow.
func (s *side) translate(f Frame) Frame {
	if s.layout.server == 0 || f.Ports[0] != s.layout.server {
		return f
	}
	if port, ok := s.snat.ports[snatFlow{f.To, f.From, f.Protocol, f.Ports[1]}]; ok {
		f.Ports[1] = port
	}
	return f
}

// ofNoFlow reports whether a server's frame is of no flow that is known in this lab.
func (s *side) ofNoFlow(f Frame) bool {
	if s.layout.server == 0 || f.Ports[0] != s.layout.server {
		return false
	}
	_, known := s.snat.ports[snatFlow{f.To, f.From, f.Protocol, f.Ports[1]}]
	return !known
}

// own is the node's address.
func (s *side) own(v6 bool) netip.Addr {
	if v6 {
		return s.addresses[1]
	}
	return s.addresses[0]
}

// learn notes the port that a client's flow has got, from a packet of it at its server, or in a tunnel. A second port
// for a flow, or a second flow at a port, is an error.
func (s *side) learn(sent Frame, a arrival) error {
	t := transport(innermost(a.packet()))
	if s.layout.server == 0 || sent.Ports[0] == s.layout.server || t == nil || t.to != s.layout.server || t.source != s.own(t.v6) && t.source != sent.From || sent.Protocol != t.protocol {
		return nil
	}
	flow, port := snatFlow{t.source, t.destination, t.protocol, sent.Ports[0]}, snatPort{t.source, t.protocol, t.from}
	if old, ok := s.snat.ports[flow]; ok && old != t.from && !s.snat.ended[flow] && !s.snat.ending {
		return fmt.Errorf("%s: the flow of %s had port %d, and has %d", s.name, sent, old, t.from)
	}
	if old, ok := s.snat.clients[port]; ok && old != sent.Ports[0] && recent(old, sent.Ports[0]) {
		return fmt.Errorf("%s: port %d is of client %d and of %s", s.name, t.from, old, sent)
	}
	if !s.snat.ending {
		delete(s.snat.ended, flow)
	}
	s.snat.ports[flow], s.snat.clients[port] = t.from, sent.Ports[0]
	return nil
}

// recent reports whether a client's port was drawn so shortly before another one that both flows are in use.
func recent(old, client uint16) bool { return (client-old)%15000 < 40 }

// endFlows notes that a change may end all flows, or has done so; endFlow that a frame may end its flow.
func (s *side) endFlows(inForce bool) {
	s.snat.ending = inForce
	for flow := range s.snat.ports {
		s.snat.ended[flow] = true
	}
}

func (s *side) endFlow(f Frame) {
	if f.Protocol != tcp || f.Flags != "" && !strings.ContainsAny(f.Flags, "SRF") {
		return
	}
	for flow := range s.snat.ports {
		if flow.protocol == tcp && (flow.port == f.Ports[0] || flow.port == f.Ports[1]) {
			s.snat.ended[flow] = true
		}
	}
}

// restorePort has the client's own port compared, also in errors of other routers about the server's packets.
func restorePort(s *side, a *arrival, p *seen) bool {
	packet := a.packet()
	if t := transport(innermost(packet)); t != nil && t.to == s.layout.server {
		if client, ok := s.snat.clients[snatPort{t.source, t.protocol, t.from}]; ok {
			if tunnelled(packet) != nil {
				clear(packet[20:22]) // the source port of VXLAN is a hash of the ports inside
			}
			t.restore(t.header[:2], client, p.vnet.Flags&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM == 0)
		}
	}
	message, pseudo := errorMessage(packet)
	if message == nil {
		return true
	}
	if t := transport(message[8:]); t != nil && t.from == s.layout.server {
		if client, ok := s.snat.clients[snatPort{t.destination, t.protocol, t.to}]; ok {
			right := sum(append(pseudo, message...)) == 0xffff
			t.restore(t.header[2:4], client, false)
			clear(t.header[checksums[t.protocol]:][:2]) // of a merged packet it is that of the pseudo header
			clear(message[2:4])
			if right {
				binary.BigEndian.PutUint16(message[2:], ^sum(append(pseudo, message...)))
			}
		}
	}
	return true
}

// restore replaces a port, and updates the checksum.
func (t *transported) restore(port []byte, client uint16, whole bool) {
	old := binary.BigEndian.Uint16(port)
	binary.BigEndian.PutUint16(port, client)
	if whole {
		replaceInSum(t.header[checksums[t.protocol]:], old, client)
	}
}

// checksums are the offsets of the field in the transport header.
var checksums = map[layers.IPProtocol]int{tcp: 16, udp: 6}

// errorMessage is the ICMP message of a packet, if it is an error, and what its checksum covers besides; nil: it is
// none.
func errorMessage(p []byte) (message, pseudo []byte) {
	switch {
	case len(p) >= 20 && p[0]>>4 == 4:
		if header := int(p[0]&15) * 4; p[9] == unix.IPPROTO_ICMP && len(p) > header+8 && isError(p[header]) {
			return p[header:], nil
		}
	case len(p) > 40+8 && p[0]>>4 == 6 && p[6] == unix.IPPROTO_ICMPV6 && p[40] < layers.ICMPv6TypeEchoRequest:
		message = p[40:]
		pseudo = binary.BigEndian.AppendUint32(slices.Clone(p[8:40]), uint32(len(message)))
		return message, binary.BigEndian.AppendUint32(pseudo, unix.IPPROTO_ICMPV6)
	}
	return nil, nil
}

// replaceInSum updates a checksum for a changed word (RFC 1624).
func replaceInSum(field []byte, old, new uint16) {
	total := uint32(^binary.BigEndian.Uint16(field)) + uint32(^old) + uint32(new)
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	binary.BigEndian.PutUint16(field, ^uint16(total))
}

// transported is a packet's transport header, with what identifies its flow.
type transported struct {
	v6                  bool
	protocol            layers.IPProtocol
	source, destination netip.Addr
	from, to            uint16
	header              []byte
}

// transport parses TCP and UDP after the IP headers.
func transport(p []byte) *transported {
	t := &transported{}
	switch {
	case len(p) >= 40 && p[0]>>4 == 6:
		t.v6, t.source, t.destination = true, netip.AddrFrom16([16]byte(p[8:24])), netip.AddrFrom16([16]byte(p[24:40]))
		t.protocol, t.header = skipExtensions(layers.IPProtocol(p[6]), p[40:])
	case len(p) >= 20 && p[0]>>4 == 4 && len(p) >= int(p[0]&15)*4 && binary.BigEndian.Uint16(p[6:])&0x1fff == 0:
		t.source, t.destination = netip.AddrFrom4([4]byte(p[12:16])), netip.AddrFrom4([4]byte(p[16:20]))
		t.protocol, t.header = layers.IPProtocol(p[9]), p[int(p[0]&15)*4:]
	}
	if t.protocol != tcp && t.protocol != udp || len(t.header) < 8 || t.protocol == tcp && len(t.header) < 20 {
		return nil
	}
	t.from, t.to = binary.BigEndian.Uint16(t.header), binary.BigEndian.Uint16(t.header[2:])
	return t
}

// skipExtensions skips the headers that frames may have (kinds).
func skipExtensions(next layers.IPProtocol, p []byte) (layers.IPProtocol, []byte) {
	for len(p) >= 8 {
		switch next {
		case layers.IPProtocolIPv6Fragment:
			if binary.BigEndian.Uint16(p[2:])&^7 != 0 {
				return next, p
			}
			next, p = layers.IPProtocol(p[0]), p[8:]
		case layers.IPProtocolIPv6HopByHop, layers.IPProtocolIPv6Destination, layers.IPProtocolIPv6Routing:
			next, p = layers.IPProtocol(p[0]), p[min(len(p), 8+8*int(p[1])):]
		default:
			return next, p
		}
	}
	return next, p
}
