// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"beeline.io/beeline/test/packet/model"
)

// allLocal reports whether a decision has no backend of another node.
func (g *generator) allLocal(d model.Decision) bool {
	return !slices.ContainsFunc(d.Slots, func(id uint32) bool { return !g.tables.Backends[id].Local && id != absentBackend })
}

// neighbour reports whether an address is that of a node next to this one.
func (g *generator) neighbour(a netip.Addr) bool {
	return a == families[0].balancer() || a == families[1].balancer()
}

// wrapped is a packet as a balancer, or somebody else, sends it to a backend's node: for a backend of the
// Service, or for another one.
func (g *generator) wrapped(t model.Tuple) []byte {
	f := families[0]
	if t.Source.Is6() {
		f = families[1]
	}
	if frontend, ok := g.tables.Frontends[model.FrontendKey{Address: t.Destination, Port: t.DestinationPort, Protocol: t.Protocol}]; ok && frontend.NodePort && g.chance(50) {
		t.Destination = pick(g, f.balancer(), f.balancer(), f.balancer().Next())
	}
	backend := g.backendFor(t, f)
	balancer := pick(g, f.balancer(), f.balancer(), f.balancer(), f.balancer(), f.client, f.pod, f.own)
	inner := g.encode(t)
	var b []byte
	switch g.IntN(3) {
	case 0:
		b = g.outer(backend.Addr(), balancer, map[bool]byte{true: 4, false: 41}[t.Source.Is4()], inner[14:])
	case 1:
		size := len(backend.Addr().AsSlice())
		geneve := slices.Concat([]byte{byte(8+size) / 4, 0x40}, inner[12:14], []byte{0, 0, 0, 0, 0xff, 0xbe, 0x81, byte(4+size) / 4},
			binary.BigEndian.AppendUint16(nil, backend.Port()), []byte{0, 0}, backend.Addr().AsSlice(), inner[14:])
		udpHeader := binary.BigEndian.AppendUint16([]byte{0xc0, 0, 0x17, 0xc1}, uint16(8+len(geneve)))
		b = g.outer(pick(g, f.own, f.own, backend.Addr()), balancer, udp, slices.Concat(udpHeader, []byte{0, 0}, geneve))
	default:
		if g.chance(10) {
			t.Source = pick(g, f.balancer(), f.pod)
		}
		b = g.withOption(t, backend)
		inner = b
	}
	if g.chance(10) { // but not in the destination: the model has no routes to neighbours
		at := pick(g, 14+g.IntN(12), min(len(b)-1, 54+g.IntN(60)), 12+g.IntN(4))
		b[at] = byte(g.Uint32())
		if g.chance(80) {
			repair(b, 14)
			repair(b, len(b)-len(inner)+14)
		}
	}
	return b
}

// backendFor is a backend of the frontend, most of the time; else any of the family.
func (g *generator) backendFor(t model.Tuple, f family) netip.AddrPort {
	frontend, ok := g.tables.Frontends[model.FrontendKey{Address: t.Destination, Port: t.DestinationPort, Protocol: t.Protocol}]
	ids := slices.Concat(frontend.Pod.Slots, frontend.Outside.Slots)
	if !ok || len(ids) == 0 || g.chance(15) {
		return netip.AddrPortFrom(pick(g, f.local, f.local.Next(), f.remote, f.noRoute), pick(g, 8080+uint16(g.IntN(3)), g.port()))
	}
	backend, ok := g.tables.Backends[pick(g, ids...)]
	if !ok {
		return on(f.local, targetPort)
	}
	return on(backend.Address, backend.Port)
}

// outer puts a header before a packet.
func (g *generator) outer(to, from netip.Addr, protocol byte, inside []byte) []byte {
	b := append(append([]byte(nil), eth0MAC[:]...), nodeBMAC[:]...)
	ecn := pick[byte](g, 0, 0, 0, 1, 2, 3)
	if to.Is4() {
		ip := []byte{4<<4 | 5, ecn, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0}
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(inside)))
		ip = slices.Concat(ip, from.AsSlice(), to.AsSlice())
		binary.BigEndian.PutUint16(ip[10:], checksum(0, ip))
		return slices.Concat(b, []byte{8, 0}, ip, inside)
	}
	ip := []byte{6 << 4, ecn << 4, 0, 0, 0, 0, protocol, 64}
	binary.BigEndian.PutUint16(ip[4:], uint16(len(inside)))
	return slices.Concat(b, []byte{0x86, 0xdd}, ip, from.AsSlice(), to.AsSlice(), inside)
}

// withOption sends a packet to a backend, with the original destination in an option.
func (g *generator) withOption(t model.Tuple, backend netip.AddrPort) []byte {
	asked := t
	t.Destination, t.DestinationPort = backend.Addr(), backend.Port()
	b := g.encode(t)
	what := append(binary.BigEndian.AppendUint16(nil, asked.DestinationPort), asked.Destination.AsSlice()...)
	if t.Source.Is4() {
		if b[14]&15 > 13 {
			return b
		}
		b = slices.Concat(b[:34], []byte{158, 8}, what, b[34:])
		ip := b[14 : 14+int(b[14]&15)*4+8]
		ip[0] += 2
		binary.BigEndian.PutUint16(ip[2:], binary.BigEndian.Uint16(ip[2:])+8)
		repair(b, 14)
		if g.chance(2) {
			return spoil(b, 14, uint16(1+g.IntN(0xffff)))
		}
		return b
	}
	b = slices.Concat(b[:54], []byte{b[20], 2, 0x5e, 18}, what, []byte{1, 0}, b[54:])
	b[20] = 60
	binary.BigEndian.PutUint16(b[18:], binary.BigEndian.Uint16(b[18:])+24)
	return b
}
