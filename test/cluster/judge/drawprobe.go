// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// drawProbe draws a probe, of a client that has asked before if given.
func drawProbe(random *rand.Rand, s *Scenario, client *Probe) Probe {
	p := Probe{
		From: pick(random, "a1", "a1", "a2", "a2", "a3", judged, judged, judged, judged,
			"client", "client", "b3", "node-b"),
		// The last is rarely worth a probe.
		Port:     pick(random, "known", "known", "known", "known", "known", "known", "known", "unknown"),
		Protocol: pick(random, "tcp", "udp"),
		Family:   pick(random, s.families()...),
	}
	// What kube-proxy returns to its sender, a pod of another node, has the pod's own address as source,
	// and the pod drops it.
	if p.From == "b3" && s.has(p.From) {
		p.From = "client"
	}
	if oneIn(random, 12) {
		p.Family = pick(random, "v4", "v6") // perhaps one that the Service lacks
	}
	if len(s.ports()) == 1 && !oneIn(random, 10) {
		p.Protocol = strings.ToLower(string(s.ports()[0].protocol))
	}
	if client != nil {
		p.From, p.Family, p.Protocol, p.Port = client.From, client.Family, client.Protocol, client.Port
	}
	to := []string{"clusterIP", "clusterIP"}
	if s.Type != "ClusterIP" {
		to = append(to, "nodePort", "nodePort")
		if s.Proxy != "" {
			to = append(to, "nodePort", "secondary", "secondary", "secondary")
		}
		if clientKind(p.From) == "node" || clientKind(p.From) == "pod" {
			to = append(to, pick(random, "localhost", "localhost", "otherNode", "secondary"))
		}
	}
	if s.ExternalIPs {
		to = append(to, "externalIP", "externalIP")
		if s.Addresses == "several" {
			to = append(to, "externalIP2", "externalIP2")
		}
	}
	switch {
	case s.Beside == "cluster IP":
		to = append(to, "otherClusterIP", "otherClusterIP")
	case s.hasRival():
		to = append(to, "contested", "contested", "externalIP")
	case s.Beside != "":
		to = append(to, "beside", "beside")
	}
	if s.Ingress != "" && s.Ingress != "hostname" {
		to = append(to, "ingress", "ingress", "ingress")
		if s.Addresses == "several" {
			to = append(to, "ingress2", "ingress2")
		}
	}
	if oneIn(random, 15) {
		to = []string{"unused"}
	}
	p.To = pick(random, to...)
	if p.To == "contested" && !slices.Contains(s.families(), p.Family) {
		p.Family = s.families()[0] // else it is the other Service's alone
	}
	if s.Proxy == "node ports second" && p.From == judged && oneIn(random, 3) {
		p.To = "localhost"
	}
	if (p.To == "ingress" || p.To == "ingress2") && s.Ranges != "" && oneIn(random, 3) {
		p.From = judged // its packets are handled differently
	}
	p.Socket = drawSocket(random, p, s)
	return p
}

func drawSocket(random *rand.Rand, p Probe, s *Scenario) string {
	kinds := []string{"plain", "plain", "bound"}
	if (p.To == "ingress" || p.To == "ingress2") && s.Ranges != "" {
		kinds = append(kinds, "bound", "plain")
	}
	if p.Family == "v4" {
		kinds = append(kinds, "mapped")
	}
	if p.Protocol == "udp" {
		kinds = append(kinds, "unconnected", "unconnected")
	}
	from := clientKind(p.From)
	if from == "pod" {
		kinds = append(kinds, "device")
	}
	// A pod drops its own packet that returns from another address of its own.
	if from == "node" || from == "pod" && !s.has(p.From) {
		kinds = append(kinds, "second")
	}
	switch {
	case p.To == "localhost":
		kinds = []string{"plain"}
	case p.To == "externalIP" && (s.Addresses == "same" || s.Addresses == "node's") && s.Ranges != "":
		kinds = []string{"bound"} // source ranges apply to the ingress IP that it is
	}
	return pick(random, kinds...)
}
