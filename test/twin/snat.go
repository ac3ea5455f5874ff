// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// The ports that a node translates clients' ports to are drawn at random, in each lab others. The first packet of a
// flow that arrives at a server tells the port; from then on it is the flow's in both directions, and no other
// flow's.
type snat struct {
	ports   map[snatFlow]uint16
	clients map[snatPort]uint16
}

// A snatFlow is a client's flow, a snatPort the port that it was translated to.
type (
	snatFlow struct {
		v6       bool
		protocol layers.IPProtocol
		client   uint16
	}
	snatPort struct {
		v6       bool
		protocol layers.IPProtocol
		port     uint16
	}
)

// translate returns the frame as the server sends it to the port that a lab's node has given to its flow.
func (s *side) translate(f Frame) Frame {
	if f.Ports[0] != s.layout.server || f.To != s.own(f.To.Is6()) {
		return f
	}
	if port, ok := s.snat.ports[snatFlow{f.To.Is6(), f.Protocol, f.Ports[1]}]; ok {
		f.Ports[1] = port
	}
	return f
}

// own is the node's address.
func (s *side) own(v6 bool) netip.Addr {
	if v6 {
		return s.Host(nodeA).Addr6
	}
	return s.Host(nodeA).Addr4
}

// learn notes the port that a client's flow has got, from a packet of it at its server. A second port for a flow, or a
// second flow at a port, is an error.
func (s *side) learn(sent Frame, a arrival) error {
	t := transport(a.packet())
	if s.layout.server == 0 || sent.Ports[0] == s.layout.server || t == nil || t.to != s.layout.server || t.source != s.own(t.v6) || sent.Protocol != t.protocol {
		return nil
	}
	flow, port := snatFlow{t.v6, t.protocol, sent.Ports[0]}, snatPort{t.v6, t.protocol, t.from}
	if old, ok := s.snat.ports[flow]; ok && old != t.from {
		return fmt.Errorf("%s: the flow of %s had port %d, and has %d", s.name, sent, old, t.from)
	}
	if old, ok := s.snat.clients[port]; ok && old != sent.Ports[0] {
		return fmt.Errorf("%s: port %d is of client %d and of %s", s.name, t.from, old, sent)
	}
	s.snat.ports[flow], s.snat.clients[port] = t.from, sent.Ports[0]
	return nil
}

// restorePort has the client's own port compared.
func restorePort(s *side, a *arrival, p *seen) bool {
	t := transport(a.packet())
	if t == nil || t.source != s.own(t.v6) {
		return true
	}
	client, ok := s.snat.clients[snatPort{t.v6, t.protocol, t.from}]
	if !ok {
		return true
	}
	binary.BigEndian.PutUint16(t.header, client)
	if p.vnet.Flags&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM == 0 {
		at := map[layers.IPProtocol]int{tcp: 16, udp: 6}[t.protocol]
		replaceInSum(t.header[at:], t.from, client)
	}
	return true
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
	v6       bool
	protocol layers.IPProtocol
	source   netip.Addr
	from, to uint16
	header   []byte
}

// transport parses TCP and UDP right after the IP header.
func transport(p []byte) *transported {
	t := &transported{}
	switch {
	case len(p) >= 40 && p[0]>>4 == 6:
		t.v6, t.protocol, t.source, t.header = true, layers.IPProtocol(p[6]), netip.AddrFrom16([16]byte(p[8:24])), p[40:]
	case len(p) >= 20 && p[0]>>4 == 4 && len(p) >= int(p[0]&15)*4 && binary.BigEndian.Uint16(p[6:])&0x1fff == 0:
		t.protocol, t.source, t.header = layers.IPProtocol(p[9]), netip.AddrFrom4([4]byte(p[12:16])), p[int(p[0]&15)*4:]
	}
	if t.protocol != tcp && t.protocol != udp || len(t.header) < 8 || t.protocol == tcp && len(t.header) < 20 {
		return nil
	}
	t.from, t.to = binary.BigEndian.Uint16(t.header), binary.BigEndian.Uint16(t.header[2:])
	return t
}
