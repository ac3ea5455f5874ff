// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

// Reason is why a packet was handled as it was, as enum edge_reason.
type Reason int

// As in bpf/state/types.h.
const (
	NotService Reason = iota
	Established
	Reply
	New
	Recovered
	Untracked
	ICMPError
	Rejected
	Echoed
	DropPolicy
	DropSource
	DropNoService
	DropNoBackend
	DropNoRoute
	DropForwarding
	DropNoAddress
	DropNoPort
	DropSCTPPort
	DropInsertFailed
	DropSpoofed
	DropBackendNotLocal
	DropFragment
	DropInvalid
	Malformed
	DropRewriteFailed
	TTLExceeded
	DropTooBig
	ICMPRateLimited
	DropRedirect
	Fragmented
	ToTC
	KernelFlow
	KernelSocket
	DropReversePath
	DropXFRM
	DropOtherConnection
	DropScope
	Reasons
)

// State of a flow, as enum ct_state.
type State uint8

// As in bpf/state/types.h.
const (
	StateNew State = iota
	StateReplied
	StateEstablished
	StateClosing
	StateClosed
)

// Track is the conntrack entry of one direction of a flow.
type Track struct {
	Becomes          Tuple
	Service, Backend uint32
	LastSeen         uint32
	Device           uint32 // by which the client's packets arrive; 0: by a balancer
	State            State
	Reply, Local     bool
	Fin              bool
	FromBalancer     bool // a balancer has sent the client's packets here
	Later            bool // of UDP: this side continued two seconds after the flow began
	// PortTaken, of TCP: instead of replying to the SYN, the backend here sent a packet of another connection
	// from the client's port. The next SYN gets another port.
	PortTaken bool
	DSR       DSR // of the client's packets; then there is no entry for replies
	// Of TCP: what this side has acknowledged last, and the end of what it has sent; 0: unknown. Next of UDP: when
	// the flow began.
	Acked, Next    uint32
	Packets, Bytes uint64
}

// FragmentKey identifies a datagram.
type FragmentKey struct {
	Source, Destination netip.Addr
	ID                  uint32
	Protocol            uint8
}

// Fragment has the ports of a datagram, and the second in which its first fragment arrived.
type Fragment struct {
	Source, Destination uint16
	Since               uint32
	Missing             int32 // the last fragment's offset minus the bytes of all others that have left
}

// AffinityKey identifies a client of a Service.
type AffinityKey struct {
	Client  netip.Addr
	Service uint32
}

// Affinity is a client's last backend.
type Affinity struct{ Backend, LastUsed uint32 }

// Edge is a node: its configuration and its state.
type Edge struct {
	Tables
	Now uint32 // seconds

	Tracks, HalfOpen map[Tuple]*Track
	Fragments        map[FragmentKey]Fragment
	Affinity         map[AffinityKey]Affinity
	Counts           [Reasons]uint64
}

// Action is what the hook does with a packet.
type Action int

// What happens to a packet.
const (
	ActionPass Action = iota // on to the stack
	ActionDrop
	ActionSend // out of a device
)

// Result is a packet after the hook. Frame is nil if it was dropped. If it was fragmented, Frame is the last
// fragment, which passes the hook again after the others.
type Result struct {
	Action Action
	Frame  []byte
	Pieces [][]byte // the others
}

// Forget empties the edge's state.
func (e *Edge) Forget() {
	e.Tracks, e.HalfOpen = map[Tuple]*Track{}, map[Tuple]*Track{}
	e.Fragments, e.Affinity = map[FragmentKey]Fragment{}, map[AffinityKey]Affinity{}
	e.Counts = [Reasons]uint64{}
}

// visit is one packet at one hook.
type visit struct {
	*Edge
	packet
	xdp     bool
	device  uint32
	wrapped *wrapping // nil: not encapsulated
	// portTaken: the client's port is in use at the backend.
	portTaken bool
	// mayBeForged: the packet came by another device than its flow's, and is not the client's.
	mayBeForged bool
}

func (v *visit) pass(r Reason) Result {
	v.Counts[r]++
	if v.wrapped != nil {
		return Result{Action: ActionPass, Frame: v.wrapped.frame}
	}
	return Result{Action: ActionPass, Frame: v.frame}
}

func (v *visit) drop(r Reason) Result {
	v.Counts[r]++
	return Result{Action: ActionDrop}
}

// Ingress handles a packet that a device has received.
func (e *Edge) Ingress(xdp bool, device uint32, frame []byte) Result {
	p, result := parse(frame)
	v := &visit{e, p, xdp, device, nil, false, false}
	if [6]byte(frame) != e.MACs[device] {
		return v.pass(NotService)
	}
	if result != malformed && p.length > 0 {
		if r, done := v.open(result); done {
			return r
		}
		if v.wrapped != nil {
			result = ours
		}
	}
	switch {
	case result == other:
		if result, ok := v.echo(); ok {
			return result
		}
		if result, ok := v.otherProtocol(bySource); ok {
			return result
		}
		return v.pass(NotService)
	case result == malformed:
		return v.pass(Malformed)
	case !v.fragmentPorts():
		if v.serviceAloneHas(v.tuple.Destination) {
			return v.drop(DropFragment)
		}
		return v.pass(NotService)
	}
	if result, ok := v.untracked(); ok {
		return result
	}
	track, half := e.find(v.tuple)
	if track != nil {
		if track.Reply && track.Local {
			return v.pass(NotService)
		}
		if half && !track.Reply && v.wrapped == nil {
			if stable := v.forgedSYN(track); stable != nil {
				d, result, ok := v.way(stable)
				if !ok {
					return result
				}
				return v.sendDirect(d, Untracked)
			}
		}
		begins := (track.State >= StateClosing || track.portIsTaken()) && v.opens()
		if v.wrapped == nil && v.opens() && !v.servesStill(track) {
			begins = true // no backend is left to judge
		}
		if v.wrapped != nil && v.opens() && !v.chosenServes(track) {
			begins = true // as above
		}
		if (track.Reply || !begins) && !v.yields(track) {
			return v.follow(track, half)
		}
	}
	if v.wrapped != nil {
		if r, done := v.chosenByBalancer(); done {
			return r
		}
	}
	if track != nil {
		v.portTaken = track.portIsTaken()
		v.end(track)
	}
	return v.begin()
}

// Egress handles a packet that leaves by a device, at tc.
func (e *Edge) Egress(device uint32, frame []byte) Result {
	p, result := parse(frame)
	v := &visit{e, p, false, device, nil, false, false}
	untouched := Result{Action: ActionPass, Frame: frame}
	if result == other {
		if result, ok := v.otherProtocol(theNode); ok {
			return result
		}
	}
	if result != ours {
		return untouched
	}
	if !v.fragmentPorts() {
		if v.serviceAloneHas(v.tuple.Destination) {
			return v.drop(DropFragment)
		}
		return untouched
	}
	track, half := e.find(v.tuple)
	if track == nil {
		return v.ofNode()
	}
	if !track.Reply || !track.Local {
		return untouched
	}
	if track.State >= StateClosing && v.flags&syn != 0 {
		v.end(track)
		return untouched
	}
	if half && !v.answers(track) {
		if v.notePortTaken(track) {
			return v.drop(DropOtherConnection)
		}
		return untouched
	}
	return v.follow(track, half)
}

// ofNode handles a packet of the node itself without an entry. The tables here leave these to the socket hooks,
// except for the two cases that the hooks cannot know.
func (v *visit) ofNode() Result {
	f, ok := v.Tables.find(v.tuple)
	if !ok && v.isService(v.tuple.Destination) {
		return v.drop(DropNoService)
	}
	if ok && !v.tuple.Destination.IsLoopback() && f.SourceSet != 0 && covers(v.Ranges[f.SourceSet], v.tuple.Source) < 0 {
		return v.drop(DropSource)
	}
	return v.pass(NotService)
}

// fragmentPorts stores the ports of a datagram's first fragment for the others, for 30 seconds, if it belongs
// to a flow or is for a Service.
func (v *visit) fragmentPorts() bool {
	key := v.fragmentKey()
	switch v.fragment {
	case firstFragment:
		_, ok := v.Tables.find(v.tuple)
		if v.wrapped != nil {
			_, ok = v.frontendOfBalancer(v.tuple)
		}
		if track, _ := v.Edge.find(v.tuple); ok || track != nil {
			v.Fragments[key] = Fragment{v.tuple.SourcePort, v.tuple.DestinationPort, v.Now, 0}
		}
	case laterFragment:
		f, ok := v.Fragments[key]
		if !ok || v.Now-f.Since > 30 {
			return false
		}
		v.tuple.SourcePort, v.tuple.DestinationPort = f.Source, f.Destination
	}
	return true
}

func (v *visit) fragmentKey() FragmentKey {
	return FragmentKey{v.tuple.Source, v.tuple.Destination, v.id, v.tuple.Protocol}
}

// change is the packet as it leaves with another tuple.
func (v *visit) change(to Tuple, hops byte) []byte {
	v.fragmentLeaves()
	return v.packet.change(to, hops)
}

// fragmentLeaves notes that a fragment leaves. After the last one of the whole datagram its ports are forgotten.
func (v *visit) fragmentLeaves() {
	key := v.fragmentKey()
	f, ok := v.Fragments[key]
	if v.fragment == whole || !ok {
		return
	}
	if v.fragment == laterFragment && !v.more {
		f.Missing += int32(v.offset)
	} else {
		f.Missing -= int32(l3 + v.length - v.l4)
	}
	v.Fragments[key] = f
	if f.Missing == 0 {
		delete(v.Fragments, key)
	}
}

// serviceAloneHas reports whether an address is a Service's and not the node's: there is a frontend for all its
// ports, it is in a ServiceCIDR, or it answers pings.
func (v *visit) serviceAloneHas(a netip.Addr) bool {
	protocol := uint8(ICMP)
	if a.Is6() {
		protocol = ICMPv6
	}
	_, every := v.Frontends[FrontendKey{Address: a}]
	_, echo := v.Frontends[FrontendKey{Address: a, Protocol: protocol}]
	return every || echo || v.isService(a)
}
