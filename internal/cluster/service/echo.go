// SPDX-License-Identifier: Apache-2.0

package service

// addEchoes answers ICMP echo requests at load balancer addresses and external IPs, for routers and health
// checks that ping. The address must not belong to a node, whose stack answers there, and the Service must
// serve clients outside the cluster at one of its ports there. Requests of the node itself go to the network.
func (p *servicePlan) addEchoes(family Family, frontends []Frontend) {
	protocol := ICMP
	if family == IPv6 {
		protocol = ICMPv6
	}
	var echoes []Frontend
	for _, f := range frontends {
		if f.Kind != LoadBalancer && f.Kind != ExternalIP || f.Decisions[FromOutside].Verdict != Balance || p.node.nodes[f.Key.Addr] > 0 {
			continue
		}
		if f.Decisions[FromPod].Verdict == Pass {
			continue // for pods the address may belong to another host, and fragments must pass (R26)
		}
		// An address of both kinds counts as the load balancer's, like its ports.
		echoes = append(echoes, Frontend{
			Key:          FrontendKey{Addr: f.Key.Addr, Protocol: protocol},
			Kind:         Echo,
			Port:         Port{Owner: p.svc.Ref(), Protocol: protocol},
			Decisions:    [SourceClasses]Decision{FromPod: {Verdict: Answer}, FromOutside: {Verdict: Answer}},
			SourceRanges: f.SourceRanges,
		})
	}
	p.plan.Frontends = append(p.plan.Frontends, echoes...)
}
