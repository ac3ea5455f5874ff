// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/cluster"
)

func drawScenario(random *rand.Rand, number int) Scenario {
	s := Scenario{
		Number:      number,
		Type:        pick(random, "ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"),
		Families:    pick(random, "v4v6", "v4v6", "v4v6", "v6v4", "v4", "v6"),
		Ports:       pick(random, "tcp", "tcp+udp", "tcp+udp", "udp", "tcp+sctp", "two", "unnamed"),
		Internal:    pick(random, "Cluster", "Cluster", "Local"),
		Affinity:    oneIn(random, 5),
		ExternalIPs: oneIn(random, 3),
		Slices:      pick(random, "one", "split", "split", "both families"),
		Hints:       pick(random, "", "", "zone here", "zone elsewhere", "zone partly", "node here", "node elsewhere", "any", "of ready", "of others"),
	}
	if oneIn(random, 3) {
		s.Slices = pick(random, "foreign port", "twice", "twice", "no node", "second address", "two targets", "two targets",
			"many", "fqdn", "no ports", "no number", "other service", "controller", "controller")
	}
	if oneIn(random, 15) {
		s.Label = pick(random, "proxy", "headless")
	}
	drawExternal(random, &s)
	switch s.Slices {
	case "controller":
		drawSelector(random, &s)
	case "many":
		s.Endpoints = twenty(random, s.Hints)
	default:
		s.Endpoints = drawEndpoints(random, &s)
	}
	return s
}

// drawExternal draws everything about addresses other than the ClusterIP.
func drawExternal(random *rand.Rand, s *Scenario) {
	if oneIn(random, 4) && s.Label != "proxy" {
		s.Beside = pick(random, "headless", "ExternalName", "cluster IP", "rival", "rival without")
	} else if oneIn(random, 3) {
		s.Addresses = pick(random, "v4", "v6", "several", "same", "on node", "node's")
	}
	if s.Type == string(corev1.ServiceTypeLoadBalancer) {
		s.Ingress = pick(random, "IP", "VIP", "VIP", "Proxy", "hostname", "")
		s.Ranges = pick(random, "", "", "pods", "node", "pods+node", "nobody", "all4", "all6", "nobody+all4", "pods+all6")
		s.NoNodePorts = oneIn(random, 4)
	}
	if s.Addresses == "same" && s.Ingress == "" || s.Addresses != "" && s.Ingress == "" || s.Beside == "cluster IP" || s.hasRival() {
		s.ExternalIPs = true
	}
	if s.Type != string(corev1.ServiceTypeClusterIP) || s.ExternalIPs {
		s.External = pick(random, "Cluster", "Local")
	}
	// Each configuration takes a restart of both proxies, and session affinity a round of its own.
	switch random.IntN(8) {
	case 0, 1:
		s.Proxy = "xdp"
		return
	case 2:
		s.Proxy = "masquerade all"
		return
	}
	if s.Type != string(corev1.ServiceTypeClusterIP) && !s.NoNodePorts && !s.Affinity && oneIn(random, 2) {
		s.Proxy = pick(random, "node ports v4", "node ports v6", "node ports second", "node ports all", "node ports loopback", "not on loopback")
	}
}

// drawSelector draws pods of the cluster as endpoints.
func drawSelector(random *rand.Rand, s *Scenario) {
	s.Hints = ""
	chosen := pick(random, []string{"a1", "a2", "a3"}, []string{"b1", "b2", "b3"}, []string{"a1"}, []string{"b2"})
	s.Selector = cluster.LabelPod + "=" + chosen[0]
	if len(chosen) > 1 {
		s.Selector = cluster.LabelNode + "=node-" + chosen[0][:1]
	}
	for _, host := range chosen {
		s.Endpoints = append(s.Endpoints, Endpoint{Host: host, State: "ready"})
	}
}

// twenty returns as many endpoints, all ready. Those that answer are the last, and by their addresses neither
// all first nor all last, so that a truncated set lacks some of them.
func twenty(random *rand.Rand, hints string) []Endpoint {
	answering := []string{"a1", "a2", "a3", "b1", "b2", "b3", "node-a", "node-b", "b1+", "b2+", "b3+"}
	var hosts []string
	for n := range 20 - len(answering) {
		hosts = append(hosts, fmt.Sprintf("nobody%d", n))
	}
	hosts = append(hosts, answering...)
	var all []Endpoint
	for _, host := range hosts {
		e := Endpoint{Host: host, State: "ready"}
		e.Zones, e.Nodes = drawHints(random, hints, e.State)
		all = append(all, e)
	}
	return all
}

func drawEndpoints(random *rand.Rand, s *Scenario) []Endpoint {
	var hosts []string
	switch pick(random, "both", "both", "both", "local", "remote", "none") {
	case "both":
		hosts = append(hosts, "a1", "a2", "b1", "b2", "node-a", "node-b")
	case "local":
		hosts = append(hosts, "a1", "a2", "a3", "node-a")
	case "remote":
		hosts = append(hosts, "b1", "b2", "b3", "node-b")
	case "none":
		return nil
	}
	random.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	hosts = hosts[:1+random.IntN(min(4, len(hosts)))]
	if oneIn(random, 12) {
		hosts[0] = pick(random, "nobody1", "b1+")
	}
	drawState := func() string { return "ready" }
	switch pick(random, "ready", "ready", "mixed", "mixed", "none ready", "one") {
	case "mixed":
		drawState = func() string {
			return pick(random, "ready", "ready", "unset", "not ready", "draining", "terminating", "published",
				"serving", "draining unset", "published unset")
		}
	case "none ready":
		drawState = func() string {
			return pick(random, "not ready", "draining", "terminating", "serving", "draining unset")
		}
	case "one":
		state := pick(random, "unset", "not ready", "draining", "terminating", "published", "serving", "draining unset", "published unset")
		drawState = func() string { return state }
	}
	if s.Hints == "of ready" || s.Hints == "of others" {
		drawState = func() string {
			return pick(random, "ready", "ready", "unset", "draining", "draining", "serving", "terminating")
		}
	}
	var all []Endpoint
	for _, host := range hosts {
		e := Endpoint{Host: host, State: drawState()}
		e.Zones, e.Nodes = drawHints(random, s.Hints, e.State)
		switch {
		case s.Slices == "twice" && oneIn(random, 2):
			e.Again = pick(random, "ready", "unset", "not ready", "draining", "terminating", "published", "serving")
		case oneIn(random, 5):
			e.Again = drawAgain(random, e.State)
		}
		all = append(all, e)
	}
	return all
}

// drawAgain draws the state of an endpoint in a second slice: the same, or one between which R6 decides. It
// omits what kube-proxy leaves to chance: that goes through the slices in no order, and of terminating entries
// takes the first, else the last that is not.
func drawAgain(random *rand.Rand, state string) string {
	switch state {
	case "ready", "unset":
		return pick(random, "ready", "unset", "draining", "terminating", "published")
	case "not ready", "serving":
		return pick(random, state, "draining", "terminating", "published")
	}
	return pick(random, state, "ready", "unset", "not ready", "serving") // state is terminating
}

// drawHints draws the hints of one endpoint. R13 considers only ready ones: with "of ready" others have none,
// with "of others" only others have hints for here.
func drawHints(random *rand.Rand, recipe, state string) (zones, nodes []string) {
	isReady := state == "ready" || state == "unset"
	here, there := zoneOf(judged), zoneOf("node-b")
	switch recipe {
	case "zone here":
		return pick(random, []string{here}, []string{there}, []string{here, there}), nil
	case "zone elsewhere":
		return []string{there}, nil
	case "zone partly":
		return pick(random, []string{here}, []string{there}, nil), nil
	case "node here":
		return pick(random, nil, []string{here}, []string{there}), pick(random, []string{judged}, []string{"node-b"})
	case "node elsewhere":
		return pick(random, []string{here}, []string{there}), []string{"node-b"}
	case "of ready":
		if isReady {
			return pick(random, []string{here}, []string{there}), pick(random, []string{judged}, []string{"node-b"})
		}
	case "of others":
		if isReady {
			return []string{there}, []string{"node-b"}
		}
		return []string{here}, []string{judged}
	case "any":
		return pick(random, nil, []string{here}, []string{there}), pick(random, nil, []string{judged}, []string{"node-b"})
	}
	return nil, nil
}
