// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

const (
	// AnnotationDSR on a Service is how packets of clients outside get to its backends on
	// other nodes.
	AnnotationDSR = "beeline.io/dsr"
	// AnnotationDSRHybrid on a Service leaves all but TCP to SNAT.
	AnnotationDSRHybrid = "beeline.io/dsr-hybrid"
	// AnnotationStateless on a Service lets balancers choose a backend for each datagram
	// anew, by its Maglev table, and remember no flows.
	AnnotationStateless = "beeline.io/stateless"
)

// DSR is how a packet of a client outside gets to a backend of another node with the
// client's address, so that the answer goes straight to the client (direct server
// return). bpf/lib/dsr.h has what each looks like. Empty is as DSROff.
type DSR string

const (
	DSROff    DSR = "off"    // in this node's name (SNAT), and the answer comes back here
	DSRIPIP   DSR = "ipip"   // in another IP packet, to the backend (RFC 2003, RFC 2473)
	DSRGeneve DSR = "geneve" // in UDP, to the backend's node (RFC 8926)
	DSROpt    DSR = "opt"    // as it is, to the backend, with an option of IP
)

// DSRs are those that there are.
var DSRs = []string{string(DSROff), string(DSRIPIP), string(DSRGeneve), string(DSROpt)}

// Switch is an annotation that is "true" or "false"; empty: there is none.
type Switch string

const (
	On  Switch = "true"
	Off Switch = "false"
)

// or is what a switch says, or the node if it says nothing.
func (s Switch) or(node bool) bool { return s == On || s == "" && node }

func dsr(errs *fieldErrors, annotations map[string]string) DSR {
	v, ok := annotations[AnnotationDSR]
	if ok && !slices.Contains(DSRs, v) {
		errs.add("metadata.annotations["+AnnotationDSR+"]", v, strings.Join(DSRs, " or "))
		return ""
	}
	return DSR(v)
}

func annotatedSwitch(errs *fieldErrors, annotations map[string]string, name string) Switch {
	v, ok := annotations[name]
	if ok && v != string(On) && v != string(Off) {
		errs.add("metadata.annotations["+name+"]", v, `"true" or "false"`)
		return ""
	}
	return Switch(v)
}

// dsrOf is what a Service asks for, for a protocol; empty: nothing.
func (c *Config) dsrOf(s *Service, protocol Protocol) DSR {
	kind := cmp.Or(s.DSR, c.DSR)
	if kind == DSROff || protocol != TCP && s.DSRHybrid.or(c.DSRHybrid) {
		return ""
	}
	return kind
}

// dsr is how clients outside are sent on at a frontend. It does not depend on the
// endpoints: nodes agree on it, and an endpoint that comes or goes changes nothing.
func (p *portPlan) dsr(kind FrontendKind, addr netip.Addr) DSR {
	switch {
	case kind == ClusterIP && p.config.RefuseOutsideClusterIP, addr.IsLoopback():
		return "" // nobody outside is sent anywhere
	}
	return p.config.dsrOf(p.svc, p.port.Protocol)
}

// untracked says whether any balancer may choose a backend for any packet of a flow,
// without a record of it. TCP is at the backends' mercy then, which reset what is not
// theirs; who may lose datagrams to another backend says so.
func (p *portPlan) untracked(dsr DSR) bool {
	return dsr != "" && p.plan.TableSize > 0 && p.svc.Affinity == 0 &&
		(p.port.Protocol == TCP || p.svc.Stateless == On)
}

// withNodes says where backends of other nodes are, if packets are sent to these (DSRGeneve).
// Else the node is nothing that a backend has: it would be another with each that comes.
func (p *servicePlan) withNodes(all []candidate, port ServicePort) {
	if p.config.dsrOf(p.svc, port.Protocol) != DSRGeneve {
		return
	}
	for i := range all {
		c := &all[i]
		if !c.local(p.node) {
			c.node = p.node.addressOf(c.endpoint.Node, FamilyOf(c.addr.Addr()))
		}
	}
}

// sentToNodes says whether the Service's packets are sent to the nodes of its backends.
func (c *Config) sentToNodes(s *Service) bool {
	return slices.ContainsFunc(s.Ports, func(p ServicePort) bool { return c.dsrOf(s, p.Protocol) == DSRGeneve })
}

// complainOfDSR says what the annotations ask for and has no effect.
func (p *servicePlan) complainOfDSR() {
	complain := func(annotation, format string, args ...any) {
		p.plan.Problems = append(p.plan.Problems, fmt.Sprintf(`%s: "true" has no effect`, annotation)+fmt.Sprintf(format, args...))
	}
	off := cmp.Or(p.svc.DSR, p.config.DSR, DSROff) == DSROff
	if off && p.svc.DSRHybrid == On {
		complain(AnnotationDSRHybrid, " while %s is off: set it to ipip, geneve or opt", AnnotationDSR)
	}
	if p.svc.Stateless != On {
		return
	}
	datagrams := func(s ServicePort) bool { return s.Protocol != TCP }
	switch {
	case off:
		complain(AnnotationStateless, " while %s is off: set it to ipip, geneve or opt", AnnotationDSR)
	case !slices.ContainsFunc(p.svc.Ports, datagrams):
		complain(AnnotationStateless, " on TCP, and the Service has no other port: remove it")
	case p.svc.DSRHybrid.or(p.config.DSRHybrid):
		complain(AnnotationStateless, ", because only TCP goes by DSR: set %s to \"false\"", AnnotationDSRHybrid)
	case p.plan.TableSize == 0:
		complain(AnnotationStateless, " with the algorithm random: set %s to maglev", AnnotationAlgorithm)
	case p.svc.Affinity > 0:
		complain(AnnotationStateless, " with session affinity, which has to be remembered: set sessionAffinity to None")
	}
}

// complainOfSharedAddresses names endpoints of other nodes that differ in their port alone:
// a packet in IPIP has their address, and nothing tells which of them is meant.
func (p *portPlan) complainOfSharedAddresses() {
	if p.config.dsrOf(p.svc, p.port.Protocol) != DSRIPIP {
		return
	}
	all := p.sets.of(Cluster)
	for i := 1; i < len(all); i++ {
		if a := all[i].Addr; a.Addr() == all[i-1].Addr.Addr() && !all[i].Local {
			p.plan.Problems = append(p.plan.Problems, fmt.Sprintf(
				"endpoints %s and %s of port %s: packets to both go to one of them, because ipip names no ports: set %s to geneve or opt, or let them have one port",
				all[i-1].Addr, a, p.port, AnnotationDSR))
		}
	}
}
