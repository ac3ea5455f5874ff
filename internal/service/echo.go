// SPDX-License-Identifier: Apache-2.0

package service

// addEchoes has ICMP echo answered at the addresses of a load balancer and the external
// IPs that are no node's own (there the stack answers), as long as the Service serves
// clients from outside at one of its ports there: routers and health checks that ping
// rely on it. The node itself asks the network.
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
			continue // pods may mean somebody else, and get fragments through (R26)
		}
		// An address of both kinds is the load balancer's, as its ports are.
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
