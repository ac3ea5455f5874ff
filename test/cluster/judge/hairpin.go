// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
)

// Numbers of two more scenarios, behind those that are drawn.
const (
	loneNumber    = maxScenarios
	hairpinNumber = maxScenarios + 1
)

// loneCases are connections of a pod to itself through a Service whose slices do not name the node. kube-proxy
// masquerades these only if it knows the endpoint as one of its node, from any Service. So they are judged before there
// is another Service.
func loneCases() []*Case {
	s := Scenario{
		Number: loneNumber, Type: "LoadBalancer", Families: "v6v4", Ports: "tcp+udp", Internal: "Cluster", External: "Local",
		Ingress: "VIP", Ranges: "pods", Addresses: "node's", Slices: "no node", Endpoints: []Endpoint{{Host: "a1", State: "ready"}},
	}
	var all []*Case
	for i, p := range []Probe{
		{From: "a1", To: "clusterIP", Family: "v4", Protocol: "tcp", Port: "known", Socket: "plain"},
		{From: "a1", To: "ingress", Family: "v6", Protocol: "udp", Port: "known", Socket: "plain"},
	} {
		all = append(all, &Case{ID: fmt.Sprintf("%d.%d", s.Number, i), Scenario: s, Probe: p})
	}
	return all
}

// createHairpins creates a Service of all pods of the node, with the node. From then on a scenario's result does not
// depend on which other Services there are.
func (j *Judge) createHairpins(ctx context.Context) error {
	s := Scenario{Number: hairpinNumber, Type: "ClusterIP", Families: "v4v6", Ports: "tcp+udp", Internal: "Cluster", Slices: "one"}
	for _, host := range []string{"a1", "a2", "a3", judged} {
		s.Endpoints = append(s.Endpoints, Endpoint{Host: host, State: "ready"})
	}
	if err := j.createService(ctx, s.Service(), s.EndpointSlices(j.Pair.Sides[0].Lab)); err != nil {
		return err
	}
	return j.Pair.Await(ctx)
}
