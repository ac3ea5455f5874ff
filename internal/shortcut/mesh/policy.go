// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/cluster/sidecar"
)

// Defaults are the proxy and the exclusions of all pods.
type Defaults struct {
	ProxyUID, ProxyGID                        uint32
	ExcludeOutboundPorts, ExcludeInboundPorts []uint16
	ExcludeOutbound                           []netip.Prefix
	// ExcludeInterfaces and RerouteInterfaces are names of devices; one that ends in "+" is the beginning of names.
	// Virtual machines are behind the latter.
	ExcludeInterfaces, RerouteInterfaces []string
	// DNS: proxies answer it, for the name servers of the pod's resolv.conf or for all.
	DNS, AllNameServers bool
}

// policy is what holds for pods that are named by their cgroup.
func (d *Defaults) policy() *Policy {
	p := &Policy{Proxy: d.proxyOf(&sidecar.Rules{}), AllOutbound: true, AllInbound: true, DNS: d.DNS, AllNameServers: d.AllNameServers,
		OutboundPorts: map[uint16]Rule{}, InboundPorts: map[uint16]Rule{}, Networks: map[netip.Prefix]Rule{}}
	d.exclude(p)
	return p
}

func (d *Defaults) exclude(p *Policy) {
	setRules(p.OutboundPorts, d.ExcludeOutboundPorts, Exclude)
	setRules(p.InboundPorts, d.ExcludeInboundPorts, Exclude)
	setRules(p.Networks, d.ExcludeOutbound, Exclude)
}

func setRules[K comparable](rules map[K]Rule, keys []K, rule Rule) {
	for _, k := range keys {
		rules[k] = rule
	}
}

// policyOf is what holds for a pod of Kubernetes. Of several rules for one key the last one holds, so exclusions are
// written last.
func (d *Defaults) policyOf(s *sidecar.Rules) *Policy {
	p := &Policy{Proxy: d.proxyOf(s), AllOutbound: s.IncludeOutbound.All, AllInbound: s.IncludeInboundPorts.All, DNS: d.DNS && s.DNS, AllNameServers: d.AllNameServers,
		OutboundPorts: map[uint16]Rule{}, InboundPorts: map[uint16]Rule{}, Networks: map[netip.Prefix]Rule{}}
	setRules(p.OutboundPorts, s.IncludeOutboundPorts, Include)
	setRules(p.OutboundPorts, s.ExcludeOutboundPorts, Exclude)
	setRules(p.InboundPorts, s.IncludeInboundPorts.List, Include)
	setProbes(p.InboundPorts, s.ProbePorts)
	setRules(p.InboundPorts, s.ExcludeInboundPorts, Exclude)
	setRules(p.Networks, s.IncludeOutbound.List, Include)
	setRules(p.Networks, s.ExcludeOutbound, Exclude)
	d.exclude(p)
	dropShadowed(p.Networks)
	return p
}

// proxyOf is what tells the proxy by its user and group, as the pod's user namespace has them: those that are not
// root's, and that no application has set. An image that sets its own user to the proxy's is not seen: Istio's rules
// have the same gap.
func (d *Defaults) proxyOf(s *sidecar.Rules) Proxy {
	return Proxy{
		UID: telling(cmp.Or(s.ProxyUID, &d.ProxyUID), s.OtherUIDs),
		GID: telling(cmp.Or(s.ProxyGID, &d.ProxyGID), s.OtherGIDs),
	}
}

func telling(id *uint32, others []uint32) *uint32 {
	if *id == 0 || slices.Contains(others, *id) {
		return nil
	}
	return id
}

// policyIn is what holds for a pod with what was found out about it: its proxy as the agent's user namespace has it,
// and its own addresses, which applications reach without the proxy.
func (p *Pod) policyIn() *Policy {
	if p.unfit != "" {
		return &Policy{AllOutbound: true, AllInbound: true, DNS: p.policy.DNS, NameServers: p.facts.servers}
	}
	in := *p.policy
	in.Proxy = Proxy{UID: p.Proxy.UID, GID: p.Proxy.GID, Cgroup: cgroupOf(p.Proxy.Cgroup)}
	in.NameServers = p.facts.servers
	devices := &p.facts.devices
	in.Devices = Devices{Rules: map[uint32]Rule{}, BySource: devices.bySource, Routes: devices.routes}
	setRules(in.Devices.Rules, devices.excluded, Exclude)
	for _, index := range devices.virtual {
		in.Devices.Rules[uint32(index)] = Include
	}
	in.Networks = maps.Clone(p.policy.Networks)
	for _, a := range p.facts.addresses {
		in.Networks[netip.PrefixFrom(a, a.BitLen())] = Exclude
	}
	return &in
}

func setProbes(rules map[uint16]Rule, ports []uint16) {
	for _, port := range ports {
		rule := Probe
		if rules[port] != 0 {
			rule = ProbeIncluded
		}
		rules[port] = rule
	}
}

// dropShadowed deletes included networks inside an excluded one: exclusion wins, and in the table the longest prefix.
// A pod may have any number of them.
func dropShadowed(rules map[netip.Prefix]Rule) {
	lengths := map[int]bool{} // of excluded networks
	for network, rule := range rules {
		if rule == Exclude {
			lengths[network.Bits()] = true
		}
	}
	for network, rule := range rules {
		for bits := range lengths {
			wider, err := network.Addr().Prefix(bits)
			if rule == Include && err == nil && bits <= network.Bits() && rules[wider] == Exclude {
				delete(rules, network)
			}
		}
	}
}

// refuseUnfit has those pods refused whose rules do not fit into the tables beside those of others: a pod may have any
// number of rules, so the pods with the most are refused. ports and networks are how many rows there may be.
func refuseUnfit(pods []Pod, ports, networks int) {
	sizeOf := func(p *Pod) (ports, networks int) {
		return len(p.policy.OutboundPorts) + len(p.policy.InboundPorts), len(p.policy.Networks) + len(p.facts.addresses)
	}
	var order []int
	for i := range pods {
		pods[i].unfit = ""
		if pods[i].CgroupID != 0 {
			order = append(order, i)
		}
	}
	rank := func(i int) int { ports, networks := sizeOf(&pods[i]); return ports + networks }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rank(a), rank(b)) })
	for _, i := range order { // the smallest first
		p, n := sizeOf(&pods[i])
		if ports -= p; ports >= 0 {
			networks -= n
		}
		if ports < 0 || networks < 0 {
			pods[i].unfit = fmt.Sprintf("its %d rules of ports and %d of networks do not fit into the tables beside those of other pods, so its connections are refused: give it fewer in its annotations", p, n)
			ports, networks = min(ports, -1), min(networks, -1) // so are those with more
		}
	}
}
