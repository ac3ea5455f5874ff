// SPDX-License-Identifier: Apache-2.0

package model

func (e *Edge) find(t Tuple) (track *Track, half bool) {
	if track := e.Tracks[t]; track != nil {
		return track, false
	}
	return e.HalfOpen[t], true
}

func (e *Edge) remove(t Tuple) {
	delete(e.Tracks, t)
	delete(e.HalfOpen, t)
}

// end removes a packet's flow.
func (v *visit) end(track *Track) {
	if track.DSR == SNAT && v.otherOf(track) != nil {
		v.remove(track.Becomes.Reverse())
	}
	v.remove(v.tuple)
}

// evict removes the flow with the key of one of its entries, to free its port for another.
func (v *visit) evict(key Tuple, track *Track) {
	other, _ := v.Edge.find(track.Becomes.Reverse())
	if other != nil && other.Becomes.Reverse() == key {
		v.remove(track.Becomes.Reverse())
	}
	v.remove(key)
}

// turned is the flow's other entry.
func (t *Track) turned(key Tuple) *Track {
	other := &Track{
		Becomes: key.Reverse(), Service: t.Service, Backend: t.Backend, LastSeen: t.LastSeen, Device: t.Device,
		State: t.State, Reply: !t.Reply, Local: t.Local, FromBalancer: t.FromBalancer,
	}
	if key.Protocol == UDP {
		other.Next = t.Next
	}
	return other
}

// store stores both entries of a new flow.
func (v *visit) store(track *Track) {
	v.HalfOpen[track.Becomes.Reverse()] = track.turned(v.tuple)
	v.HalfOpen[v.tuple] = track
}

// otherOf is the flow's other entry, unless another flow has replaced it.
func (v *visit) otherOf(track *Track) *Track {
	other, _ := v.Edge.find(track.Becomes.Reverse())
	if other == nil || other.Becomes.Reverse() != v.tuple {
		return nil
	}
	return other
}

// follow handles a packet of a known flow.
func (v *visit) follow(track *Track, half bool) Result {
	if track.DSR != SNAT {
		return v.followDirect(track, half)
	}
	to, reason := track.Becomes, Established
	if track.Reply {
		reason = Reply
	}
	var hop *NextHop
	if !track.Local {
		hop = v.Route(to.Destination)
		if v.hops <= 1 && hop == nil {
			return v.noRoute()
		}
		if v.hops <= 1 {
			return v.outOfHops()
		}
		if !v.fits(hop) {
			return v.tooBig(hop)
		}
		if v.leftToTC(hop) {
			return v.pass(ToTC)
		}
	}
	v.move(track)
	v.note(track, half)
	if half && v.heard(track) {
		v.promote(track)
	}
	if track.Local {
		v.Counts[reason]++
		return v.deliver(to)
	}
	return v.send(to, hop, reason)
}

// clientDevice is the device by which the client's packets arrive; 0: unknown.
func (v *visit) clientDevice() uint32 {
	if v.wrapped != nil {
		return 0
	}
	return v.device
}

// move notes that the client's packets arrive by another device.
func (v *visit) move(track *Track) {
	if track.Reply || track.FromBalancer || track.Device == v.clientDevice() {
		return
	}
	if v.mayBeForged = !v.mayMove(track); v.mayBeForged {
		return
	}
	track.Device = v.clientDevice()
	if other := v.otherOf(track); other != nil {
		other.Device = track.Device
	}
}

// mayMove reports whether a packet is of the flow's client: after a SYN alone that SYN again, or what follows it.
func (v *visit) mayMove(track *Track) bool {
	switch {
	case v.tuple.Protocol != TCP:
		return true
	case track.Next != 0 && track.Acked == 0:
		return v.sequence == track.Next || v.sequenceAfter() == track.Next
	}
	return v.seesConnection(track)
}

// note updates a flow by a packet.
func (v *visit) note(track *Track, half bool) {
	if track.LastSeen != v.Now {
		due := track.LastSeen/8 != v.Now/8
		track.LastSeen = v.Now
		if due && !half {
			v.restore(track)
		}
	}
	track.Packets++
	track.Bytes += uint64(v.length)
	if v.flags&(fin|rst) != 0 {
		v.close(track, half)
	}
	v.noteLater(track, half)
	if half && track.Reply && track.State == StateNew {
		track.State = StateReplied
		if other := v.otherOf(track); other != nil && other.State == StateNew {
			other.State = StateReplied
		}
	}
	if half && !v.mayBeForged || !half && v.flags&(syn|rst) == 0 && v.seesConnection(track) {
		v.noteSequence(track)
	}
}

// window is the greatest distance of a sequence number from the last known one.
const window = 1 << 22

// step is that of both numbers of a segment from those of the segment before.
const step = 1 << 20

func near(a, b uint32) bool { return within(a, b, window) }

func within(a, b uint32, most int32) bool { return int32(a-b) >= -most && int32(a-b) < most }

// seesConnection reports whether the sender of a segment sees the connection: both of its numbers are near those
// that its side had before, or it is the next one.
func (v *visit) seesConnection(track *Track) bool {
	return track.Next == 0 || track.Acked == 0 || v.sequence == track.Next ||
		v.flags&ack != 0 && within(v.sequence, track.Next, step) && within(v.acknowledged, track.Acked, step)
}

// mayClose reports whether a FIN or RST closes the flow. A RST has the number that the other side expects (RFC 5961
// section 3.2); with DSR, where that is not seen, one that is not far behind the client's.
func (v *visit) mayClose(track, other *Track) bool {
	switch {
	case v.tuple.Protocol != TCP:
		return true
	case v.flags&rst == 0:
		return v.seesConnection(track)
	case track.DSR != SNAT:
		return track.Next == 0 || track.Next-v.sequence <= 0xffff
	}
	return other == nil || other.Acked == 0 || v.sequence == other.Acked || track.Next != 0 && v.sequence == track.Next
}

// heard reports whether a packet shows that both sides have been heard from.
func (v *visit) heard(track *Track) bool {
	other := v.otherOf(track)
	if v.tuple.Protocol == UDP {
		return track.Later && other != nil && other.Later
	}
	if track.Reply || v.flags&(syn|rst) != 0 {
		return false
	}
	if v.tuple.Protocol != TCP {
		return track.State == StateReplied
	}
	return track.State != StateClosed && v.flags&ack != 0 && other != nil && other.Next != 0 && other.Next-v.acknowledged < window
}

// answers reports whether a packet of a backend here replies to one that came through the Service: it may
// belong to a direct connection of the client to the backend.
func (v *visit) answers(track *Track) bool {
	if v.tuple.Protocol != TCP || track.State != StateNew || v.fragment == laterFragment {
		return true
	}
	other := v.otherOf(track)
	if other == nil || other.Next == 0 {
		return false
	}
	toSYN := other.Next-v.acknowledged <= 0xffff && v.flags&ack != 0
	switch {
	case v.flags&syn != 0:
		return toSYN
	case v.flags&(rst|ack) == rst|ack && v.sequence == 0:
		return toSYN
	}
	return other.Acked != 0 && near(v.sequence, other.Acked) && (v.flags&ack == 0 || near(v.acknowledged, other.Next))
}

// notePortTaken notes that a packet of a backend here, which is no reply to the flow's SYN, shows another
// connection from the client's port. It reports whether the packet only acknowledges something, as the first such
// packet: that is the backend's answer to the SYN.
func (v *visit) notePortTaken(track *Track) bool {
	other := v.otherOf(track)
	if v.flags&(ack|rst) != ack || other == nil || other.State != StateNew || other.Acked != 0 {
		return false
	}
	first := !other.PortTaken
	other.PortTaken = true
	return first && v.payload == 0 && v.flags&fin == 0
}

func (t *Track) portIsTaken() bool { return t.PortTaken && t.State == StateNew }

// close handles a RST or FIN, and ignores one of a sender that cannot see the connection.
func (v *visit) close(track *Track, half bool) {
	other := v.otherOf(track)
	if !v.mayClose(track, other) {
		return
	}
	track.Fin = track.Fin || v.flags&fin != 0
	state := StateClosing
	if v.flags&rst != 0 || other != nil && track.Fin && other.Fin {
		state = StateClosed
	}
	if track.State >= state {
		return
	}
	track.State = state
	if other != nil {
		other.State = max(other.State, state)
	} else if !half {
		v.restore(track)
	}
}

// restore restores the other entry of an assured flow, unless another flow has taken its place.
func (v *visit) restore(track *Track) {
	key := track.Becomes.Reverse()
	if there, _ := v.Edge.find(key); there == nil {
		v.Tracks[key] = track.turned(v.tuple)
	}
}

// promote moves a flow to the table of assured flows.
func (v *visit) promote(track *Track) {
	track.State = max(track.State, StateEstablished)
	turned := track.turned(v.tuple)
	if other := v.otherOf(track); other != nil {
		turned.Acked, turned.Next = other.Acked, other.Next
		turned.Fin, turned.Later, turned.Packets, turned.Bytes = other.Fin, other.Later, other.Packets, other.Bytes
	}
	key := track.Becomes.Reverse()
	v.remove(key)
	v.remove(v.tuple)
	v.Tracks[key], v.Tracks[v.tuple] = turned, track
}
