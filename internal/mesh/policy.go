// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"net/netip"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// Defaults are the proxy and the exclusions of all pods.
type Defaults struct {
	ProxyUID, ProxyGID                        uint32
	ExcludeOutboundPorts, ExcludeInboundPorts []uint16
	ExcludeOutbound                           []netip.Prefix
	// DNS: proxies answer it.
	DNS bool
}

// policy is what holds for pods that are named by their cgroup.
func (d *Defaults) policy() *datapath.MeshPolicy {
	p := &datapath.MeshPolicy{ProxyUID: d.ProxyUID, ProxyGID: d.ProxyGID, AllOutbound: true, AllInbound: true, DNS: d.DNS,
		OutboundPorts: map[uint16]datapath.MeshRule{}, InboundPorts: map[uint16]datapath.MeshRule{}, Networks: map[netip.Prefix]datapath.MeshRule{}}
	d.exclude(p)
	return p
}

func (d *Defaults) exclude(p *datapath.MeshPolicy) {
	setRules(p.OutboundPorts, d.ExcludeOutboundPorts, datapath.MeshExclude)
	setRules(p.InboundPorts, d.ExcludeInboundPorts, datapath.MeshExclude)
	setRules(p.Networks, d.ExcludeOutbound, datapath.MeshExclude)
}

func setRules[K comparable](rules map[K]datapath.MeshRule, keys []K, rule datapath.MeshRule) {
	for _, k := range keys {
		rules[k] = rule
	}
}

// policyOf is what holds for a pod of Kubernetes. Of several rules for one key the last one holds, so exclusions are
// written last.
func (d *Defaults) policyOf(s *service.Sidecar) *datapath.MeshPolicy {
	p := &datapath.MeshPolicy{ProxyUID: d.ProxyUID, ProxyGID: d.ProxyGID, AllOutbound: s.IncludeOutbound.All, AllInbound: s.IncludeInboundPorts.All, DNS: d.DNS && s.DNS,
		OutboundPorts: map[uint16]datapath.MeshRule{}, InboundPorts: map[uint16]datapath.MeshRule{}, Networks: map[netip.Prefix]datapath.MeshRule{}}
	if s.ProxyUID != nil {
		p.ProxyUID = *s.ProxyUID
	}
	if s.ProxyGID != nil {
		p.ProxyGID = *s.ProxyGID
	}
	setRules(p.OutboundPorts, s.IncludeOutboundPorts, datapath.MeshInclude)
	setRules(p.OutboundPorts, s.ExcludeOutboundPorts, datapath.MeshExclude)
	setRules(p.InboundPorts, s.IncludeInboundPorts.List, datapath.MeshInclude)
	setProbes(p.InboundPorts, s.ProbePorts)
	setRules(p.InboundPorts, s.ExcludeInboundPorts, datapath.MeshExclude)
	setRules(p.Networks, s.IncludeOutbound.List, datapath.MeshInclude)
	setRules(p.Networks, s.ExcludeOutbound, datapath.MeshExclude)
	d.exclude(p)
	dropShadowed(p.Networks)
	return p
}

func setProbes(rules map[uint16]datapath.MeshRule, ports []uint16) {
	for _, port := range ports {
		rule := datapath.MeshProbe
		if rules[port] != 0 {
			rule = datapath.MeshProbeIncluded
		}
		rules[port] = rule
	}
}

// dropShadowed deletes included networks inside an excluded one: exclusion wins, and in the table the longest prefix.
func dropShadowed(rules map[netip.Prefix]datapath.MeshRule) {
	for network, rule := range rules {
		for other := range rules {
			if rule == datapath.MeshInclude && rules[other] == datapath.MeshExclude && other.Bits() <= network.Bits() && other.Contains(network.Addr()) {
				delete(rules, network)
			}
		}
	}
}
