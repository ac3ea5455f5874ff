// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// wrapping is the encapsulation of a packet from a balancer.
type wrapping struct {
	frame       []byte // the original frame
	source      netip.Addr
	destination netip.Addr
	kind        DSR
	backend     netip.Addr
	port        uint16 // of the backend; 0: unknown
	ecn         byte   // of the outer header
	chosen      uint32 // the backend's ID
}

// unwrap parses the inner packet, if there is a whole one.
func (p *packet) unwrap(result parsed) (inside packet, w *wrapping, ok bool) {
	w = &wrapping{frame: p.frame, source: p.tuple.Source, destination: p.tuple.Destination, backend: p.tuple.Destination}
	end := l3 + p.length
	ipip := p.tuple.Protocol == 4 && !p.is6() || p.tuple.Protocol == 41 && p.is6()
	switch {
	case p.fragment == whole && ipip:
		w.kind = IPIP
		inside, result = p.inside(p.l4)
	case p.fragment == whole && p.tuple.Protocol == UDP && p.tuple.DestinationPort == 6081:
		w.kind = Geneve
		inside, result = p.geneve(w)
		end = p.l4 + int(binary.BigEndian.Uint16(p.frame[p.l4+4:]))
	default:
		w.kind = Opt
		w.port = p.tuple.DestinationPort
		inside, ok = p.withoutOption()
		return inside, w, ok && result == ours
	}
	if result != ours || end > len(p.frame) || len(p.frame)-len(inside.frame)+l3+inside.length > end {
		return inside, w, false
	}
	w.ecn = ecn(p.frame[l3:])
	return inside, w, true
}

// inside is the packet that begins at an offset of the frame.
func (p *packet) inside(at int) (packet, parsed) {
	if at > len(p.frame) {
		return packet{}, malformed
	}
	return parseIn(append(slices.Clone(p.frame[:l3]), p.frame[at:]...), at-l3)
}

// geneve reads RFC 8926 with one option: class 0xffbe, type 0x81.
func (p *packet) geneve(w *wrapping) (packet, parsed) {
	size, protocol := 4, uint16(0x0800)
	if p.is6() {
		size, protocol = 16, 0x86dd
	}
	b := p.at(p.l4+8, 16+size)
	if b == nil || b[0] != byte(8+size)/4 || b[1]>>6 != 1 || binary.BigEndian.Uint16(b[2:]) != protocol || b[4]|b[5]|b[6] != 0 ||
		b[8] != 0xff || b[9] != 0xbe || b[10] != 0x81 || b[11]&31 != byte(4+size)/4 {
		return packet{}, malformed
	}
	w.port = binary.BigEndian.Uint16(b[12:])
	w.backend, _ = netip.AddrFromSlice(b[16:])
	if w.port == 0 {
		return packet{}, malformed
	}
	return p.inside(p.l4 + 8 + len(b))
}

// withoutOption is the packet without its first option, with the original destination.
func (p *packet) withoutOption() (packet, bool) {
	q, header, n := *p, 20, 8
	if p.is6() {
		header, n = 40, 24
	}
	option := p.at(l3+header, n)
	if option == nil {
		return q, false
	}
	q.frame = append(slices.Clone(p.frame[:l3+header]), p.frame[l3+header+n:]...)
	ip := q.frame[l3:]
	at := 2
	if p.is6() {
		if ip[6] != 60 || option[1] != 2 || option[2] != 0x5e || option[3] != 18 || option[22] != 1 || option[23] != 0 {
			return q, false
		}
		binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])-uint16(n))
		ip[6], at = option[0], 4
	} else {
		if ip[0]&15 < 7 || option[0] != 158 || option[1] != 8 {
			return q, false
		}
		before := append(slices.Clone(ip[:4]), option...)
		ip[0] -= 2
		binary.BigEndian.PutUint16(ip[2:], binary.BigEndian.Uint16(ip[2:])-uint16(n))
		amend(ip[10:12], before, append(slices.Clone(ip[:4]), make([]byte, n)...))
	}
	q.l4, q.length = q.l4-n, q.length-n
	q.tuple.DestinationPort = binary.BigEndian.Uint16(option[at:])
	q.tuple.Destination, _ = netip.AddrFromSlice(option[at+2 : at+2+len(p.tuple.Destination.AsSlice())])
	return q, !q.tuple.Destination.Is4In6()
}

func ecn(ip []byte) byte {
	if ip[0]>>4 == 6 {
		return ip[1] >> 4 & 3
	}
	return ip[1] & 3
}

// join merges the outer header's ECN into the inner packet. It returns false if the outer header reports
// congestion for a packet that is not ECN-capable.
func (p *packet) join(outer byte) bool {
	const notCapable, capable1, capable0, experienced = 0, 1, 2, 3
	ip := p.frame[l3:]
	inner := ecn(ip)
	joined := inner
	switch {
	case inner == notCapable:
		return outer != experienced
	case outer == experienced, inner == capable0 && outer == capable1:
		joined = outer
	}
	if joined == inner {
		return true
	}
	if p.is6() {
		ip[1] = ip[1]&^0x30 | joined<<4
		return true
	}
	before := slices.Clone(ip[:2])
	ip[1] = ip[1]&^3 | joined
	amend(ip[10:12], before, ip[:2])
	return true
}

// open decapsulates a balancer's packet for the steps that follow. If done, r is the packet's fate.
func (v *visit) open(result parsed) (r Result, done bool) {
	inside, w, ok := v.packet.unwrap(result)
	if !ok {
		return Result{}, false
	}
	_, concerned := v.frontendOfBalancer(inside.tuple)
	if track, _ := v.Edge.find(inside.tuple); track != nil && track.Local {
		concerned = true
	}
	may := v.isBalancer(w.source)
	if w.kind == Opt { // clients of a balancer are outside the cluster
		may = covers(v.Balancers, w.source) < 0 && !v.isPod(w.source)
	}
	switch {
	case !concerned && (w.kind == Opt || !may):
		return Result{}, false
	case !may:
		return v.drop(DropSpoofed), true
	case w.kind != Opt && !inside.join(w.ecn):
		return v.pass(Malformed), true
	}
	v.packet, v.wrapped = inside, w
	return Result{}, false
}

// isBalancer reports whether packets from an address may be decapsulated: the node does not send to itself.
func (v *visit) isBalancer(a netip.Addr) bool {
	for _, own := range v.Devices {
		if slices.Contains(own[:], a) {
			return false
		}
	}
	return covers(v.Balancers, a) >= 0
}

// frontendOfBalancer is the frontend at the balancer that the client asked for; a NodePort of the balancer is this
// node's, too.
func (v *visit) frontendOfBalancer(to Tuple) (Frontend, bool) {
	f, ok := v.Tables.find(to)
	if ok || !v.isBalancer(to.Destination) {
		return f, ok
	}
	own := v.Devices[v.device][0]
	if to.Destination.Is6() {
		own = v.Devices[v.device][1]
	}
	f, ok = v.Frontends[FrontendKey{own, to.DestinationPort, to.Protocol}]
	return f, ok && f.NodePort
}

// chosenServes reports whether a flow's backend serves that frontend.
func (v *visit) chosenServes(track *Track) bool {
	f, _ := v.frontendOfBalancer(v.tuple)
	return v.servedBy(f, track)
}

// chosenByBalancer finds the backend that the balancer has chosen.
func (v *visit) chosenByBalancer() (r Result, done bool) {
	f, ok := v.frontendOfBalancer(v.tuple)
	if !ok || v.tuple.Destination.IsLoopback() {
		return v.pass(NotService), true
	}
	var found Backend
	for _, d := range []Decision{f.Pod, f.Outside} {
		slots := slices.Clone(d.Slots)
		if f.Maglev {
			v.SortMembers(slots)
		}
		for _, id := range slots {
			if b, ok := v.Backends[id]; ok && v.wrapped.chosen == 0 && b.Address == v.wrapped.backend && (v.wrapped.port == 0 || b.Port == v.wrapped.port) {
				v.wrapped.chosen, found = id, b
			}
		}
	}
	switch {
	case v.wrapped.kind == Opt && (v.wrapped.chosen == 0 || f.DSR != Opt):
		return v.drop(DropSpoofed), true
	case v.wrapped.chosen == 0:
		return v.drop(DropBackendNotLocal), true
	case !found.Local && v.Route(v.wrapped.destination) != nil:
		return v.pass(NotService), true
	case !found.Local:
		return v.drop(DropBackendNotLocal), true
	}
	return Result{}, false
}

// yields reports whether a flow's entry is ignored, because a balancer says where the packet goes.
func (v *visit) yields(track *Track) bool {
	return v.wrapped != nil && (!track.Local || track.Reply)
}
