// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strings"
)

// complainOfSCTP says which of a port's frontends have another port than endpoints. The
// checksum of SCTP is made of the whole packet, ports included, so that they cannot be
// translated in passing: what asks there is dropped.
func (p *portPlan) complainOfSCTP(frontends []Frontend) {
	for _, f := range frontends {
		if f.Kind != ClusterIP && (f.Kind != NodePort || f.Key.Addr.IsLoopback()) {
			continue // external IPs and load balancers have the ClusterIP's port
		}
		var others []string
		served := false
		for _, b := range slices.Concat(p.sets.of(Cluster), p.sets.of(Local)) {
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
		what, out := fmt.Sprintf("port %d/SCTP", f.Key.Port), "let port and targetPort be the same"
		if f.Kind == NodePort {
			what, out = fmt.Sprintf("NodePort %d/SCTP", f.Key.Port), "clients have to use the Service's other addresses (allocateLoadBalancerNodePorts: false gives the NodePort up)"
		}
		part := "the endpoints"
		if served {
			part = "some endpoints"
		}
		p.plan.Problems = append(p.plan.Problems, sctpProblem(fmt.Sprintf("%s: %s have", what, part), strings.Join(others, ", "), out))
	}
}

// sctpProblem says of whom, with which ports, and what to change.
func sctpProblem(who, ports, out string) string {
	return fmt.Sprintf("%s port %s, where no packets arrive, because ports of SCTP are never translated: %s", who, ports, out)
}
