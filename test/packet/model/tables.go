// SPDX-License-Identifier: Apache-2.0

// Package model says in plain Go what the edge's programs do with a packet. It is written from the rules and
// shares no code with bpf/, so any difference shows a bug in one of them.
package model

import (
	"cmp"
	"net/netip"
	"slices"
)

// Verdict is the fate of a packet that gets no backend.
type Verdict uint32

// As enum verdict in bpf/lb/types.h.
const (
	Pass Verdict = iota
	Reject
	Drop
	_
	Answer // an echo request
)

// Protocols.
const (
	TCP    = 6
	UDP    = 17
	SCTP   = 132
	ICMP   = 1
	ICMPv6 = 58
)

// FrontendKey is what a client asks for. Without port and protocol it stands for everything at the address
// without a key of its own; with ICMP or ICMPv6 alone, for echo requests.
type FrontendKey struct {
	Address  netip.Addr
	Port     uint16
	Protocol uint8
}

// Decision is what one source class gets: backends by their IDs, each as often as its weight says, or a
// verdict.
type Decision struct {
	Slots   []uint32
	Verdict Verdict
}

// SortMembers sorts the members of a set as programs search them: by address and port. Missing backends come
// first.
func (t *Tables) SortMembers(ids []uint32) {
	at := func(id uint32) netip.AddrPort { return netip.AddrPortFrom(t.Backends[id].Address, t.Backends[id].Port) }
	slices.SortFunc(ids, func(a, b uint32) int { return cmp.Or(at(a).Compare(at(b)), cmp.Compare(a, b)) })
}

// DSR is how a client's packets reach a remote backend with the client's address.
type DSR uint8

// As enum dsr in bpf/lb/types.h.
const (
	SNAT DSR = iota // without it
	IPIP
	Geneve
	Opt
)

// Frontend is the value of a key.
type Frontend struct {
	Service         uint32
	AffinitySeconds uint32
	SourceSet       uint32 // 0: any source is admitted
	// Maglev: the slots are a Maglev table, which programs do not search for a backend. The choice is the
	// same.
	Maglev       bool
	DSR          DSR
	NodePort     bool
	Pod, Outside Decision
	// Untracked: packets of external clients to other nodes need no entry, except in slots that the history
	// marks as contested.
	Untracked bool
	History   []Slot // of Outside, or of an earlier table; nil: none
	Before    DSR    // when flows without entries began
}

// Slot is the history of one slot.
type Slot struct {
	Contested bool
	Stable    uint32 // the backend of flows without entries; 0: the one in the table
}

// Backend is an endpoint.
type Backend struct {
	Address netip.Addr
	Port    uint16
	Local   bool
	Node    netip.Addr // of its node; invalid if unknown
}

// NextHop is the way out for a packet.
type NextHop struct {
	Device              uint32
	Source, Destination [6]byte // Ethernet
	Known               bool    // the neighbour is resolved
	MTU                 int     // 0: unlimited
}

// Tables is the edge's configuration: by the agent, and by the kernel's routes.
type Tables struct {
	Frontends map[FrontendKey]Frontend
	Backends  map[uint32]Backend
	Ranges    map[uint32][]netip.Prefix
	Services  []netip.Prefix // ServiceCIDRs
	Pods      []netip.Prefix
	Balancers []netip.Prefix // whose encapsulated packets are accepted
	// Devices is the node's own address on a device, for each IP version.
	Devices map[uint32][2]netip.Addr
	// MACs are the addresses of frames for the node.
	MACs map[uint32][6]byte
	// PodsAt are the devices with pods of this node. Packets from there keep the pod's address.
	PodsAt map[uint32]bool
	// Ports are the ranges of SNAT ports: first, count.
	Ports [2][2]uint16
	// Route returns nil if there is no route.
	Route func(netip.Addr) *NextHop
}

func covers(prefixes []netip.Prefix, a netip.Addr) (longest int) {
	longest = -1
	for _, p := range prefixes {
		if p.Contains(a) {
			longest = max(longest, p.Bits())
		}
	}
	return longest
}

// isPod reports whether a client is a pod, by the longest prefix.
func (t *Tables) isPod(a netip.Addr) bool {
	pod := covers(t.Pods, a)
	return pod >= 0 && pod > covers(t.Services, a)
}

func (t *Tables) isService(a netip.Addr) bool {
	service := covers(t.Services, a)
	return service >= 0 && service > covers(t.Pods, a)
}

// fromPod reports whether a packet arrived at a device with pods of this node.
func (v *visit) fromPod() bool { return v.wrapped == nil && !v.xdp && v.PodsAt[v.device] }

// handledAtEgress reports whether a pod's packet is handled where it leaves the node, or not at all.
func (v *visit) handledAtEgress() bool {
	to := v.tuple
	_, exact := v.Frontends[FrontendKey{to.Destination, to.DestinationPort, to.Protocol}]
	return v.fromPod() && (!exact || v.leaves() && !v.isPod(to.Source))
}

// leaves reports whether a packet would leave the node if nobody rewrote it.
func (v *visit) leaves() bool { return v.Route(v.tuple.Destination) != nil }

// returns reports whether a pod's packet to a backend would leave by the device that it arrived by, or is to its
// sender.
func (v *visit) returns(to netip.Addr) bool {
	if to == v.tuple.Source {
		return v.wrapped == nil && !v.xdp
	}
	hop := v.Route(to)
	return v.fromPod() && hop != nil && hop.Device == v.device && v.fits(hop)
}

func (t *Tables) find(to Tuple) (Frontend, bool) {
	f, ok := t.Frontends[FrontendKey{to.Destination, to.DestinationPort, to.Protocol}]
	if !ok {
		f, ok = t.Frontends[FrontendKey{Address: to.Destination}]
	}
	return f, ok
}
