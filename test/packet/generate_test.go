// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"slices"

	"beeline.io/beeline/test/packet/model"
)

// generator makes random tables and packets, the same for the same seed.
type generator struct {
	*rand.Rand
	w       *world
	tables  *model.Tables
	clients []model.Tuple // of flows
	replies []model.Tuple // what their backends may send
}

func pick[T any](g *generator, all ...T) T { return all[g.IntN(len(all))] }

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

const absentBackend = 60

// fill makes new tables, with few addresses and ports, so that packets share them.
func (g *generator) fill() {
	g.tables = g.w.tables()
	podsHere := g.chance(30) // behind eth0; they have backends among them
	g.tables.PodsAt[g.w.index["eth0"]] = podsHere
	for i, f := range families {
		g.tables.Balancers = append(g.tables.Balancers, netip.PrefixFrom(f.balancer(), f.balancer().BitLen()-pick(g, 0, 0, 2)).Masked())
		var ids []uint32
		taken := map[netip.AddrPort]bool{}
		for n := range uint32(12) {
			a := pick(g, f.remote, f.remote, f.remote.Next(), f.local, f.local, f.local.Next(), f.behindEth1, f.noNeighbour,
				f.noAddress, f.noRoute, f.narrow)
			id, port := uint32(1+20*i)+n, pick(g, 8080+uint16(g.IntN(3)), g.port())
			if taken[on(a, port)] {
				continue // an endpoint has one ID
			}
			taken[on(a, port)] = true
			g.tables.Backends[id] = model.Backend{Address: a, Port: port,
				Node:  pick(g, netip.Addr{}, f.node, f.node, a, f.client),
				Local: a == f.local || a == f.local.Next() || podsHere && a == f.pod}
			ids = append(ids, id)
		}
		ids = append(ids, absentBackend)
		dsr := []model.DSR{model.SNAT, model.SNAT, model.SNAT, model.IPIP, model.Geneve, model.Opt}
		if g.w.l3 {
			dsr = dsr[:1] // runL3
		}
		for range 24 {
			key := model.FrontendKey{Address: g.service(f), Port: g.port(), Protocol: pick[uint8](g, tcp, udp, sctp)}
			if g.chance(10) {
				key.Port, key.Protocol = 0, 0
			}
			frontend := model.Frontend{
				Service:         uint32(1 + g.IntN(6)),
				AffinitySeconds: pick[uint32](g, 0, 0, 1000),
				SourceSet:       pick[uint32](g, 0, 0, 0, 1, 2),
				Pod:             g.decision(ids), Outside: g.decision(ids),
				Maglev: g.chance(40), NodePort: key.Address == f.own,
				DSR: pick(g, dsr...),
			}
			if !g.w.l3 && g.chance(50) && g.allLocal(frontend.Pod) && g.allLocal(frontend.Outside) {
				frontend.DSR = pick(g, model.SNAT, model.Opt, model.Opt)
			}
			if !g.w.l3 {
				g.history(&frontend, ids)
			}
			g.tables.Frontends[key] = frontend
		}
		for range 4 {
			answer := func() model.Decision {
				return model.Decision{Verdict: pick(g, model.Answer, model.Answer, model.Answer, model.Pass)}
			}
			g.tables.Frontends[model.FrontendKey{Address: g.service(f), Protocol: f.icmp()}] = model.Frontend{
				Service: uint32(1 + g.IntN(6)), SourceSet: pick[uint32](g, 0, 0, 1), Pod: answer(), Outside: answer(),
			}
		}
		for set := range uint32(2) {
			bits := f.client.BitLen() - g.IntN(4)
			g.tables.Ranges[set+1] = append(g.tables.Ranges[set+1], netip.PrefixFrom(f.client, bits).Masked())
		}
	}
}

// history makes a frontend untracked, with a history of any size.
func (g *generator) history(f *model.Frontend, ids []uint32) {
	f.Untracked = f.DSR != model.SNAT && f.AffinitySeconds == 0 && g.chance(60)
	if !g.chance(30) {
		return
	}
	f.Before = pick(g, f.DSR, model.IPIP, model.Geneve, model.Opt)
	for range pick(g, max(1, len(f.Outside.Slots)), 1+g.IntN(4)) {
		f.History = append(f.History, model.Slot{Contested: g.chance(60), Stable: pick(g, 0, pick(g, ids...))})
	}
}

func (g *generator) decision(ids []uint32) model.Decision {
	if g.chance(25) {
		return model.Decision{Verdict: pick(g, model.Pass, model.Reject, model.Reject, model.Drop)}
	}
	var slots []uint32
	for range 1 + g.IntN(4) {
		slots = append(slots, pick(g, ids...))
	}
	return model.Decision{Slots: slots}
}

func (g *generator) service(f family) netip.Addr {
	return pick(g, f.vip, f.vip, f.vip, f.vip.Next(), f.vip.Next(), f.own, f.own, f.unused, f.loopback())
}

func (g *generator) port() uint16 { return pick[uint16](g, 53, 80, 443, 30080) }

// frame is a packet from a client, a backend, or neither.
func (g *generator) frame() []byte {
	var tuple model.Tuple
	switch {
	case len(g.replies) > 0 && g.chance(30):
		tuple = pick(g, g.replies...)
	case len(g.clients) > 0 && g.chance(40):
		tuple = pick(g, g.clients...)
	default:
		f := pick(g, families...)
		tuple = model.Tuple{
			Source:     pick(g, f.client, f.client.Next(), f.client.Next().Next(), f.pod, f.narrowClient),
			SourcePort: 40000 + uint16(g.IntN(8)), Destination: g.service(f), DestinationPort: g.port(),
			Protocol: pick[uint8](g, tcp, tcp, udp, sctp, f.icmp()),
		}
	}
	if !g.w.l3 && g.chance(20) {
		return g.wrapped(tuple)
	}
	b := g.encode(tuple)
	switch {
	case g.chance(10) && !g.neighbour(tuple.Source): // the model has no routes to other neighbours
		for range 1 + g.IntN(3) {
			b[g.IntN(min(len(b), 80))] = byte(g.Uint32())
		}
		if g.chance(80) {
			repair(b, 14)
		}
	case g.chance(3):
		b = b[:14+20+g.IntN(len(b)-33)]
		if b[12] == 0x86 && len(b) < 54 {
			b[12], b[13] = 0x08, 0x06
		}
	case g.chance(5):
		b = append(b, make([]byte, g.IntN(20))...)
	}
	return b
}

// encode makes a packet with correct lengths and checksums, but for a wrong one of an IPv4 header now and then.
func (g *generator) encode(t model.Tuple) []byte {
	segment := g.segment(t)
	b := append(append(append([]byte(nil), eth0MAC[:]...), gatewayMAC[:]...), 8, 0)
	hops := pick[byte](g, 64, 64, 64, 63, 2, 1, 0, 255)
	offset, more := 0, false
	if g.chance(8) {
		if cut := 8 * (1 + g.IntN(8)); cut < len(segment) {
			if more = g.chance(50); more {
				segment = segment[:cut]
			} else {
				segment, offset = segment[cut:], cut
			}
		}
	}
	fragmented, id := more || offset > 0, uint16(g.IntN(4))
	if t.Source.Is4() {
		options := make([]byte, 4*pick(g, 0, 0, 0, 0, 1, 5, 10))
		ip := []byte{4<<4 | byte(5+len(options)/4), byte(g.IntN(256)), 0, 0, 0, byte(id), byte(offset >> 11), byte(offset >> 3), hops, t.Protocol, 0, 0}
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(options)+len(segment)))
		if more {
			ip[6] |= 0x20
		}
		if !fragmented && g.chance(50) {
			ip[6] |= 0x40 // don't fragment
		}
		ip = append(append(append(ip, t.Source.AsSlice()...), t.Destination.AsSlice()...), options...)
		binary.BigEndian.PutUint16(ip[10:], checksum(0, ip))
		b = append(append(b, ip...), segment...)
		if g.chance(2) {
			return spoil(b, 14, uint16(1+g.IntN(0xffff)))
		}
		return b
	}
	b[12], b[13] = 0x86, 0xdd
	next := t.Protocol
	var chain []byte
	if fragmented || g.chance(3) {
		header := []byte{next, 0, byte(offset >> 8), byte(offset), 0, 0, 0, byte(id)}
		if more {
			header[3] |= 1
		}
		chain, next = append(header, chain...), 44
	}
	for g.chance(8) {
		kind := pick[byte](g, 0, 43, 60)
		chain = append(extensionHeader(0, 1+g.IntN(3)), chain...)
		if kind == 43 {
			chain[3] = pick[byte](g, 0, 0, 1)
		}
		chain[0], next = next, kind
	}
	ip := []byte{6 << 4, 0, 0, 0, 0, 0, next, hops}
	binary.BigEndian.PutUint16(ip[4:], uint16(len(chain)+len(segment)))
	ip = append(append(append(ip, t.Source.AsSlice()...), t.Destination.AsSlice()...), chain...)
	return append(append(b, ip...), segment...)
}

// segment makes layer 4.
func (g *generator) segment(t model.Tuple) []byte {
	if t.Protocol == model.ICMP || t.Protocol == model.ICMPv6 {
		return g.message(t)
	}
	payload := make([]byte, pick(g, 0, 0, 1, 7, 64, 100, 0, 0, 1, 7, 64, 100, narrowMTU-100, narrowMTU))
	for i := range payload {
		payload[i] = byte(g.Uint32())
	}
	b := binary.BigEndian.AppendUint16(nil, t.SourcePort)
	b = binary.BigEndian.AppendUint16(b, t.DestinationPort)
	if t.Protocol == sctp {
		return g.chunk(b, payload)
	}
	at := 6
	if t.Protocol == tcp {
		at = 16
		options := make([]byte, 4*pick(g, 0, 0, 1, 10))
		for range 2 { // sequence and acknowledgment number
			b = binary.BigEndian.AppendUint32(b, pick(g, 0, 1, 1000, 1<<20, 1<<22, 1<<23, 1<<32-1, g.Uint32()))
		}
		flags := pick[byte](g, syn, syn, syn|ack, ack, ack, psh|ack, fin|ack, fin|ack, rst, rst|ack, 0, 0xff)
		b = append(b, byte(5+len(options)/4)<<4, flags, 16, 0, 0, 0, 0, 0)
		b = append(b, options...)
	} else {
		b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
		b = append(b, 0, 0)
	}
	b = append(b, payload...)
	if t.Protocol == udp && t.Source.Is4() && g.chance(15) {
		return b
	}
	pseudo := slices.Concat(t.Source.AsSlice(), t.Destination.AsSlice(), []byte{0, t.Protocol, byte(len(b) >> 8), byte(len(b))})
	sum := checksum(0, slices.Concat(pseudo, b))
	if t.Protocol == udp && sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[at:], sum)
	return b
}

// chunk makes an SCTP packet from a header's ports and the contents of one chunk.
func (g *generator) chunk(ports, payload []byte) []byte {
	kind := pick[byte](g, sctpInit, sctpInit, sctpInit, sctpData, sctpData, sctpSack, sctpCookieEcho, sctpAbort, sctpShutdown, sctpShutdown,
		sctpShutdownAck, sctpShutdownComplete, 0xff)
	b := binary.BigEndian.AppendUint32(ports, g.Uint32())
	b = append(b, 0, 0, 0, 0, kind, 0, byte((4+len(payload))>>8), byte(4+len(payload)))
	b = append(b, payload...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// message makes an ICMP message: an echo request, or sometimes another that is no error.
func (g *generator) message(t model.Tuple) []byte {
	kind, pseudo := pick[byte](g, 8, 8, 8, 8, 0, 13), []byte(nil)
	b := make([]byte, 8+pick(g, 0, 1, 8, 56, 500))
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	if t.Protocol == model.ICMPv6 {
		kind = pick[byte](g, 128, 128, 128, 128, 129, 135)
		pseudo = slices.Concat(t.Source.AsSlice(), t.Destination.AsSlice(), []byte{0, t.Protocol, byte(len(b) >> 8), byte(len(b))})
	}
	b[0], b[1], b[2], b[3] = kind, 0, 0, 0
	binary.BigEndian.PutUint16(b[2:], checksum(0, slices.Concat(pseudo, b)))
	return b
}

func checksum(sum uint32, b []byte) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
