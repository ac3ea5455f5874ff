// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"
)

// addHealthPorts adds the addresses of one family at which the Service's healthCheckNodePort is served: those
// that serve NodePorts (R34), or the unspecified address if these are all addresses, as in kube-proxy: a node may
// have hundreds. Each family counts its own endpoints.
func (p *servicePlan) addHealthPorts(family Family) {
	if p.svc.HealthCheckNodePort == 0 {
		return
	}
	addrs := ofFamily(p.node.nodePorts, family)
	if all := netip.PrefixFrom(family.unspecified(), 0); len(addrs) > 0 && slices.Contains(p.config.NodePortAddresses, all) {
		addrs = []netip.Addr{all.Addr()}
	}
	ready := p.localReady(family)
	for _, a := range addrs {
		p.plan.HealthPorts = append(p.plan.HealthPorts, HealthPort{netip.AddrPortFrom(a, p.svc.HealthCheckNodePort), ready})
	}
}

// localReady counts the distinct addresses of one family at which the Service has ready endpoints on this node.
// Ports of the slices that the Service does not have count as well, as in kube-proxy.
func (p *servicePlan) localReady(family Family) int {
	ready := map[netip.Addr]struct{}{}
	for name, from := range portsOf(p.slices, family) {
		all := mergeEndpoints(from)
		p.health.again().mark(all, ServicePort{Name: name.name, Protocol: name.protocol}, checkedAt{}) // only local endpoints count, so no frontend is needed
		for _, c := range all {
			if c.ready() && c.local(p.node) {
				ready[c.addr.Addr()] = struct{}{}
			}
		}
	}
	return len(ready)
}
