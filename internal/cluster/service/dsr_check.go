// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
)

// Via selects the path of clients' packets (DSR) for a health check: encapsulated, for a frontend. The zero
// value selects plain routing to the endpoint.
type Via struct {
	DSR      DSR
	Frontend netip.AddrPort
	// Backend is the serving endpoint: Target.Addr, unless the check uses another port.
	Backend netip.AddrPort
	// To is the destination of encapsulated packets: the endpoint or, with DSRGeneve, its node.
	To netip.Addr
}

var dsrWords = map[DSR]string{DSRIPIP: "IPIP", DSRGeneve: "Geneve", DSROpt: "an IP option"}

// String returns "" for the zero value.
func (v Via) String() string {
	if v == (Via{}) {
		return ""
	}
	return fmt.Sprintf("through %s to %s", dsrWords[v.DSR], v.Frontend)
}

// checkedAt is the frontend through which the endpoints of a port are checked in one family; the zero value
// means plain routing.
type checkedAt struct {
	dsr  DSR
	addr netip.AddrPort
	node *nodeFacts
}

// via returns the path of an endpoint's check.
func (f checkedAt) via(c *candidate) Via {
	if f.dsr == "" || c.here(f.node) {
		return Via{} // clients' packets to it are not encapsulated
	}
	v := Via{DSR: f.dsr, Frontend: f.addr, Backend: c.addr, To: c.addr.Addr()}
	if f.dsr == DSRGeneve && c.node.IsValid() {
		v.To = c.node
	}
	return v
}

// checksByOption reports whether a Service's checks depend on whether this node is a Node of the cluster.
func (c *Config) checksByOption(s *Service) bool {
	return (s.Check != HealthCheck{} || len(s.CheckErrors) > 0) && c.dsrOf(s, TCP) == DSROpt
}

// checkedAt chooses the frontend for checks. It prefers one that clients outside the cluster use, because
// backends without Beeline must have that address too, and uses the ClusterIP only without such a frontend. It
// chooses none if the backend would reject this node as a client:
//
//   - the source ranges of the frontend do not admit it
//   - with DSROpt, it is a Node: clients of a balancer are never Nodes, and only the source address
//     tells who sent an option
func (p *servicePlan) checkedAt(port ServicePort, clusterIP netip.Addr, ingress, external []netip.Addr, ranges []netip.Prefix) checkedAt {
	kind, family := p.config.dsrOf(p.svc, port.Protocol), FamilyOf(clusterIP)
	own := p.node.primaryOf(family)
	if kind == "" || !p.config.Edge || port.Protocol != TCP || kind == DSROpt && own.IsValid() {
		return checkedAt{}
	}
	at := func(a netip.Addr) checkedAt { return checkedAt{kind, netip.AddrPortFrom(a, port.Port), p.node} }
	switch {
	case len(ingress) > 0:
		if ranges != nil && !inside(ranges, own) {
			return checkedAt{}
		}
		return at(ingress[0])
	case len(external) > 0:
		return at(external[0])
	case p.config.RefuseOutsideClusterIP:
		return checkedAt{}
	}
	return at(clusterIP)
}
