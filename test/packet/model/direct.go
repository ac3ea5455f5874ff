// SPDX-License-Identifier: Apache-2.0

package model

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// dsrOf says how a client's packets reach a backend: encapsulated only from external clients, and not if the
// client is the backend's own node.
func (v *visit) dsrOf(wanted DSR, b Backend) DSR {
	if b.Local || v.isPod(v.tuple.Source) || b.node() == v.tuple.Source {
		return SNAT
	}
	return wanted
}

func (b Backend) node() netip.Addr {
	if b.Node.IsValid() {
		return b.Node
	}
	return b.Address
}

// overhead is the number of bytes that DSR adds to a packet.
func (v *visit) overhead(dsr DSR) int {
	if v.is6() {
		return [...]int{0, 40, 40 + 8 + 8 + 8 + 16, 24}[dsr]
	}
	return [...]int{0, 20, 20 + 8 + 8 + 8 + 4, 8}[dsr]
}

// direct is a packet's path to a backend that replies to the client directly.
type direct struct {
	dsr       DSR
	to        Tuple // after decapsulation at the backend's node
	own, node netip.Addr
	hop       *NextHop
	hash      uint32
}

// way finds that path. If there is none, ok is false and the result is the packet's fate.
func (v *visit) way(track *Track) (d direct, result Result, ok bool) {
	d = direct{dsr: track.DSR, to: track.Becomes, node: track.Becomes.Destination, hash: Hash(v.tuple)}
	if v.hops <= 1 {
		return d, v.outOfHops(), false
	}
	// The ID may belong to another backend by now.
	if b := v.Backends[track.Backend]; d.dsr == Geneve && b.Address == d.to.Destination && b.node().Is4() != v.is6() {
		d.node = b.node()
	}
	d.hop = v.Route(d.node)
	if d.hop != nil && d.hop.MTU != 0 && v.length+v.overhead(d.dsr) > d.hop.MTU {
		return d, v.tooBig(&NextHop{MTU: d.hop.MTU - v.overhead(d.dsr)}), false
	}
	if d.hop == nil {
		return d, v.noRoute(), false
	}
	if d.own = v.own(d.hop.Device); d.dsr != Opt && !d.own.IsValid() {
		return d, v.drop(DropNoAddress), false
	}
	if v.leftToTC(d.hop) {
		return d, v.pass(ToTC), false
	}
	return d, Result{}, true
}

func (v *visit) beginDirect(track *Track) Result {
	if v.isInvalid(track) {
		return v.drop(DropInvalid)
	}
	d, result, ok := v.way(track)
	if !ok {
		return result
	}
	v.noteFirst(track)
	v.HalfOpen[v.tuple] = track
	return v.sendDirect(d, New)
}

func (v *visit) followDirect(track *Track, half bool) Result {
	d, result, ok := v.way(track)
	if !ok {
		return result
	}
	v.move(track)
	track.LastSeen = v.Now
	track.Packets++
	track.Bytes += uint64(v.length)
	mayClose := v.mayClose(track, nil)
	if v.flags&fin != 0 && mayClose {
		track.Fin, track.State = true, max(track.State, StateClosing)
	}
	if v.flags&rst != 0 && mayClose {
		track.State = StateClosed
	}
	v.noteLater(track, half)
	goesOn := half && v.flags&(syn|rst) == 0 && (v.tuple.Protocol == UDP && track.Later || v.tuple.Protocol == SCTP ||
		v.tuple.Protocol == TCP && track.State != StateClosed && v.flags&ack != 0 && v.sequence == track.Next)
	if half && !v.mayBeForged || !half && v.flags&(syn|rst) == 0 && v.seesConnection(track) {
		v.noteSequence(track)
	}
	if goesOn {
		track.State = max(track.State, StateEstablished)
		delete(v.HalfOpen, v.tuple)
		v.Tracks[v.tuple] = track
	}
	return v.sendDirect(d, Established)
}

// noteFirst stores what a flow's first packet says.
func (v *visit) noteFirst(track *Track) {
	v.noteSequence(track)
	if v.tuple.Protocol == UDP {
		track.Next = v.Now
	}
}

// noteLater notes that a side has continued its UDP flow late enough to be no one-shot.
func (v *visit) noteLater(track *Track, half bool) {
	if half && v.tuple.Protocol == UDP && v.Now-track.Next >= 2 {
		track.Later = true
	}
}

// isInvalid reports whether a packet neither begins nor continues a connection.
func (v *visit) isInvalid(track *Track) bool {
	if v.fragment == laterFragment || v.tuple.Protocol == UDP || track.State != StateNew {
		return false
	}
	if v.tuple.Protocol == SCTP {
		return v.flags&(fin|rst) != 0
	}
	kind := v.flags & (fin | syn | rst | ack)
	return kind != syn && kind != ack
}

// opens reports whether a packet asks for a new connection.
func (v *visit) opens() bool { return v.flags&(fin|syn|rst|ack) == syn }

// noteSequence stores the client's place in its stream.
func (v *visit) noteSequence(track *Track) {
	if v.tuple.Protocol != TCP || v.fragment == laterFragment {
		return
	}
	if v.flags&ack != 0 {
		track.Acked = max(v.acknowledged, 1)
	}
	track.Next = v.sequenceAfter()
}

// sequenceAfter is the number after a segment; 1 instead of 0, which means unknown.
func (v *visit) sequenceAfter() uint32 {
	next := v.sequence + uint32(v.payload)
	for _, flag := range []byte{syn, fin} {
		if v.flags&flag != 0 {
			next++
		}
	}
	return max(next, 1)
}

// servesStill reports whether one of the sets has a flow's backend.
func (v *visit) servesStill(track *Track) bool {
	f, _ := v.Tables.find(v.tuple)
	return v.servedBy(f, track)
}

func (v *visit) servedBy(f Frontend, track *Track) bool {
	return slices.ContainsFunc(slices.Concat(f.Pod.Slots, f.Outside.Slots), func(id uint32) bool {
		b, ok := v.Backends[id]
		return ok && b.Address == track.Becomes.Destination && b.Port == track.Becomes.DestinationPort
	})
}

func (v *visit) sendDirect(d direct, reason Reason) Result {
	v.fragmentLeaves()
	if d.dsr == Opt && !v.is6() && v.l4-l3 > 60-8 {
		return v.drop(DropRewriteFailed) // no room for an option
	}
	v.Counts[reason]++
	v.frame = v.trimmed(v.frame)
	out := v.encapsulated(d)
	if v.xdp {
		copy(out, d.hop.Destination[:])
		copy(out[6:], d.hop.Source[:])
	}
	return Result{Action: ActionSend, Frame: out}
}

// encapsulated is the frame to be sent.
func (v *visit) encapsulated(d direct) []byte {
	inner := v.packet
	inner.tuple.Protocol = SCTP // the tuple stays: no checksum changes
	frame := inner.change(v.tuple, 1)
	switch d.dsr {
	case Opt:
		return v.option(v.packet.change(d.to, 1))
	case Geneve:
		backend := d.to.Destination.AsSlice()
		udp := binary.BigEndian.AppendUint16(nil, 49152|uint16(d.hash>>18))
		udp = binary.BigEndian.AppendUint16(udp, 6081)
		udp = binary.BigEndian.AppendUint16(udp, uint16(8+8+8+len(backend)+v.length))
		udp = append(udp, 0, 0)
		geneve := append([]byte{byte(8+len(backend)) / 4, 0x40}, frame[12:14]...)
		geneve = append(geneve, 0, 0, 0, 0, 0xff, 0xbe, 0x81, byte(4+len(backend))/4)
		geneve = binary.BigEndian.AppendUint16(geneve, d.to.DestinationPort)
		geneve = append(append(geneve, 0, 0), backend...)
		return v.outer(frame, d.own, d.node, UDP, append(udp, geneve...))
	}
	return v.outer(frame, d.own, d.node, [...]byte{4, 41}[len(d.to.Destination.AsSlice())/16], nil)
}

// outer prepends an IP header, and what follows it.
func (v *visit) outer(frame []byte, from, to netip.Addr, protocol byte, more []byte) []byte {
	var ip []byte
	if v.is6() {
		ip = append(slices.Clone(frame[l3:l3+4]), 0, 0, protocol, 64)
		binary.BigEndian.PutUint16(ip[4:], uint16(len(more)+v.length))
	} else {
		ip = []byte{0x45, frame[l3+1], 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0}
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(more)+v.length))
	}
	ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
	if !v.is6() {
		binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip)))
	}
	return slices.Concat(frame[:l3], ip, more, frame[l3:])
}

// option inserts the option with the original destination into a packet.
func (v *visit) option(frame []byte) []byte {
	asked := binary.BigEndian.AppendUint16(nil, v.tuple.DestinationPort)
	asked = append(asked, v.tuple.Destination.AsSlice()...)
	if v.is6() {
		header := slices.Concat([]byte{frame[l3+6], 2, 0x5e, 18}, asked, []byte{1, 0})
		frame[l3+6] = 60
		binary.BigEndian.PutUint16(frame[l3+4:], uint16(v.length-40+len(header)))
		return slices.Insert(frame, l3+40, header...)
	}
	option := append([]byte{158, 8}, asked...)
	before := slices.Concat(frame[l3:l3+4], make([]byte, 8))
	frame[l3] += 2
	binary.BigEndian.PutUint16(frame[l3+2:], uint16(v.length+8))
	amend(frame[l3+10:l3+12], before, slices.Concat(frame[l3:l3+4], option))
	return slices.Insert(frame, l3+20, option...)
}
