// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/report/condition"
)

// proxied reports whether Beeline implements a Service with a ClusterIP (R1, R3).
func proxied(s *Service, config *Config) bool {
	ours := config.ServiceProxyName != "" && s.ProxyName == config.ServiceProxyName
	return s.Type != "ExternalName" && (!s.HasProxyName || ours)
}

// clusterIP returns the Service's ClusterIP of a family; the zero Addr if it has none or is headless (R3, R7).
// Objects from before dual stack have no ipFamilies: then the address decides.
func (s *Service) clusterIP(family Family) netip.Addr {
	for i, ip := range s.ClusterIPs {
		a, ok := parseAddr(ip)
		if !ok || FamilyOf(a) != family {
			continue
		}
		if len(s.IPFamilies) == 0 || i < len(s.IPFamilies) && s.IPFamilies[i] == family {
			return a
		}
	}
	return netip.Addr{}
}

// servicePlan builds a Plan. The plan does not cover what depends on the packet: hairpin traffic, of a pod that
// reaches itself through the Service, is detected when the backend is chosen, and always masqueraded (R19).
type servicePlan struct {
	config *Config
	node   *nodeFacts
	svc    *Service
	slices []*EndpointSlice
	health *serviceHealth
	plan   *Plan
	left   bool // an address is left to a socket of this node
}

// resolveService computes the plan of a Service as if no other object existed; nil if the Service is not
// proxied. The slices must be sorted by name.
func resolveService(s *Service, endpointSlices []*EndpointSlice, config *Config, node *nodeFacts, health *serviceHealth) *Plan {
	if !proxied(s, config) {
		return nil
	}
	p := servicePlan{config: config, node: node, svc: s, slices: endpointSlices, health: health, plan: &Plan{Problems: checkProblems(s, health != nil)}}
	if cmp.Or(s.Algorithm, config.Algorithm) == Maglev {
		p.plan.TableSize = config.TableSize
	}
	p.warnDSR()
	for _, family := range Families {
		if ip := s.clusterIP(family); ip.IsValid() {
			p.addFamily(family, ip)
			p.addHealthPorts(family)
		}
	}
	if len(p.plan.Frontends) == 0 && !p.left {
		return nil
	}
	p.warnChecks()
	p.plan.finish()
	return p.plan
}

func (p *servicePlan) addFamily(family Family, clusterIP netip.Addr) {
	p.addOtherPorts(clusterIP)
	ingress := ofFamily(p.svc.IngressIPs, family)
	external := p.admitted(ofFamily(p.svc.ExternalIPs, family), clusterIP)
	ranges := sourceRanges(p.svc.SourceRanges, ingress, p.node.primaryOf(family), family)
	firstOfFamily := len(p.plan.Frontends)
	bySlice := portsOf(p.slices, family)
	seen := make(map[portName]bool, len(p.svc.Ports))
	for _, port := range p.svc.Ports {
		name := port.named()
		if seen[name] {
			p.plan.problem(condition.PortNotUnique.New(
				"port %d/%s: another %s port of this Service has the name %q", port.Port, port.Protocol, port.Protocol, port.Name).Do("give the port a different name"))
			continue
		}
		seen[name] = true
		first := len(p.plan.Frontends)
		all := mergeEndpoints(bySlice[name])
		p.withNodes(all, port)
		if problem := p.health.mark(all, port, p.checkedAt(port, clusterIP, ingress, external, ranges)); problem != "" {
			p.plan.problem(condition.AnnotationWithoutEffect.New("%s", problem).Do("set the annotation %s to a TCP port of the endpoints", AnnotationHealthCheckPort))
		}
		f := portPlan{p, Port{p.svc.Ref(), port.Name, port.Protocol}, family, selectEndpoints(all, p.node)}
		f.add(ClusterIP, clusterIP, port.Port, f.internal(), nil)
		f.addNodePorts(port.NodePort)
		for _, ip := range ingress {
			f.add(LoadBalancer, ip, port.Port, f.external(), ranges)
		}
		for _, ip := range external {
			f.add(ExternalIP, ip, port.Port, f.externalIP(ip == clusterIP), nil)
		}
		f.addSets(all, p.plan.Frontends[first:])
		if port.Protocol == SCTP {
			f.warnSCTP(p.plan.Frontends[first:])
		}
		f.warnSharedAddresses()
		f.warnEndpoints(all)
	}
	p.addEchoes(family, p.plan.Frontends[firstOfFamily:])
}

// addOtherPorts rejects everything at a ClusterIP except the Service's ports (R21), unless the address also
// belongs to this node, whose own programs listen there and get replies there.
func (p *servicePlan) addOtherPorts(clusterIP netip.Addr) {
	if p.node.isLocal(clusterIP) || p.svc.NodeOnly {
		return
	}
	reject := Decision{Verdict: Reject}
	p.plan.Frontends = append(p.plan.Frontends, Frontend{
		Key:       FrontendKey{Addr: clusterIP},
		Kind:      ClusterIPOtherPorts,
		Port:      Port{Owner: p.svc.Ref()},
		Decisions: [SourceClasses]Decision{reject, reject, reject},
	})
}

// portPlan builds the part of a plan for one service port in one family.
type portPlan struct {
	*servicePlan
	port   Port
	family Family
	sets   portSets
}

// add appends a frontend.
func (p *portPlan) add(kind FrontendKind, addr netip.Addr, port uint16, ds [SourceClasses]Decision, ranges []netip.Prefix) {
	key := FrontendKey{addr, port, p.port.Protocol}
	if p.node.sockets[key] {
		if p.left = true; kind == ClusterIP {
			p.plan.problem(condition.ClusterIPLeftToNode.New("%s is left to the socket of this node that has bound it, because a rule of this node exempts it from conntrack", key))
		}
		return
	}
	dsr := p.dsr(kind, addr)
	p.plan.Frontends = append(p.plan.Frontends, Frontend{
		Key:          key,
		Kind:         kind,
		Port:         p.port,
		Decisions:    ds,
		Affinity:     p.svc.Affinity,
		OwnAddress:   ranges != nil && p.node.isLocal(addr),
		ByPacket:     p.config.MasqueradeAll && (kind == ClusterIP || !p.svc.ExternalLocal),
		SourceRanges: ranges,
		DSR:          dsr,
		Untracked:    p.untracked(dsr),
	})
}

// addNodePorts serves a NodePort on this node's addresses, but not on those of other nodes (R22, R23). On
// loopback addresses it serves only the node itself.
func (p *portPlan) addNodePorts(port uint16) {
	if port == 0 {
		return
	}
	external := p.external()
	for _, addr := range ofFamily(p.node.nodePorts, p.family) {
		p.add(NodePort, addr, port, external, nil)
	}
	if p.config.LocalhostNodePorts {
		p.add(NodePort, loopback(p.family), port, [SourceClasses]Decision{FromNode: external[FromNode]}, nil)
	}
}

// decide chooses the verdict for a scope. If endpoints exist but none is reachable, it drops, so that the
// client retries elsewhere; if none exist, it rejects (R16, R18).
func (p *portPlan) decide(scope Scope, masquerade bool) Decision {
	switch {
	case len(p.sets.of(scope)) > 0:
		return Decision{Balance, scope, masquerade}
	case p.sets.anywhere:
		return Decision{Verdict: Drop}
	}
	return Decision{Verdict: Reject}
}

// internal decides for a ClusterIP (R16, R19, R20).
func (p *portPlan) internal() [SourceClasses]Decision {
	scope := ScopeCluster
	if p.svc.InternalLocal {
		scope = ScopeLocal
	}
	ds := [SourceClasses]Decision{
		FromPod:     p.decide(scope, p.config.MasqueradeAll),
		FromNode:    p.decide(scope, true),
		FromOutside: p.decide(scope, true),
	}
	if p.config.RefuseOutsideClusterIP {
		ds[FromOutside] = Decision{Verdict: Reject}
	}
	if p.svc.NodeOnly {
		ds[FromPod], ds[FromOutside] = Decision{}, Decision{}
	}
	return ds
}

// external decides for NodePorts, load balancers and external IPs (R17 to R19). With policy Local, clients
// inside the cluster are treated as if they came through a load balancer, which may choose any node.
func (p *portPlan) external() [SourceClasses]Decision {
	if !p.svc.ExternalLocal {
		d := p.decide(ScopeCluster, true)
		return [SourceClasses]Decision{d, d, d}
	}
	return [SourceClasses]Decision{
		FromPod:     p.decide(ScopeCluster, false),
		FromNode:    p.decide(ScopeCluster, true),
		FromOutside: p.decide(ScopeLocal, false),
	}
}

// externalIP is like external. With RefuseForeignExternalIPs, however, packets of pods and of the node pass as
// if there were no Service (R26), unless the address is the Service's own ClusterIP.
func (p *portPlan) externalIP(own bool) [SourceClasses]Decision {
	ds := p.external()
	if p.config.RefuseForeignExternalIPs && !own {
		ds[FromPod], ds[FromNode] = Decision{}, Decision{}
	}
	return ds
}

// addSets appends the sets that the port's frontends use (R14), and the retained endpoints.
func (p *portPlan) addSets(all []candidate, frontends []Frontend) {
	var used [ScopeRetained]bool
	for i := range frontends {
		for _, d := range frontends[i].Decisions {
			used[d.Scope] = used[d.Scope] || d.Verdict == Balance
		}
	}
	for _, scope := range []Scope{ScopeCluster, ScopeLocal} {
		if bs := p.sets.of(scope); len(bs) > 0 && used[scope] {
			p.plan.Sets = append(p.plan.Sets, BackendSet{SetKey{p.port, p.family, scope}, bs})
		}
	}
	kept := backends(all, p.node, func(c candidate) bool { return p.retains(c, frontends) && !p.inEveryFrontend(c, frontends) })
	for i := range kept {
		kept[i].Weight = 1
	}
	if len(kept) > 0 {
		p.plan.Retained = append(p.plan.Retained, BackendSet{SetKey{p.port, p.family, ScopeRetained}, kept})
	}
}

// retains reports whether an endpoint outside the sets keeps its existing flows (R29). TCP connections always stay
// (R30); those without a conntrack entry stay while their endpoint exists, ready or not. With DSR other balancers
// choose among the endpoints of this node, ready or not: they send clients of connections that drain, and health
// checks.
func (p *portPlan) retains(c candidate, frontends []Frontend) bool {
	if !p.outlivesEndpoint() {
		return c.endpoint.Serving && !c.down
	}
	return slices.ContainsFunc(frontends, func(f Frontend) bool { return f.Untracked || f.DSR != "" && c.here(p.node) })
}

// outlivesEndpoint reports whether connections continue when their endpoint no longer serves (R30).
func (p *portPlan) outlivesEndpoint() bool {
	return p.port.Protocol != UDP && !(p.port.Protocol == TCP && p.config.KeepTCP)
}

// inEveryFrontend reports whether each of the port's frontends has a set with the endpoint.
func (p *portPlan) inEveryFrontend(c candidate, frontends []Frontend) bool {
	var in [2]bool
	for scope := range in {
		_, in[scope] = slices.BinarySearchFunc(p.sets.of(Scope(scope)), c.addr,
			func(b Backend, a netip.AddrPort) int { return b.Addr.Compare(a) })
	}
	return !slices.ContainsFunc(frontends, func(f Frontend) bool {
		return !slices.ContainsFunc(f.Decisions[:], func(d Decision) bool { return d.Verdict == Balance && in[d.Scope] })
	})
}

// sourceRanges returns the clients of one family that loadBalancerSourceRanges admits; nil admits all: without
// a range of the family, or with the /0 (R25). If it admits the node, it also admits the VIPs, because the
// kernel chooses a VIP on one of the node's interfaces as the source address of connections to it.
func sourceRanges(ranges []netip.Prefix, vips []netip.Addr, node netip.Addr, family Family) []netip.Prefix {
	var admitted []netip.Prefix
	nodeAdmitted := false
	for _, r := range ranges {
		if familyOfPrefix(r) != family {
			continue
		}
		if r.Bits() == 0 {
			return nil
		}
		admitted = append(admitted, r)
		nodeAdmitted = nodeAdmitted || r.Contains(node)
	}
	if nodeAdmitted {
		for _, vip := range vips {
			admitted = append(admitted, netip.PrefixFrom(vip, vip.BitLen()))
		}
	}
	return sortedPrefixes(admitted)
}
