// SPDX-License-Identifier: Apache-2.0

// Package service decides, for every address of a Kubernetes Service, what happens to a client that
// connects to it.
//
// Its input is objects (Service, EndpointSlice, Node, Pod, ServiceCIDR); its output is frontends
// and backend sets. It is purely functional: no clock, no kernel, no API client. The rules are
// those of kube-proxy 1.36, numbered R1 to R33, R38 and R39 in docs/operate/semantics.md; each decision
// refers to its rule.
package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Protocol is an IP protocol number (IANA "Assigned Internet Protocol Numbers").
type Protocol uint8

// The protocols of Service ports.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// The protocols of Echo frontends, one for each family.
const (
	ICMP   Protocol = 1
	ICMPv6 Protocol = 58
)

var protocolNames = []string{0: "any", TCP: "TCP", UDP: "UDP", SCTP: "SCTP", ICMP: "ICMP", ICMPv6: "ICMPv6"}

func (p Protocol) String() string { return nameOf(protocolNames, uint8(p), "protocol") }

// MarshalText returns the name that Kubernetes uses.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (p *Protocol) UnmarshalText(text []byte) error {
	number, ok := named(protocolNames, text)
	if !ok {
		return fmt.Errorf("%q is not a protocol: TCP, UDP or SCTP", text)
	}
	*p = Protocol(number)
	return nil
}

// nameOf returns the name of a value of an enumeration of this kind; values without a name get their number.
func nameOf(names []string, value uint8, kind string) string {
	if int(value) < len(names) && names[value] != "" {
		return names[value]
	}
	return fmt.Sprintf("%s(%d)", kind, value)
}

// named is the inverse of nameOf, for values with a name.
func named(names []string, text []byte) (value uint8, ok bool) {
	i := slices.Index(names, string(text))
	return uint8(i), i >= 0 && len(text) > 0
}

// Family is an IP address family.
type Family uint8

// The two families. The values are the IP version numbers.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families are both families.
var Families = []Family{IPv4, IPv6}

func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// unspecified returns 0.0.0.0 or ::.
func (f Family) unspecified() netip.Addr {
	if f == IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// FamilyOf returns the family of an address; IPv4-mapped IPv6 counts as IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// Kind is the kind of an object, as in its YAML.
type Kind string

// The kinds that determine where Service traffic goes.
const (
	KindService       Kind = "Service"
	KindEndpointSlice Kind = "EndpointSlice"
	KindNode          Kind = "Node"
	KindPod           Kind = "Pod"
	KindServiceCIDR   Kind = "ServiceCIDR"

	// These determine only which pods have opted out of the socket shortcut.
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

// Port identifies a port of the object that owns frontends: a Service, or a Pod for its hostPorts (R5: object,
// port *name*, protocol).
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

// SourceClass is the class of a client, the only property of a client that the rules R16 to R20 use.
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
	return nameOf([]string{FromPod: "pod", FromNode: "node", FromOutside: "outside"}, uint8(c), "class")
}

// Verdict is what happens to a new connection or flow.
type Verdict uint8

const (
	// Pass leaves the packet or call unchanged, as if there were no Service.
	Pass Verdict = iota
	// Reject answers at once: ECONNREFUSED at a socket, TCP RST or ICMP port unreachable for a
	// packet.
	Reject
	// Drop drops a packet silently; a socket gets EPERM.
	Drop
	// Balance forwards to a backend of the decision's set.
	Balance
	// Answer answers an ICMP echo request.
	Answer
)

func (v Verdict) String() string {
	return nameOf([]string{Pass: "pass", Reject: "reject", Drop: "drop", Balance: "balance", Answer: "answer"}, uint8(v), "verdict")
}

// Scope distinguishes the sets of a Service port (R10, R11).
type Scope uint8

const (
	// ScopeCluster is the set of usable endpoints anywhere (R10).
	ScopeCluster Scope = iota
	// ScopeLocal is the set of usable endpoints of this node (R11).
	ScopeLocal
	// ScopeRetained is the set of Plan.Retained, which no decision uses.
	ScopeRetained
)

func (s Scope) String() string {
	switch s {
	case ScopeLocal:
		return "local"
	case ScopeRetained:
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

// Decision is the verdict of a frontend for one source class.
type Decision struct {
	Verdict Verdict
	// Scope selects the set (Frontend.Set) if Verdict is Balance. That set is never empty: without
	// endpoints the verdict is Reject or Drop.
	Scope Scope
	// Masquerade says that the flow gets this node's address as source if the backend is on another node (R18,
	// R19). It is reported only: the programs decide by the backend's node, and at a socket the kernel
	// chooses the source after the rewrite.
	Masquerade bool
}
