// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"beeline.io/beeline/internal/report/condition"
)

// FrontendKind is the field of an object that requests a frontend.
type FrontendKind uint8

// The kinds, in order of precedence: if two objects request the same address and port, the lower kind gets it.
// Within one object the order is different (R38).
const (
	ClusterIP FrontendKind = iota + 1
	// ClusterIPOtherPorts is every port and protocol of a ClusterIP without a Service port (R21). Port and
	// Protocol of its key are zero.
	ClusterIPOtherPorts
	NodePort
	LoadBalancer
	ExternalIP
	HostPort
	// Echo is ICMP echo at an address of kind LoadBalancer or ExternalIP. The key's port is zero, its
	// protocol ICMP or ICMPv6. Objects with the same address share one without a problem.
	Echo
)

var frontendKindNames = []string{
	ClusterIP: "ClusterIP", ClusterIPOtherPorts: "ClusterIP (other ports)", NodePort: "NodePort", LoadBalancer: "LoadBalancer",
	ExternalIP: "ExternalIP", HostPort: "HostPort", Echo: "ICMP echo",
}

func (k FrontendKind) String() string { return nameOf(frontendKindNames, uint8(k), "kind") }

// MarshalText returns the name of the field.
func (k FrontendKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (k *FrontendKind) UnmarshalText(text []byte) error {
	number, ok := named(frontendKindNames, text)
	if !ok {
		return fmt.Errorf("%q is not a kind of frontend", text)
	}
	*k = FrontendKind(number)
	return nil
}

// FrontendKey is the destination of clients. Addr is never an IPv4-mapped IPv6 address and has no zone. Port is
// in host byte order; zero means every port. Protocol zero means every protocol. ICMP and ICMPv6, which have no
// ports, mean echo requests.
type FrontendKey struct {
	Addr     netip.Addr
	Port     uint16
	Protocol Protocol
}

func (k FrontendKey) String() string {
	if k.Port == 0 && k.Protocol != 0 {
		return k.Addr.String() + "/" + k.Protocol.String()
	}
	if k.Port == 0 {
		return k.Addr.String() + " (other ports)"
	}
	return netip.AddrPortFrom(k.Addr, k.Port).String() + "/" + k.Protocol.String()
}

// Compare orders by address, port and protocol.
func (k FrontendKey) Compare(o FrontendKey) int {
	return cmp.Or(k.Addr.Compare(o.Addr), cmp.Compare(k.Port, o.Port), cmp.Compare(k.Protocol, o.Protocol))
}

// Frontend is one address of a Service, with the decision for each class of clients.
type Frontend struct {
	Key       FrontendKey
	Kind      FrontendKind
	Port      Port
	Decisions [SourceClasses]Decision
	// Affinity is the timeout of sessionAffinity ClientIP in whole seconds; zero means no affinity (R27).
	Affinity time.Duration
	// LoopbackExact limits a frontend on 127.0.0.1 to that address. Otherwise it covers all of 127.0.0.0/8.
	LoopbackExact bool
	// OwnAddress means that the frontend has SourceRanges and an address of this node, which the node's own
	// sockets then use as their source address unless they are bound.
	OwnAddress bool
	// ByPacket means that sockets of pods leave the destination to the packet path, which masquerades
	// (Config.MasqueradeAll).
	ByPacket bool
	// AtClusterIP marks a frontend of kind LoadBalancer or ExternalIP at the Service's own ClusterIP.
	// Against other objects it counts as a ClusterIP.
	AtClusterIP bool
	// SourceRanges are the admitted clients, sorted; nil admits all (R25). Packets of other clients are
	// dropped, regardless of Decisions.
	SourceRanges []netip.Prefix
	// DSR is how packets of clients outside the cluster reach backends on other nodes; empty for SNAT,
	// never DSROff.
	DSR DSR
	// Untracked lets balancers forward packets of clients outside the cluster to backends on other
	// nodes without conntrack entries. It requires DSR and a Maglev table.
	Untracked bool
}

// Set returns the key of the backend set of a decision.
func (f *Frontend) Set(d Decision) SetKey { return SetKey{f.Port, FamilyOf(f.Key.Addr), d.Scope} }

// claims returns the kind that counts if another object requests the same key.
func (f *Frontend) claims() FrontendKind {
	if f.AtClusterIP {
		return ClusterIP
	}
	return f.Kind
}

// Backend is an endpoint of a set. Addr is never IPv4-mapped and has no zone; the port is in host byte order.
type Backend struct {
	Addr netip.AddrPort
	// Local means on this node. If the endpoint has no node name, its address decides; traffic policies
	// treat such an endpoint as on no node (R11).
	Local bool
	// Weight, 1 to 255, is the backend's share of new connections relative to the other backends of its
	// set.
	Weight uint8
	// Node is an address of the backend's node, of the backend's family. It is valid only if the frontends
	// of its port use DSRGeneve and the backend is on another node with a known address.
	Node netip.Addr
}

// Algorithm is how a backend is chosen from a set.
type Algorithm string

const (
	// Random chooses at random for a connection, and by a hash for a packet. A change of the set changes
	// most choices for new flows.
	Random Algorithm = "random"
	// Maglev chooses the same backend for a flow on every node with the same set. A change of the set
	// changes few choices (package maglev).
	Maglev Algorithm = "maglev"
)

// Algorithms lists the values.
var Algorithms = []string{string(Random), string(Maglev)}

// BackendSet is a set from which a Balance decision chooses. It has at least one backend. Backends are sorted
// by address, each address and port once, because BPF programs do a binary search.
type BackendSet struct {
	Key      SetKey
	Backends []Backend
}

// Plan is what one object (a Service, or a Pod with hostPorts) requests from the datapath.
type Plan struct {
	// Frontends of the object, sorted by key. One that another object holds is in Problems instead.
	Frontends []Frontend
	// Sets are those that Frontends use, sorted by key.
	Sets []BackendSet
	// TableSize is the number of slots of each set's Maglev table; 0 if the algorithm is Random.
	TableSize uint32
	// Retained are endpoints that serve but are not in the sets of all frontends of their port: terminating
	// ones, those on other nodes, and those that topology hides. They get no new flows at these frontends.
	// A UDP flow to such an endpoint continues, while flows to endpoints that do not serve end at once
	// (R29). Retained is filled for UDP ports, for TCP ports with Config.KeepTCP, and for ports with
	// untracked frontends, whose connections without a conntrack entry find their endpoint here. In the
	// last case, unless Config.KeepTCP is set or the port is UDP, it includes endpoints that do not serve
	// (R30). Sorted by key, all of weight 1.
	Retained []BackendSet
	// Problems are requests of the object that are not fulfilled. Their Object field is empty: it is the
	// plan's owner.
	Problems condition.List
	// HealthPorts are the addresses of this node's healthCheckNodePort (R34).
	HealthPorts []HealthPort
	// Refusals are why clients are rejected at ports without a usable endpoint.
	Refusals []string
	// Created is the creation time of the object.
	Created time.Time
}

// HealthPort is one address at which a Service's healthCheckNodePort is served (R34).
type HealthPort struct {
	Addr netip.AddrPort
	// Ready is the number of distinct addresses, of the family of Addr, at which the Service has ready
	// endpoints on this node.
	Ready int
}

// Delta holds the effects of a batch of changes.
type Delta struct {
	// Plans holds the new plan of each object whose plan changed; nil if it no longer has one.
	Plans map[Ref]*Plan
	// Lost holds Services that had endpoints for new connections before, and now have none.
	Lost []Ref
	// ServiceCIDRs is the new sorted list if it changed, else nil. Packets to an address inside without a
	// frontend are dropped (R21).
	ServiceCIDRs *[]netip.Prefix
	// PodNetworks is the new sorted list of pod networks if it changed, else nil. Addresses inside do not
	// count as outside the cluster.
	PodNetworks *[]netip.Prefix
	// Balancers is the new sorted list of networks from which encapsulated packets are accepted if it
	// changed, else nil.
	Balancers *[]netip.Prefix
	// Resolved counts the objects whose plan was recomputed, changed or not.
	Resolved int
	// Targets means that the probe targets changed; see Cluster.Targets.
	Targets bool
	// Triggers are those of the changed EndpointSlices.
	Triggers []Trigger
}
