// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"
)

// FrontendKind says which field of an object asked for a frontend.
type FrontendKind uint8

// The kinds, in order of precedence: of two objects that ask for one address
// and port, the lower kind has it. Within one object it is another order (R38).
const (
	ClusterIP FrontendKind = iota + 1
	// ClusterIPOther is every port and protocol of a ClusterIP that no Service
	// port names (R21). Port and Protocol of its key are zero.
	ClusterIPOther
	NodePort
	LoadBalancer
	ExternalIP
	HostPort
	// Echo is ICMP echo at an address of kind LoadBalancer or ExternalIP. The key's
	// port is zero, its protocol ICMP or ICMPv6. Objects with the same address share
	// one: that another has it is no problem.
	Echo
)

func (k FrontendKind) String() string {
	switch k {
	case ClusterIP:
		return "ClusterIP"
	case ClusterIPOther:
		return "ClusterIP (other ports)"
	case NodePort:
		return "NodePort"
	case LoadBalancer:
		return "LoadBalancer"
	case ExternalIP:
		return "ExternalIP"
	case HostPort:
		return "HostPort"
	case Echo:
		return "ICMP echo"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// MarshalText writes the field's name.
func (k FrontendKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (k *FrontendKind) UnmarshalText(text []byte) error {
	for known := ClusterIP; known <= Echo; known++ {
		if known.String() == string(text) {
			*k = known
			return nil
		}
	}
	return fmt.Errorf("%q is not a kind of frontend", text)
}

// FrontendKey is the address that a client asks for. Addr is never an
// IPv4-mapped IPv6 address and has no zone. Port is in host byte order; zero
// stands for every port, Protocol zero for every protocol. ICMP and ICMPv6 have no
// ports: those are echo requests.
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

// Frontend is one address that clients ask for, and what each class of them
// meets there.
type Frontend struct {
	Key       FrontendKey
	Kind      FrontendKind
	Port      Port
	Decisions [SourceClasses]Decision
	// Affinity is the sessionAffinity ClientIP timeout in whole seconds; zero
	// is no affinity (R27).
	Affinity time.Duration
	// OneAddress: a frontend on 127.0.0.1 is there alone. Else that address stands
	// for all of 127.0.0.0/8.
	OneAddress bool
	// OwnAddress: the frontend has SourceRanges and is at an address of this node,
	// which its own sockets ask from that very address unless they are bound.
	OwnAddress bool
	// AtClusterIP: a frontend of kind LoadBalancer or ExternalIP at the Service's own
	// ClusterIP. Other objects meet it as the ClusterIP that it is.
	AtClusterIP bool
	// SourceRanges are the clients admitted, sorted; nil admits all (R25).
	// A client outside of them meets Drop, whatever Decisions say.
	SourceRanges []netip.Prefix
	// DSR is how packets of clients outside get to backends of other nodes; empty: in this
	// node's name. Never DSROff.
	DSR DSR
	// Untracked: balancers may send packets of clients outside to backends of other nodes
	// without a record of the flow. Only with DSR and a Maglev table.
	Untracked bool
}

// Set is the key of the set that a decision of this frontend names.
func (f *Frontend) Set(d Decision) SetKey { return SetKey{f.Port, FamilyOf(f.Key.Addr), d.Scope} }

// claims is the kind that counts where another object asks for the same key.
func (f *Frontend) claims() FrontendKind {
	if f.AtClusterIP {
		return ClusterIP
	}
	return f.Kind
}

// Backend is an endpoint of a set. Addr is never IPv4-mapped and has no zone;
// the port is in host byte order.
type Backend struct {
	Addr netip.AddrPort
	// Local: on this node. If its endpoint does not say on which node it is, that is
	// told by the address; to traffic policies such an endpoint is nowhere (R11).
	Local bool
	// Weight is the backend's share of new connections relative to the others
	// of its set, 1 to 255.
	Weight uint8
	// Node is an address of its node, of the backend's family; not valid where none is
	// known, on this node, and unless the frontends of its port have DSRGeneve.
	Node netip.Addr
}

// Algorithm is how a backend is chosen from a set.
type Algorithm string

const (
	// Random: by chance for a connection, by a hash for a packet; a change of the set
	// changes most choices of new flows.
	Random Algorithm = "random"
	// Maglev: the same backend for a flow on every node that has the same set, and a
	// change of it changes few choices (package maglev).
	Maglev Algorithm = "maglev"
)

// Algorithms are those that there are.
var Algorithms = []string{string(Random), string(Maglev)}

// BackendSet is what a Balance decision chooses from. Backends are sorted by
// address, each address and port once, at least one: programs look for a backend
// by a binary search.
type BackendSet struct {
	Key      SetKey
	Backends []Backend
}

// Plan is all that one object (Service, or Pod with hostPorts) asks of the
// datapath.
type Plan struct {
	// Frontends the object has, sorted by key. One that another object has
	// already is not here but in Problems.
	Frontends []Frontend
	// Sets that Frontends refer to, sorted by key.
	Sets []BackendSet
	// TableSize is the number of slots of the Maglev table of each of Sets; 0: the
	// algorithm is Random.
	TableSize uint32
	// Kept are endpoints that serve, but are not in a set of every frontend of
	// their port: one that terminates, that another node has, or that topology
	// hides. New flows do not reach them there; a UDP flow that has one keeps it,
	// as flows to anything that does not serve end at once (R29). For UDP ports, for TCP
	// ports if Config.KeepTCP, and for ports with untracked frontends: there connections
	// without a record find their endpoint by it, and unless Config.KeepTCP or the port
	// is of UDP it has those that do not serve, too (R30). Sorted by key, each of weight 1.
	Kept []BackendSet
	// Problems say in words what the object asked for and did not get.
	Problems []string
	// Refusals say in words why clients are refused at ports without a usable endpoint.
	Refusals []string
	// Created is when the object was made. Plans that differ in nothing else are equal.
	Created time.Time
}

// Delta is what a batch of changes altered.
type Delta struct {
	// Plans by object: the new plan of each object whose plan changed, nil if it
	// has none any more.
	Plans map[Ref]*Plan
	// ServiceCIDRs is the new sorted list if it changed, else nil. An address
	// inside that no frontend has is a Drop (R21).
	ServiceCIDRs *[]netip.Prefix
	// PodNetworks is the new sorted list of networks that pods are in if it changed,
	// else nil: who has an address inside is no client from outside.
	PodNetworks *[]netip.Prefix
	// Balancers is the new sorted list of networks whose encapsulated packets are for
	// backends of this node if it changed, else nil.
	Balancers *[]netip.Prefix
	// Resolved counts the objects whose plan was computed anew, changed or not.
	Resolved int
	// Targets says that others are to be asked than before: see Table.Targets.
	Targets bool
}
