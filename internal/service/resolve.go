// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// proxied says whether a Service with a ClusterIP is Beeline's to implement (R1,
// R3).
func proxied(s *Service, config *Config) bool {
	ours := config.ServiceProxyName != "" && s.ProxyName == config.ServiceProxyName
	return s.Type != "ExternalName" && (!s.HasProxyName || ours)
}

// clusterIP returns the Service's ClusterIP of a family, the zero Addr if it has
// none or is headless (R3, R7). Objects from before dual stack lack ipFamilies: there the address
// itself says its family.
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

// servicePlan is a Plan in the making. What a packet alone can tell is not in
// it: that a pod reaches itself through the Service (hairpin) is seen where the
// backend is chosen, and is always masqueraded (R19).
type servicePlan struct {
	config *Config
	node   *nodeFacts
	svc    *Service
	slices []*EndpointSlice
	health *serviceHealth
	plan   *Plan
}

// resolveService computes what a Service asks for, as if no other object did.
// It returns nil for one that is not proxied. The slices must be sorted by name.
func resolveService(s *Service, endpointSlices []*EndpointSlice, config *Config, node *nodeFacts, health *serviceHealth) *Plan {
	if !proxied(s, config) {
		return nil
	}
	p := servicePlan{config, node, s, endpointSlices, health, &Plan{Problems: checkProblems(s, health != nil)}}
	if cmp.Or(s.Algorithm, config.Algorithm) == Maglev {
		p.plan.TableSize = config.TableSize
	}
	p.complainOfDSR()
	if s.HealthCheckNodePort != 0 {
		p.plan.Problems = append(p.plan.Problems, fmt.Sprintf(
			"healthCheckNodePort %d is not served, because Beeline lacks that (R34): load balancers that ask it take every node for one without endpoints; have them ask a port of the Service", s.HealthCheckNodePort))
	}
	for _, family := range []Family{IPv4, IPv6} {
		if ip := s.clusterIP(family); ip.IsValid() {
			p.addFamily(family, ip)
		}
	}
	if len(p.plan.Frontends) == 0 {
		return nil
	}
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
			p.plan.Problems = append(p.plan.Problems, fmt.Sprintf(
				"port %d/%s: another %s port of this Service has the name %q: give it its own", port.Port, port.Protocol, port.Protocol, port.Name))
			continue
		}
		seen[name] = true
		first := len(p.plan.Frontends)
		all := mergeEndpoints(bySlice[name])
		if problem := p.health.mark(all, port); problem != "" {
			p.plan.Problems = append(p.plan.Problems, problem)
		}
		p.withNodes(all, port)
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
			f.complainOfSCTP(p.plan.Frontends[first:])
		}
		f.complainOfSharedAddresses()
		f.complainOfEndpoints(all)
	}
	p.addEchoes(family, p.plan.Frontends[firstOfFamily:])
}

// addOtherPorts refuses all that no port of the Service has at a ClusterIP (R21), unless the
// address is also this node's: there its own programs answer, and what the node asks of others
// comes back there.
func (p *servicePlan) addOtherPorts(clusterIP netip.Addr) {
	if p.node.isLocal(clusterIP) {
		return
	}
	reject := Decision{Verdict: Reject}
	p.plan.Frontends = append(p.plan.Frontends, Frontend{
		Key:       FrontendKey{Addr: clusterIP},
		Kind:      ClusterIPOther,
		Port:      Port{Owner: p.svc.Ref()},
		Decisions: [SourceClasses]Decision{reject, reject, reject},
	})
}

// portPlan is one service port in one family.
type portPlan struct {
	*servicePlan
	port   Port
	family Family
	sets   portSets
}

// add appends a frontend.
func (p *portPlan) add(kind FrontendKind, addr netip.Addr, port uint16, ds [SourceClasses]Decision, ranges []netip.Prefix) {
	dsr := p.dsr(kind, addr)
	p.plan.Frontends = append(p.plan.Frontends, Frontend{
		Key:          FrontendKey{addr, port, p.port.Protocol},
		Kind:         kind,
		Port:         p.port,
		Decisions:    ds,
		Affinity:     p.svc.Affinity,
		OwnAddress:   ranges != nil && p.node.isLocal(addr),
		SourceRanges: ranges,
		DSR:          dsr,
		Untracked:    p.untracked(dsr),
	})
}

// addNodePorts serves a NodePort on this node's addresses; that of another node
// is left to it (R22, R23). On loopback it exists for the node itself alone.
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

// decide chooses among the endpoints of a scope. None in reach, but some on
// other nodes, is a Drop: the client shall try again elsewhere; none at all is a
// Reject (R16, R18).
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
	scope := Cluster
	if p.svc.InternalLocal {
		scope = Local
	}
	ds := [SourceClasses]Decision{
		FromPod:     p.decide(scope, p.config.MasqueradeAll),
		FromNode:    p.decide(scope, true),
		FromOutside: p.decide(scope, true),
	}
	if p.config.RefuseOutsideClusterIP {
		ds[FromOutside] = Decision{Verdict: Reject}
	}
	return ds
}

// external decides for NodePorts, load balancers and external IPs (R17 to R19).
// With policy Local, clients inside the cluster are treated as if they had come
// back in through a load balancer, which may choose any node.
func (p *portPlan) external() [SourceClasses]Decision {
	if !p.svc.ExternalLocal {
		d := p.decide(Cluster, true)
		return [SourceClasses]Decision{d, d, d}
	}
	return [SourceClasses]Decision{
		FromPod:     p.decide(Cluster, false),
		FromNode:    p.decide(Cluster, true),
		FromOutside: p.decide(Local, false),
	}
}

// externalIP is external, unless the operator distrusts the address: what pods and the
// node send there goes where it would without the Service (R26). The Service's own ClusterIP is
// nobody else's address.
func (p *portPlan) externalIP(own bool) [SourceClasses]Decision {
	ds := p.external()
	if p.config.RefuseForeignExternalIPs && !own {
		ds[FromPod], ds[FromNode] = Decision{}, Decision{}
	}
	return ds
}

// addSets appends the sets that the port's frontends use (R14), and what keeps
// the flows it has (R29). TCP connections stay whatever happens (R30); those without a
// record, as long as their endpoint is there, be it ready or not.
func (p *portPlan) addSets(all []candidate, frontends []Frontend) {
	var used [Kept]bool
	for i := range frontends {
		for _, d := range frontends[i].Decisions {
			used[d.Scope] = used[d.Scope] || d.Verdict == Balance
		}
	}
	for _, scope := range []Scope{Cluster, Local} {
		if bs := p.sets.of(scope); len(bs) > 0 && used[scope] {
			p.plan.Sets = append(p.plan.Sets, BackendSet{SetKey{p.port, p.family, scope}, bs})
		}
	}
	untracked := func(f Frontend) bool { return f.Untracked }
	if p.stays() && !slices.ContainsFunc(frontends, untracked) {
		return
	}
	kept := backends(all, p.node, func(c candidate) bool {
		return (p.stays() || c.endpoint.Serving && !c.down) && !p.inEveryFrontend(c, frontends)
	})
	for i := range kept {
		kept[i].Weight = 1
	}
	if len(kept) > 0 {
		p.plan.Kept = append(p.plan.Kept, BackendSet{SetKey{p.port, p.family, Kept}, kept})
	}
}

// stays says whether connections outlive that their endpoint serves (R30).
func (p *portPlan) stays() bool {
	return p.port.Protocol != UDP && !(p.port.Protocol == TCP && p.config.KeepTCP)
}

// inEveryFrontend says whether each of the port's frontends has a set with the
// endpoint.
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

// sourceRanges returns the clients of one family that loadBalancerSourceRanges
// admit, nil for all: where the ranges have none of the family, or its /0
// (R25). A node that is admitted can reach the VIP from the VIP itself, which
// its kernel chooses as source where the VIP is on one of its interfaces.
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
