// SPDX-License-Identifier: Apache-2.0

// Package service decides, for every address that a Kubernetes Service can be
// reached at, what happens to a client that asks for it.
//
// Objects go in (Service, EndpointSlice, Node, Pod, ServiceCIDR), frontends
// and backend sets come out. Everything here is a function of values: no
// clock, no kernel, no API client. The rules are those of kube-proxy 1.36,
// numbered R1 to R33, R38 and R39 in docs/semantics.md; each decision names its rule.
package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
)

// Protocol is an IP protocol number (IANA "Assigned Internet Protocol Numbers").
type Protocol uint8

// The protocols a Service port can have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// The protocols of an Echo frontend, one for each family.
const (
	ICMP   Protocol = 1
	ICMPv6 Protocol = 58
)

func (p Protocol) String() string {
	switch p {
	case 0:
		return "any"
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	case ICMP:
		return "ICMP"
	case ICMPv6:
		return "ICMPv6"
	}
	return fmt.Sprintf("protocol(%d)", uint8(p))
}

// MarshalText writes the name that Kubernetes uses.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (p *Protocol) UnmarshalText(text []byte) error {
	for _, known := range []Protocol{0, TCP, UDP, SCTP, ICMP, ICMPv6} {
		if known.String() == string(text) {
			*p = known
			return nil
		}
	}
	return fmt.Errorf("%q is not a protocol: TCP, UDP or SCTP", text)
}

// Family is an IP address family.
type Family uint8

// The two families; the values are the IP version numbers.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// FamilyOf returns the family of an address; IPv4-mapped IPv6 counts as IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// Kind names an object kind, as in its YAML.
type Kind string

// The kinds that decide where Service traffic goes.
const (
	KindService       Kind = "Service"
	KindEndpointSlice Kind = "EndpointSlice"
	KindNode          Kind = "Node"
	KindPod           Kind = "Pod"
	KindServiceCIDR   Kind = "ServiceCIDR"

	// These say only which pods have opted out of the socket shortcut.
	KindNamespace    Kind = "Namespace"
	KindRuntimeClass Kind = "RuntimeClass"
)

// Ref identifies one object. Namespace is empty for cluster-wide kinds.
type Ref struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (r Ref) String() string {
	if r.Namespace == "" {
		return string(r.Kind) + " " + r.Name
	}
	return string(r.Kind) + " " + r.Namespace + "/" + r.Name
}

// Compare orders by kind, namespace and name.
func (r Ref) Compare(o Ref) int {
	return cmp.Or(cmp.Compare(r.Kind, o.Kind), strings.Compare(r.Namespace, o.Namespace), strings.Compare(r.Name, o.Name))
}

// Port identifies one port of the object that owns frontends: a Service, or a
// Pod for its hostPorts (R5: object, port *name*, protocol).
type Port struct {
	Owner    Ref
	Name     string
	Protocol Protocol
}

func (p Port) String() string {
	s := p.Owner.Namespace + "/" + p.Owner.Name
	if p.Name != "" {
		s += ":" + p.Name
	}
	return s + "/" + p.Protocol.String()
}

// Compare orders by owner, name and protocol.
func (p Port) Compare(o Port) int {
	return cmp.Or(p.Owner.Compare(o.Owner), strings.Compare(p.Name, o.Name), cmp.Compare(p.Protocol, o.Protocol))
}

// SourceClass says from where a client asks. It is all that the rules R16 to
// R20 want to know of a client.
type SourceClass uint8

// The classes, in the order of Frontend.Decisions.
const (
	// FromPod: a pod of the cluster.
	FromPod SourceClass = iota
	// FromNode: the node's own network namespace, hostNetwork pods included.
	FromNode
	// FromOutside: anything else.
	FromOutside
	SourceClasses = 3
)

func (c SourceClass) String() string {
	switch c {
	case FromPod:
		return "pod"
	case FromNode:
		return "node"
	case FromOutside:
		return "outside"
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// Verdict says what happens to a new connection or flow.
type Verdict uint8

const (
	// Pass leaves it alone, as if there were no Service.
	Pass Verdict = iota
	// Reject answers at once: ECONNREFUSED at a socket, TCP RST or ICMP port
	// unreachable for a packet.
	Reject
	// Drop answers nothing to a packet, and EPERM at a socket.
	Drop
	// Balance sends it to a backend of the decision's set.
	Balance
	// Answer answers an ICMP echo request.
	Answer
)

func (v Verdict) String() string {
	switch v {
	case Pass:
		return "pass"
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	case Balance:
		return "balance"
	case Answer:
		return "answer"
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Scope tells the sets that a Service port can have (R10, R11).
type Scope uint8

const (
	// Cluster is the set of usable endpoints anywhere (R10).
	Cluster Scope = iota
	// Local is the set of usable endpoints of this node (R11).
	Local
	// Kept are those of Plan.Kept, which no decision names.
	Kept
)

func (s Scope) String() string {
	switch s {
	case Local:
		return "local"
	case Kept:
		return "kept"
	}
	return "cluster"
}

// SetKey identifies a backend set.
type SetKey struct {
	Port   Port
	Family Family
	Scope  Scope
}

func (k SetKey) String() string {
	return fmt.Sprintf("%s (%s, %s)", k.Port, k.Family, k.Scope)
}

// Compare orders by port, family and scope.
func (k SetKey) Compare(o SetKey) int {
	return cmp.Or(k.Port.Compare(o.Port), cmp.Compare(k.Family, o.Family), cmp.Compare(k.Scope, o.Scope))
}

// Decision is what one source class meets at a frontend.
type Decision struct {
	Verdict Verdict
	// Scope tells the set (Frontend.Set), and is meant only if Verdict is Balance. The
	// set is never empty then: no endpoint is a Reject or a Drop.
	Scope Scope
	// Masquerade: the packet path gives the flow this node's address as source
	// (R18, R19). The socket path ignores it: there the kernel picks the source
	// after the rewrite.
	Masquerade bool
}
