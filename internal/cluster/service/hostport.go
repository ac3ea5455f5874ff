// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/report/condition"
)

// hasHostPorts reports whether a Pod is on this node and has hostPorts that it can serve (R33).
func hasHostPorts(p *Pod, node string) bool {
	return node != "" && p.Node == node && !p.HostNetwork && !p.Finished && !p.Deleting && len(p.HostPorts) > 0
}

// resolvePod computes the plan of a Pod's hostPorts as if no other object existed; nil without a plan.
func resolvePod(p *Pod, node *nodeFacts) *Plan {
	if !hasHostPorts(p, node.name) {
		return nil
	}
	plan := &Plan{}
	for _, family := range Families {
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

// addHostPort adds the frontends of one hostPort for one of the Pod's addresses.
func (plan *Plan) addHostPort(p *Pod, hp PodPort, podIP netip.Addr, node *nodeFacts) {
	family := FamilyOf(podIP)
	port := Port{p.Ref(), fmt.Sprintf("%d/%d", hp.HostPort, hp.ContainerPort), hp.Protocol}
	set := SetKey{port, family, ScopeLocal}
	addrs := []netip.Addr{hp.HostIP}
	switch {
	case !hp.HostIP.IsValid():
		addrs = append(ofFamily(node.local, family), loopback(family))
	case FamilyOf(hp.HostIP) != family:
		return
	case !hp.HostIP.IsLoopback() && !node.isLocal(hp.HostIP):
		// Serving it would intercept packets of this node's pods to that address.
		plan.problem(condition.HostIPNotHere.New(
			"HostPort %d/%s: hostIP %s is not an address of this node", hp.HostPort, hp.Protocol, hp.HostIP).Do("set hostIP to an address of the node, or leave it empty for all addresses"))
		return
	}
	if hp.Protocol == SCTP && hp.HostPort != hp.ContainerPort {
		plan.problem(sctpProblem(fmt.Sprintf("HostPort %d/SCTP: the container has", hp.HostPort),
			fmt.Sprint(hp.ContainerPort), "set hostPort and containerPort to the same port"))
	}
	for _, addr := range addrs {
		// A pod cannot reply to a loopback source.
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
			// A hostIP means that address only; without one, the port is served at every address.
			LoopbackExact: hp.HostIP.IsValid() && addr.IsLoopback(),
		})
	}
	backend := Backend{Addr: netip.AddrPortFrom(podIP, hp.ContainerPort), Local: true, Weight: 1}
	plan.Sets = append(plan.Sets, BackendSet{set, []Backend{backend}})
}
