// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

// noSource reports whether no packet on a network can have an address as its source.
func noSource(a netip.Addr) bool {
	if a.Is4() {
		first := a.As4()[0]
		return first == 0 || first == 127 || first >= 224
	}
	return a.IsMulticast() || a.IsLoopback() || a.IsUnspecified()
}

// ofLink reports whether packets with a source may not leave their link.
func ofLink(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

func (v *visit) begin() Result {
	if noSource(v.tuple.Source) {
		return v.pass(Malformed)
	}
	if v.handledAtEgress() {
		return v.pass(NotService)
	}
	f, ok := v.frontendOfBalancer(v.tuple)
	if v.wrapped == nil {
		f, ok = v.Tables.find(v.tuple)
	}
	if !ok {
		if v.isService(v.tuple.Destination) {
			return v.drop(DropNoService)
		}
		return v.pass(NotService)
	}
	if v.tuple.Destination.IsLoopback() {
		return v.pass(NotService)
	}
	if f.SourceSet != 0 && covers(v.Ranges[f.SourceSet], v.tuple.Source) < 0 {
		return v.drop(DropSource)
	}
	decision := f.Outside
	if v.isPod(v.tuple.Source) {
		decision = f.Pod
	}
	hash := Hash(v.tuple)
	id, dsr := v.before(f, hash), f.Before
	goesOn := id != 0
	if len(decision.Slots) == 0 && v.wrapped == nil && !goesOn {
		return v.judge(decision.Verdict)
	}
	if v.wrapped != nil {
		id = v.wrapped.chosen
	} else if !goesOn {
		id, dsr = v.choose(f, decision.Slots, hash), f.DSR
	}
	backend, ok := v.Backends[id]
	if !ok {
		return v.drop(DropNoBackend)
	}
	if v.tuple.Protocol == SCTP && backend.Port != v.tuple.DestinationPort {
		return v.drop(DropSCTPPort)
	}
	here := backend.Local || v.fromPod() && (v.leaves() || v.isPod(v.tuple.Source))
	track := &Track{
		Becomes: v.tuple, Service: f.Service, Backend: id, LastSeen: v.Now, Device: v.device,
		Local: here, FromBalancer: v.wrapped != nil, Packets: 1, Bytes: uint64(v.length),
	}
	track.Becomes.Destination, track.Becomes.DestinationPort = backend.Address, backend.Port
	if goesOn {
		v.goesOn(track)
	}
	if v.wrapped == nil && ofLink(v.tuple.Source) {
		return v.beyondScope()
	}
	if v.wrapped == nil && !v.segmentIsRight() {
		return v.pass(Malformed)
	}
	if track.DSR = v.dsrOf(dsr, backend); track.DSR != SNAT {
		return v.beginDirect(track)
	}
	if !here {
		return v.beginRemote(track, hash)
	}
	if v.returns(backend.Address) {
		return v.beginHairpin(track, hash)
	}
	if v.hops <= 1 && v.wrapped == nil && v.Route(backend.Address) != nil {
		return v.outOfHops()
	}
	track.Device = v.clientDevice()
	reason := v.keep(track, hash, !v.portTaken && (v.tuple.Protocol != UDP || !v.isPod(v.tuple.Source) && covers(v.Balancers, v.tuple.Source) < 0))
	if reason != New && reason != Recovered {
		return v.drop(reason)
	}
	v.Counts[reason]++
	return v.deliver(track.Becomes)
}

func (v *visit) judge(verdict Verdict) Result {
	switch verdict {
	case Drop:
		return v.drop(DropPolicy)
	case Pass:
		return v.pass(NotService)
	}
	if v.flags&rst != 0 || v.fragment == laterFragment {
		return v.drop(Rejected)
	}
	if !v.segmentIsRight() {
		return v.drop(DropInvalid)
	}
	v.Counts[Rejected]++
	return Result{Action: ActionSend, Frame: v.refusal()}
}

// own is the node's address on a device.
func (v *visit) own(device uint32) netip.Addr {
	if v.is6() {
		return v.Devices[device][1]
	}
	return v.Devices[device][0]
}

// outOfHops is the result for a packet whose last hop this is.
func (v *visit) outOfHops() Result {
	if v.fragment == laterFragment {
		return v.drop(TTLExceeded)
	}
	v.Counts[TTLExceeded]++
	return Result{Action: ActionSend, Frame: v.timeExceeded(v.tuple.Destination)}
}

// noRoute is the result for a packet that no route leads on.
func (v *visit) noRoute() Result {
	if v.fragment == laterFragment {
		return v.drop(DropNoRoute)
	}
	v.Counts[DropNoRoute]++
	return Result{Action: ActionSend, Frame: v.icmp(v.tuple.Destination, [2]byte{3, 0}, [2]byte{1, 0}, 0)}
}

// beyondScope is the result for a packet that may not leave its link.
func (v *visit) beyondScope() Result {
	if v.fragment == laterFragment {
		return v.drop(DropScope)
	}
	v.Counts[DropScope]++
	return Result{Action: ActionSend, Frame: v.icmp(v.tuple.Destination, [2]byte{}, [2]byte{1, 2}, 0)}
}

// tooBig is the result for a packet that does not fit through the next hop.
func (v *visit) tooBig(hop *NextHop) Result {
	if !v.is6() && v.frame[l3+6]&0x40 == 0 {
		return v.cut(hop.MTU)
	}
	if v.fragment == laterFragment {
		return v.drop(DropTooBig)
	}
	v.Counts[DropTooBig]++
	return Result{Action: ActionSend, Frame: v.packetTooBig(hop.MTU)}
}

func (v *visit) fits(hop *NextHop) bool { return hop == nil || hop.MTU == 0 || v.length <= hop.MTU }

func (v *visit) beginRemote(track *Track, hash uint32) Result {
	hop := v.Route(track.Becomes.Destination)
	if hop == nil {
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
	own := v.own(hop.Device)
	if !own.IsValid() {
		return v.drop(DropNoAddress)
	}
	track.Becomes.Source = own
	reason := v.keep(track, hash, false)
	if reason != New && reason != Recovered {
		return v.drop(reason)
	}
	return v.send(track.Becomes, hop, reason)
}

// beginHairpin handles the first packet of a pod to itself.
func (v *visit) beginHairpin(track *Track, hash uint32) Result {
	hop := v.Route(track.Becomes.Destination)
	if hop == nil {
		return v.noRoute()
	}
	if v.hops <= 1 {
		return v.outOfHops()
	}
	if !v.fits(hop) {
		return v.tooBig(hop)
	}
	track.Becomes.Source, track.Local = v.tuple.Destination, false
	reason := v.keep(track, hash, false)
	if reason != New && reason != Recovered {
		return v.drop(reason)
	}
	return v.send(track.Becomes, hop, reason)
}

// keep stores the entries of a new flow; or only one, if the other exists.
func (v *visit) keep(track *Track, hash uint32, keepPort bool) Reason {
	v.noteFirst(track)
	other, half, ok := v.port(track, hash, keepPort)
	switch {
	case !ok && v.isInvalid(track):
		return DropInvalid
	case !ok:
		return DropNoPort
	case other == nil:
		v.store(track)
		return New
	}
	track.State = other.State
	if half {
		v.HalfOpen[v.tuple] = track
	} else {
		v.Tracks[v.tuple] = track
	}
	return Recovered
}

func (v *visit) leftToTC(hop *NextHop) bool {
	return v.xdp && hop != nil && (!hop.Known || hop.Device != v.device)
}

// trimmed is a frame that leaves, without what follows the packet but for Ethernet's padding.
func (v *visit) trimmed(frame []byte) []byte {
	const shortest = 60
	return frame[:min(len(frame), max(shortest, l3+v.length))]
}

// deliver passes a translated packet to the stack, which ignores what follows a packet. Fragments have lost it before.
func (v *visit) deliver(to Tuple) Result {
	frame := v.change(to, 0)
	if v.fragment != whole {
		frame = v.trimmed(frame)
	}
	return Result{Action: ActionPass, Frame: frame}
}

func (v *visit) send(to Tuple, hop *NextHop, reason Reason) Result {
	if hop == nil {
		return v.noRoute()
	}
	v.Counts[reason]++
	out := v.trimmed(v.change(to, 1))
	if v.xdp {
		copy(out, hop.Destination[:])
		copy(out[6:], hop.Source[:])
	}
	return Result{Action: ActionSend, Frame: out}
}
