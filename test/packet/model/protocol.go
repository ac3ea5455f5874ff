// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// class is the source class of a client.
type class int

const (
	bySource class = iota // a pod or an external client, by the address
	theNode
)

// otherProtocol handles a packet to an address of Services whose protocol no Service has (R21).
func (v *visit) otherProtocol(c class) (Result, bool) {
	// Hop-by-hop options, routing, fragment, destination options: the protocol behind these is unknown.
	hidden := v.is6() && slices.Contains([]uint8{0, 43, 44, 60}, v.tuple.Protocol)
	to := v.tuple.Destination
	if v.l4 == 0 || hasPorts(v.tuple.Protocol) == ours || hidden {
		return Result{}, false
	}
	if v.wrapped != nil || c == bySource && !v.xdp && v.PodsAt[v.device] {
		return Result{}, false
	}
	f, ok := v.Frontends[FrontendKey{Address: to}]
	if !ok && !v.isService(to) || to.IsLoopback() || v.asksNothing() {
		return Result{}, false
	}
	if end := l3 + v.length; noSource(v.tuple.Source) || end > len(v.frame) || v.l4 > end {
		return v.pass(Malformed), true
	}
	if icmp := v.tuple.Protocol == ICMP && !v.is6() || v.tuple.Protocol == ICMPv6 && v.is6(); icmp && v.fragment == whole && !v.messageIsRight() {
		return v.pass(Malformed), true
	}
	decision := f.Outside
	switch {
	case !ok:
		return v.drop(DropNoService), true
	case c == theNode: // the tables here have no decision for it
		return v.pass(NotService), true
	case v.isPod(v.tuple.Source):
		decision = f.Pod
	}
	if len(decision.Slots) > 0 {
		return Result{}, false
	}
	if decision.Verdict == Reject && v.length < 20+8 { // less than an ICMP error quotes
		return v.drop(Rejected), true
	}
	return v.judge(decision.Verdict), true
}

// asksNothing reports whether a packet is an ICMP error or a message of neighbour discovery.
func (v *visit) asksNothing() bool {
	protocol, errors := uint8(ICMP), []byte{3, 4, 5, 11, 12}
	if v.is6() {
		protocol, errors = ICMPv6, []byte{1, 2, 3, 4, 133, 134, 135, 136, 137}
	}
	if v.tuple.Protocol != protocol || v.fragment == laterFragment {
		return false
	}
	message := v.at(v.l4, 8)
	return message == nil || slices.Contains(errors, message[0])
}
