// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strings"

	"beeline.io/beeline/internal/report/condition"
)

// warnSCTP adds a problem for each frontend whose port differs from an endpoint's. SCTP ports are not
// translated, because the checksum, which covers the whole packet including the ports, would have to be
// recomputed. Such packets are dropped.
func (p *portPlan) warnSCTP(frontends []Frontend) {
	for _, f := range frontends {
		if f.Kind != ClusterIP && (f.Kind != NodePort || f.Key.Addr.IsLoopback()) {
			continue // external IPs and load balancers have the ClusterIP's port
		}
		var others []string
		served := false
		for _, b := range slices.Concat(p.sets.of(ScopeCluster), p.sets.of(ScopeLocal)) {
			if port := fmt.Sprint(b.Addr.Port()); b.Addr.Port() == f.Key.Port {
				served = true
			} else if !slices.Contains(others, port) {
				others = append(others, port)
			}
		}
		if len(others) == 0 {
			continue
		}
		slices.Sort(others)
		what, out := fmt.Sprintf("port %d/SCTP", f.Key.Port), "set port and targetPort to the same port"
		if f.Kind == NodePort {
			what, out = fmt.Sprintf("NodePort %d/SCTP", f.Key.Port), "use the Service's other addresses (allocateLoadBalancerNodePorts: false removes the NodePort)"
		}
		part := "the endpoints"
		if served {
			part = "some endpoints"
		}
		p.plan.problem(sctpProblem(fmt.Sprintf("%s: %s have", what, part), strings.Join(others, ", "), out))
	}
}

// sctpProblem returns the condition for ports that differ, with the remedy.
func sctpProblem(who, ports, out string) condition.Condition {
	return condition.SCTPPortDiffers.New("%s port %s: packets are dropped, because SCTP ports are never translated", who, ports).Do("%s", out)
}
