// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
)

// hasHostPorts says whether a Pod is one of this node's that asks for hostPorts
// and can serve them (R33).
func hasHostPorts(p *Pod, node string) bool {
	return node != "" && p.Node == node && !p.HostNetwork && !p.Finished && !p.Deleting && len(p.HostPorts) > 0
}

// resolvePod computes the hostPorts of a Pod as if no other object asked for
// them. It returns nil where there are none (yet).
func resolvePod(p *Pod, node *nodeFacts) *Plan {
	if !hasHostPorts(p, node.name) {
		return nil
	}
	plan := &Plan{}
	for _, family := range []Family{IPv4, IPv6} {
		ips := ofFamily(p.IPs, family)
		if len(ips) == 0 {
			continue
		}
		for _, hp := range p.HostPorts {
			plan.addHostPort(p, hp, ips[0], node)
		}
	}
	if len(plan.Frontends) == 0 && len(plan.Problems) == 0 {
		return nil
	}
	plan.finish()
	plan.Sets = slices.CompactFunc(plan.Sets, func(a, b BackendSet) bool { return a.Key == b.Key })
	return plan
}

// addHostPort serves one hostPort for one of the Pod's addresses.
func (plan *Plan) addHostPort(p *Pod, hp PodPort, podIP netip.Addr, node *nodeFacts) {
	family := FamilyOf(podIP)
	port := Port{p.Ref(), fmt.Sprintf("%d/%d", hp.HostPort, hp.ContainerPort), hp.Protocol}
	set := SetKey{port, family, Local}
	addrs := []netip.Addr{hp.HostIP}
	switch {
	case !hp.HostIP.IsValid():
		addrs = append(ofFamily(node.local, family), loopback(family))
	case FamilyOf(hp.HostIP) != family:
		return
	case !hp.HostIP.IsLoopback() && !node.isLocal(hp.HostIP):
		// To serve it would intercept what this node's pods send there.
		plan.Problems = append(plan.Problems, fmt.Sprintf(
			"HostPort %d/%s: hostIP %s is no address of this node: choose one, or none for all of them", hp.HostPort, hp.Protocol, hp.HostIP))
		return
	}
	if hp.Protocol == SCTP && hp.HostPort != hp.ContainerPort {
		plan.Problems = append(plan.Problems, sctpProblem(fmt.Sprintf("HostPort %d/SCTP: the container has", hp.HostPort),
			fmt.Sprint(hp.ContainerPort), "let hostPort and containerPort be the same"))
	}
	for _, addr := range addrs {
		// A source on loopback means nothing to a pod.
		ds := [SourceClasses]Decision{FromNode: {Balance, set.Scope, addr.IsLoopback()}}
		if !addr.IsLoopback() {
			ds[FromPod] = Decision{Balance, set.Scope, false}
			ds[FromOutside] = Decision{Balance, set.Scope, false}
		}
		plan.Frontends = append(plan.Frontends, Frontend{
			Key:       FrontendKey{addr, hp.HostPort, hp.Protocol},
			Kind:      HostPort,
			Port:      port,
			Decisions: ds,
			// A hostIP means itself; none means every address.
			OneAddress: hp.HostIP.IsValid() && addr.IsLoopback(),
		})
	}
	backend := Backend{Addr: netip.AddrPortFrom(podIP, hp.ContainerPort), Local: true, Weight: 1}
	plan.Sets = append(plan.Sets, BackendSet{set, []Backend{backend}})
}
