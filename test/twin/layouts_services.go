// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// threshold is the default of --offload-threshold, and some more.
const threshold = 25

// offload has flows of pods that the node forwards, and masquerades towards the client.
var offload = layout{
	name: "offload", points: veths, ends: plainEnds, took: offloaded, learns: threshold,
	flags: []string{"--edge-mode=off", "--offload-devices=a1,a2,a3,eth0", "--offload-provider=cache"},
	rules: func(s *side) string {
		return dropInvalid + "table inet kube { chain postrouting { type nat hook postrouting priority 100; " +
			fmt.Sprintf("ip saddr %s ip daddr %s masquerade; ", s.Host("a1").Addr4, s.Host("client").Addr4) +
			fmt.Sprintf("ip6 saddr %s ip6 daddr %s masquerade; }; }", s.Host("a1").Addr6, s.Host("client").Addr6)
	},
	skips: translated,
	pairs: []pair{
		{at: "a1", from: "a1", to: "a2"}, {at: "a2", from: "a2", to: "a1", reply: true},
		{at: "a2", from: "a2", to: "b1"}, {at: "b1", from: "b1", to: "a2", reply: true},
		{at: "a1", from: "a1", to: "client"}, {at: "client", from: "client", to: nodeA, reply: true},
	},
}

// dropInvalid is a rule that kube-proxy has, too.
const dropInvalid = "table inet invalid { chain forward { type filter hook forward priority 0; ct state invalid drop; }; }; "

// translated are kinds of frames whose flows get a random port where their own is taken by another pair's, or whose
// errors quote one.
var translated = []string{
	"from a link-local address", "from an unused address of the node's pod network", "from an unused address of the other node's pod network",
	"from a pod of the node", "from the node",
}

// Ports of the Services: of NodePorts, and of their pods.
const (
	remotePort = 30080 // its endpoint is b1
	localPort  = 30081 // its endpoint is a1
)

// balancer has NodePorts with one endpoint each. The other lab has the rules that kube-proxy makes for them, without
// the masquerade towards a pod of the node, which docs/operate/differences.md lists.
var balancer = layout{
	name: "balancer", points: veths, ends: plainEnds, took: balanced, objects: services, server: lab.PortTCP,
	rules: func(s *side) string {
		if s.agent != nil {
			return dropInvalid
		}
		return dropInvalid + kubeProxyRules(s.Lab)
	},
	skips: slices.Concat(translated, []string{
		"first fragment", "later fragment", "fragment of a merged packet", // conntrack waits for the whole datagram
		"SYN and FIN", "no flags of TCP", // to no connection
		"hop-by-hop options", "destination options", "routing header", // whose ports restorePort does not restore
		"TTL 1", "merged TCP segments that are too long", "merged TCP segments that are too long, without DF", // nor those in errors of other routers
	}),
	// Packet filters are not among them: the edge forwards past netfilter, and a condition names what it bypasses.
	changes: []string{
		"a route with an MTU to a pod of the other node", "a route with a locked MTU to a pod of the other node", "a route with an MTU to a pod of the node",
		"a route with a locked MTU to a pod of the node", "a blackhole route to a pod of the other node", "a prohibit route to a pod of the other node",
		"an unreachable route to a pod of the other node", "a prohibit rule to a pod of the other node", "rp_filter 1", "rp_filter 2", "rp_filter 1 at the uplink",
		"accept_local", "an XFRM policy that blocks to the other node", "an XFRM policy that requires ESP to the other node", "XFRM blocks what no policy allows",
		"neighbours forgotten", "a small MTU of the uplink", "a small MTU of a pod's device",
	},
	pairs: []pair{
		{at: "client", from: "client", to: nodeA, service: remotePort}, {at: "b1", from: "b1", to: nodeA, service: lab.PortTCP, reply: true},
		{at: "client", from: "client", to: nodeA, service: localPort}, {at: "a1", from: "a1", to: "client", service: lab.PortTCP, reply: true},
	},
}

func services(l *lab.Lab) (all []runtime.Object) {
	all = append(all, node.Objects(node.Public("remote", 1, remotePort, l.Host("b1")))...)
	return append(all, node.Objects(node.Public("local", 2, localPort, l.Host("a1")))...)
}

func kubeProxyRules(l *lab.Lab) string {
	var nat, masquerade strings.Builder
	for port, pod := range map[int]string{remotePort: "b1", localPort: "a1"} {
		at, to := l.Host(nodeA), l.Host(pod)
		for _, protocol := range []string{"tcp", "udp"} {
			fmt.Fprintf(&nat, "ip daddr %s %s dport %d dnat ip to %s:%d; ", at.Addr4, protocol, port, to.Addr4, lab.PortTCP)
			fmt.Fprintf(&nat, "ip6 daddr %s %s dport %d dnat ip6 to [%s]:%d; ", at.Addr6, protocol, port, to.Addr6, lab.PortTCP)
		}
	}
	fmt.Fprintf(&masquerade, "ct status dnat ip daddr %s masquerade; ct status dnat ip6 daddr %s masquerade; ", l.Host("b1").Addr4, l.Host("b1").Addr6)
	return "table inet kube { chain prerouting { type nat hook prerouting priority -100; " + nat.String() + "}; " +
		"chain postrouting { type nat hook postrouting priority 100; " + masquerade.String() + "}; }"
}
