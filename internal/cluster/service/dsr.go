// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/report/condition"
)

const (
	// AnnotationDSR on a Service selects how packets of clients outside the cluster reach its backends on
	// other nodes.
	AnnotationDSR = "beeline.io/dsr"
	// AnnotationDSRHybrid on a Service limits DSR to TCP; other protocols use SNAT.
	AnnotationDSRHybrid = "beeline.io/dsr-hybrid"
	// AnnotationStateless on a Service makes balancers choose a backend for each datagram from its Maglev
	// table, without conntrack entries.
	AnnotationStateless = "beeline.io/stateless"
)

// DSR is how a packet of a client outside the cluster reaches a backend on another node with the client's
// address preserved, so that the backend replies directly to the client (direct server return). bpf/encap/wire.h
// documents the formats. Empty means DSROff.
type DSR string

const (
	DSROff    DSR = "off"    // SNAT to this node's address; replies return through this node
	DSRIPIP   DSR = "ipip"   // in another IP packet, to the backend (RFC 2003, RFC 2473)
	DSRGeneve DSR = "geneve" // in UDP, to the backend's node (RFC 8926)
	DSROpt    DSR = "opt"    // unencapsulated, to the backend, with an IP option
)

// DSRs lists the values.
var DSRs = []string{string(DSROff), string(DSRIPIP), string(DSRGeneve), string(DSROpt)}

// Switch is an annotation with the value "true" or "false"; empty if it is not set.
type Switch string

const (
	On  Switch = "true"
	Off Switch = "false"
)

var switches = []string{string(On), string(Off)}

// or returns the value of a switch, or node if it is not set.
func (s Switch) or(node bool) bool { return s == On || s == "" && node }

// dsrOf returns the DSR method of a Service for a protocol; empty without DSR.
func (c *Config) dsrOf(s *Service, protocol Protocol) DSR {
	kind := cmp.Or(s.DSR, c.DSR)
	if kind == DSROff || protocol != TCP && s.DSRHybrid.or(c.DSRHybrid) {
		return ""
	}
	return kind
}

// dsr returns how a frontend forwards packets of clients outside the cluster. It does not depend on the
// endpoints, so that all nodes agree and endpoint changes do not change it.
func (p *portPlan) dsr(kind FrontendKind, addr netip.Addr) DSR {
	switch {
	case kind == ClusterIP && p.config.RefuseOutsideClusterIP, addr.IsLoopback():
		return "" // clients outside the cluster are not forwarded
	}
	return p.config.dsrOf(p.svc, p.port.Protocol)
}

// untracked reports whether any balancer may choose a backend for any packet of a flow without a conntrack
// entry. For TCP this is safe, because backends reset connections that they do not have. Other protocols need
// the annotation, which permits that datagrams of a flow reach different backends.
func (p *portPlan) untracked(dsr DSR) bool {
	return dsr != "" && p.plan.TableSize > 0 && p.svc.Affinity == 0 &&
		(p.port.Protocol == TCP || p.svc.Stateless == On)
}

// withNodes sets the backends' nodes if packets are sent to the nodes (DSRGeneve). Otherwise backends have no
// node, so that a change of a Node does not change them.
func (p *servicePlan) withNodes(all []candidate, port ServicePort) {
	if p.config.dsrOf(p.svc, port.Protocol) != DSRGeneve {
		return
	}
	for i := range all {
		c := &all[i]
		if !c.local(p.node) {
			c.node = cmp.Or(p.node.objects[c.endpoint.Node], noNode).addressOf(FamilyOf(c.addr.Addr()))
		}
	}
}

// sentToNodes reports whether the Service's packets are sent to the nodes of its backends.
func (c *Config) sentToNodes(s *Service) bool {
	return slices.ContainsFunc(s.Ports, func(p ServicePort) bool { return c.dsrOf(s, p.Protocol) == DSRGeneve })
}

// warnDSR adds a problem for each annotation without effect.
func (p *servicePlan) warnDSR() {
	without := func(annotation, why, format string, args ...any) {
		p.plan.problem(condition.AnnotationWithoutEffect.New(`%s: "true" has no effect%s`, annotation, why).Do(format, args...))
	}
	off := cmp.Or(p.svc.DSR, p.config.DSR, DSROff) == DSROff
	if off && p.svc.DSRHybrid == On {
		without(AnnotationDSRHybrid, " while "+AnnotationDSR+" is off", "set it to ipip, geneve or opt")
	}
	if p.svc.Stateless != On {
		return
	}
	datagrams := func(s ServicePort) bool { return s.Protocol != TCP }
	switch {
	case off:
		without(AnnotationStateless, " while "+AnnotationDSR+" is off", "set it to ipip, geneve or opt")
	case !slices.ContainsFunc(p.svc.Ports, datagrams):
		without(AnnotationStateless, " on TCP, and the Service has only TCP ports", "remove it")
	case p.svc.DSRHybrid.or(p.config.DSRHybrid):
		without(AnnotationStateless, ", because only TCP uses DSR", "set %s to \"false\"", AnnotationDSRHybrid)
	case p.plan.TableSize == 0:
		without(AnnotationStateless, " with the algorithm random", "set %s to maglev", AnnotationAlgorithm)
	case p.svc.Affinity > 0:
		without(AnnotationStateless, " with session affinity, which needs state", "set sessionAffinity to None")
	}
}

// warnSharedAddresses adds a problem for endpoints on other nodes that differ only in their ports: an IPIP
// packet carries only the address, so the backend cannot tell them apart.
func (p *portPlan) warnSharedAddresses() {
	if p.config.dsrOf(p.svc, p.port.Protocol) != DSRIPIP {
		return
	}
	all := p.sets.of(ScopeCluster)
	for i := 1; i < len(all); i++ {
		if a := all[i].Addr; a.Addr() == all[i-1].Addr.Addr() && !all[i].Local {
			p.plan.problem(condition.EndpointsIndistinct.New(
				"endpoints %s and %s of port %s: packets for both reach one of them, because ipip carries no port", all[i-1].Addr, a, p.port).
				Do("set %s to geneve or opt, or give them the same port", AnnotationDSR))
		}
	}
}
