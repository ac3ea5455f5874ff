// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// threshold is the default of --offload-threshold, and some more.
const threshold = 25

// offload has flows of pods that the node forwards, and masquerades towards the client.
var offload = layout{
	name: "offload", points: veths, ends: plainEnds, took: offloaded, learns: threshold, server: 80,
	flags: []string{"--edge-mode=off", "--offload-devices=a1,a2,a3,eth0", "--offload-provider=cache"},
	rules: func(s *side) string {
		return dropInvalid + masquerade(s, "a1")
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

// Addresses of the Services: ClusterIPs, an external IP of the one with b1, and a load balancer's of the one with a1.
const (
	remoteIP     = "the ClusterIP of b1"
	localIP      = "the ClusterIP of a1"
	externalIP   = "the external IP of b1"
	loadBalancer = "the load balancer's IP of a1"
)

var virtual = map[string][2]netip.Addr{
	remoteIP: pairOf(node.ClusterIPs(1)...), localIP: pairOf(node.ClusterIPs(2)...),
	externalIP: pairOf("203.0.113.1", "2001:db8:203::1"), loadBalancer: pairOf("203.0.113.2", "2001:db8:203::2"),
}

func pairOf(both ...string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr(both[0]), netip.MustParseAddr(both[1])}
}

// balancer has NodePorts with one endpoint each. The other lab has the rules that kube-proxy makes for them, without
// the masquerade towards a pod of the node, which docs/operate/differences.md lists.
var balancer = layout{
	name: "balancer", points: veths, ends: plainEnds, took: balanced, objects: services, server: lab.PortTCP, rules: kubeProxy,
	skips: slices.Concat(translated, balancerSkips), changes: balancerChanges, flags: []string{"--edge-mode=tc"},
	pairs: []pair{
		{at: "client", from: "client", to: nodeA, service: remotePort}, {at: "b1", from: "b1", to: nodeA, service: lab.PortTCP, reply: true},
		{at: "client", from: "client", to: nodeA, service: localPort}, {at: "a1", from: "a1", to: "client", service: lab.PortTCP, reply: true},
	},
}

// balancerXDP is the same with native XDP.
var balancerXDP = layout{
	name: "balancer by XDP", points: veths, ends: plainEnds, took: balanced, objects: services, server: lab.PortTCP, rules: kubeProxy,
	skips: slices.Concat(translated, balancerSkips), changes: balancerChanges, flags: []string{"--edge-mode=xdp"}, xdp: true, pairs: balancer.pairs,
}

// addresses has the other addresses of Services, which the fabric routes to the node. The other lab's node has the
// external one and the load balancer's itself, so that it answers pings there as the edge does.
var addresses = layout{
	name: "addresses of Services", points: veths, ends: plainEnds, took: balanced, objects: services, server: lab.PortTCP, rules: kubeProxy,
	skips: slices.Concat(translated, balancerSkips, ownAddresses), changes: someChanges, flags: []string{"--edge-mode=tc"},
	fabric: both("ip <-4|-6> route add <10.96.0.0/16|fd00:96::/112> via <{node}|{node.6}>", "ip <-4|-6> route add <203.0.113.0/24|2001:db8:203::/64> via <{node}|{node.6}>"),
	stack:  both("ip <-4|-6> addr add <203.0.113.1/32|2001:db8:203::1/128> dev lo", "ip <-4|-6> addr add <203.0.113.2/32|2001:db8:203::2/128> dev lo"),
	pairs: []pair{
		{at: "client", from: "client", to: remoteIP}, {at: "b1", from: "b1", to: nodeA, service: lab.PortTCP, reply: true},
		{at: "client", from: "client", to: externalIP, shift: 15000}, {at: "b1", from: "b1", to: nodeA, service: lab.PortTCP, reply: true, shift: 15000},
		{at: "client", from: "client", to: localIP}, {at: "a1", from: "a1", to: "client", service: lab.PortTCP, reply: true},
		{at: "client", from: "client", to: loadBalancer, shift: 15000}, {at: "a1", from: "a1", to: "client", service: lab.PortTCP, reply: true, shift: 15000},
		{at: "b1", from: "b1", to: localIP}, {at: "a1", from: "a1", to: "b1", service: lab.PortTCP, reply: true},
	},
}

// masqueraded has a pod whose connections to the client leave the node from the number of a served NodePort.
var masqueraded = layout{
	name: "masquerade beside NodePorts", points: veths, ends: plainEnds, took: balanced, objects: services, server: lab.PortTCP,
	rules: func(s *side) string { return kubeProxy(s) + masquerade(s, "a1") }, flags: []string{"--edge-mode=tc"},
	skips: slices.Concat(translated, balancerSkips, []string{"port 0"}), changes: someChanges,
	pairs: []pair{
		{at: "client", from: "client", to: nodeA, service: remotePort}, {at: "b1", from: "b1", to: nodeA, service: lab.PortTCP, reply: true},
		{at: "a1", from: "a1", to: "client", fixed: remotePort, shift: 15000}, {at: "client", from: "client", to: nodeA, fixed: remotePort, reply: true, shift: 15000},
	},
}

// balancerSkips are kinds of frames that say nothing at a Service.
var balancerSkips = []string{
	"to an unused address of the node's pod network", // whose port is that of another flow
	"first fragment", "later fragment", "fragment of a merged packet", // conntrack waits for the whole datagram: "a datagram in fragments"
}

// ownAddresses are kinds to which the other lab's node answers at addresses that only it has.
var ownAddresses = []string{"SCTP", "GRE", "ESP", "AH", "UDP-Lite", "to itself", "port 0", "an echo reply", "options", "source route option", "routing header", "SYN and FIN", "no flags of TCP"}

var balancerChanges = []string{
	"a route with an MTU to a pod of the other node", "a route with a locked MTU to a pod of the other node", "a route with an MTU to a pod of the node",
	"a route with a locked MTU to a pod of the node", "a blackhole route to a pod of the other node", "a prohibit route to a pod of the other node",
	"an unreachable route to a pod of the other node", "a prohibit rule to a pod of the other node", "rp_filter 1", "rp_filter 2", "rp_filter 1 at the uplink",
	"accept_local", "an XFRM policy that blocks to the other node", "an XFRM policy that requires ESP to the other node", "XFRM blocks what no policy allows",
	"neighbours forgotten", "a small MTU of the uplink", "a small MTU of a pod's device", "an XFRM policy with ESP for packets of Services",
	"an nftables rule in forward", "an nftables policy in forward", "an nftables rule that rejects", "an nftables rule at prerouting",
	"a netdev rule at ingress of the uplink", "a netdev rule at egress of the uplink", "an iptables-nft rule by type of address", "an iptables-legacy rule",
	"a prohibit rule by protocol and port", "a blackhole rule by TOS", "no forwarding from the uplink", "no forwarding",
	"the MTU of routes counts", "an MPLS route to a pod of the other node", "a route with a VXLAN tunnel of its own",
}

// someChanges are for layouts that differ from balancer in their flows alone.
var someChanges = []string{
	"a blackhole route to a pod of the other node", "rp_filter 1", "rp_filter 2", "rp_filter 1 at the uplink", "accept_local", "neighbours forgotten",
	"a small MTU of the uplink", "a small MTU of a pod's device", "the MTU of routes counts",
}

// services are one of type NodePort with each of the addresses above.
func services(l *lab.Lab) (all []runtime.Object) {
	remote, slices := node.Public("remote", 1, remotePort, l.Host("b1"))
	local, others := node.Public("local", 2, localPort, l.Host("a1"))
	for _, a := range virtual[externalIP] {
		remote.Spec.ExternalIPs = append(remote.Spec.ExternalIPs, a.String())
	}
	local.Spec.Type = corev1.ServiceTypeLoadBalancer
	for _, a := range virtual[loadBalancer] {
		local.Status.LoadBalancer.Ingress = append(local.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	return append(append(all, node.Objects(remote, slices)...), node.Objects(local, others)...)
}

// kubeProxy are the rules of a side: those for Services are of the one without an agent.
func kubeProxy(s *side) string {
	if s.agent != nil {
		return dropInvalid
	}
	return dropInvalid + kubeProxyRules(s.Lab)
}

func kubeProxyRules(l *lab.Lab) string {
	var nat strings.Builder
	for family, ip := range []string{"ip", "ip6"} {
		a, b := addressesOf(&side{Lab: l}, "a1")[family], addressesOf(&side{Lab: l}, "b1")[family]
		for _, served := range []struct {
			at   netip.Addr
			port uint16
			to   netip.Addr
		}{
			{addressesOf(&side{Lab: l}, nodeA)[family], remotePort, b}, {addressesOf(&side{Lab: l}, nodeA)[family], localPort, a},
			{virtual[remoteIP][family], 80, b}, {virtual[externalIP][family], 80, b}, {virtual[localIP][family], 80, a}, {virtual[loadBalancer][family], 80, a},
		} {
			for _, protocol := range []string{"tcp", "udp"} {
				fmt.Fprintf(&nat, "%s daddr %s %s dport %d dnat %s to %s; ", ip, served.at, protocol, served.port, ip, netip.AddrPortFrom(served.to, lab.PortTCP))
			}
		}
	}
	b := l.Host("b1")
	return "table inet kube { chain prerouting { type nat hook prerouting priority -100; " + nat.String() + "}; " +
		"chain postrouting { type nat hook postrouting priority 100; " + fmt.Sprintf("ct status dnat ip daddr %s masquerade; ct status dnat ip6 daddr %s masquerade; }; ", b.Addr4, b.Addr6) +
		"chain other-ports { type filter hook forward priority -110; " +
		fmt.Sprintf("ct state new ip daddr %s reject; ct state new ip6 daddr %s reject; }; }; ", node.ServiceRange4, node.ServiceRange6)
}

// masquerade has a pod's connections to the client come from the node, from the pod's port if it is free.
func masquerade(s *side, pod string) string {
	from, to := s.Host(pod), s.Host("client")
	return "table inet outside { chain postrouting { type nat hook postrouting priority 100; " +
		fmt.Sprintf("ip saddr %s ip daddr %s masquerade; ip6 saddr %s ip6 daddr %s masquerade; }; }; ", from.Addr4, to.Addr4, from.Addr6, to.Addr6)
}
