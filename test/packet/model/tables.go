// SPDX-License-Identifier: Apache-2.0

// Package model says in plain Go what the edge's programs do with a packet. It is
// written from the rules and shares no code with bpf/, so that a difference between
// the two is a fault of one of them.
package model

import (
	"cmp"
	"net/netip"
	"slices"
)

// Verdict is what becomes of a client's packet that meets no backend.
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

// FrontendKey is what a client asks for. Without port and protocol it stands for all
// that no other key of the address names; with ICMP or ICMPv6 alone, for echo requests.
type FrontendKey struct {
	Address  netip.Addr
	Port     uint16
	Protocol uint8
}

// Decision is what one class of clients meets: backends by their ids, as often as
// their weight says, or a verdict.
type Decision struct {
	Slots   []uint32
	Verdict Verdict
}

// SortMembers puts the members of a set into the order that programs look for them in: that of
// their addresses and ports. One that does not exist comes first.
func (t *Tables) SortMembers(ids []uint32) {
	at := func(id uint32) netip.AddrPort { return netip.AddrPortFrom(t.Backends[id].Address, t.Backends[id].Port) }
	slices.SortFunc(ids, func(a, b uint32) int { return cmp.Or(at(a).Compare(at(b)), cmp.Compare(a, b)) })
}

// DSR is how a client's packets get to a backend of another node with the client's address.
type DSR uint8

// As enum dsr in bpf/lb/types.h.
const (
	SNAT DSR = iota // they do not
	IPIP
	Geneve
	Opt
)

// Frontend is what stands behind a key.
type Frontend struct {
	Service         uint32
	AffinitySeconds uint32
	SourceSet       uint32 // 0: any source is admitted
	// Maglev: the slots are a table, which the programs do not look for a backend in. The
	// choice is the same.
	Maglev       bool
	DSR          DSR
	NodePort     bool
	Pod, Outside Decision
	// Untracked: what clients outside send to other nodes needs no record, but where the
	// history has a slot contested.
	Untracked bool
	History   []Slot // of Outside, or of what that was before; nil: none
	Before    DSR    // while flows that have no records began
}

// Slot is what is remembered of one.
type Slot struct {
	Contested bool
	Stable    uint32 // where flows without records are; 0: where the table says
}

// Backend is an endpoint.
type Backend struct {
	Address netip.Addr
	Port    uint16
	Local   bool
	Node    netip.Addr // of its node; not valid if none is known
}

// NextHop is how a packet leaves.
type NextHop struct {
	Device              uint32
	Source, Destination [6]byte // Ethernet
	Known               bool    // the neighbour's address is
	MTU                 int     // 0: all fits
}

// Tables is what the edge is told: by the agent, and by the kernel's routes.
type Tables struct {
	Frontends map[FrontendKey]Frontend
	Backends  map[uint32]Backend
	Ranges    map[uint32][]netip.Prefix
	Services  []netip.Prefix // ServiceCIDRs
	Pods      []netip.Prefix
	Balancers []netip.Prefix // whose encapsulated packets are for backends of this node
	// Devices is the node's own address on a device, for each IP version.
	Devices map[uint32][2]netip.Addr
	// MACs are what frames for the node have.
	MACs map[uint32][6]byte
	// PodsAt are the devices that pods of this node are behind. What these ask is met
	// where it leaves, but for what does not leave.
	PodsAt map[uint32]bool
	// Ports are the ranges that SNAT takes its ports from: first, count.
	Ports [2][2]uint16
	// Route is nil where there is none.
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

// isPod tells the class of a client: the longest prefix decides.
func (t *Tables) isPod(a netip.Addr) bool {
	pod := covers(t.Pods, a)
	return pod >= 0 && pod > covers(t.Services, a)
}

func (t *Tables) isService(a netip.Addr) bool {
	service := covers(t.Services, a)
	return service >= 0 && service > covers(t.Pods, a)
}

// handledAtEgress says that a packet of a pod is met where it leaves the node, or nowhere.
func (v *visit) handledAtEgress() bool {
	to := v.tuple
	_, exact := v.Frontends[FrontendKey{to.Destination, to.DestinationPort, to.Protocol}]
	return !v.xdp && v.PodsAt[v.device] && (!exact || v.Route(to.Destination) != nil)
}

func (t *Tables) find(to Tuple) (Frontend, bool) {
	f, ok := t.Frontends[FrontendKey{to.Destination, to.DestinationPort, to.Protocol}]
	if !ok {
		f, ok = t.Frontends[FrontendKey{Address: to.Destination}]
	}
	return f, ok
}
