// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/test/lab"
)

// A change of the node's configuration, made in both labs.
type change struct {
	name     string
	do, undo []string           // commands for a shell of the node, with the names of replacer
	follows  time.Duration      // within this time a shortcut follows it, and its end
	where    func(*layout) bool // nil: everywhere
	needs    string             // of the kernel: a command of the node that fails without it
	ended    bool               // the agent has ended meanwhile
}

// How soon a shortcut follows (docs/operate/pods.md, docs/develop/pod.md): a search begins 20 ms after a change of
// devices and routes, and decisions are remembered for 50 ms; packet filters have their effect after one second at
// most, and those that the kernel does not report after 5 s. The rest is for a busy machine.
// Without an agent the shortcut ends for new flows after --pod-filter-age.
const (
	soon      = time.Second
	filters   = 2 * time.Second
	later     = 6500 * time.Millisecond
	filterAge = 33 * time.Second
)

// both returns commands for IPv4 and IPv6: of each pair of braces with a bar the left side is IPv4's.
func both(commands ...string) (all []string) {
	for _, c := range commands {
		for family := range 2 {
			all = append(all, choose(c, family))
		}
	}
	return all
}

func choose(text string, family int) string {
	for {
		begin := strings.Index(text, "<")
		end := strings.Index(text, ">")
		if begin < 0 || end < begin {
			return text
		}
		text = text[:begin] + strings.Split(text[begin+1:end], "|")[family] + text[end+1:]
	}
}

// route is a change that adds a route in both families, and deletes it.
func route(name, text string) change {
	return change{name: name, do: both("ip <-4|-6> route add " + text), undo: both("ip <-4|-6> route del " + text), follows: soon}
}

// rule is a change that adds a routing rule in both families, and deletes it.
func rule(name, text string) change {
	return change{name: name, do: both("ip <-4|-6> rule add pref 100 " + text), undo: both("ip <-4|-6> rule del pref 100 " + text), follows: soon}
}

// setting is a change of settings below net, which are undone one by one.
func setting(name string, values, before string, paths ...string) change {
	c := change{name: name, follows: soon}
	for _, path := range paths {
		c.do = append(c.do, fmt.Sprintf("echo %s > /proc/sys/net/%s", values, path))
		c.undo = append(c.undo, fmt.Sprintf("echo %s > /proc/sys/net/%s", before, path))
	}
	return c
}

// datagrams drops the test's, at pods of layouts with Services and without.
const datagrams = "udp dport { 80, 8080 } drop"

// nft is a change that adds a table of nftables.
func nft(name, family, chain, rules string) change {
	return change{
		name: name, follows: filters,
		do:   []string{fmt.Sprintf("nft 'table %s twin { chain c { %s; %s; }; }'", family, chain, rules)},
		undo: []string{fmt.Sprintf("nft delete table %s twin", family)},
	}
}

// xfrm is a change that adds IPsec policies.
func xfrm(name, text string) change {
	return change{name: name, do: both("ip xfrm policy add " + text), undo: []string{"ip xfrm policy flush"}, follows: filters}
}

// with has a change make something else, too.
func (c change) with(do, undo string) change {
	c.do, c.undo = append(c.do, do), append(c.undo, undo)
	return c
}

// in limits a change to some labs.
func (c change) in(where func(*layout) bool) change {
	c.where = where
	return c
}

func podRoutes(l *layout) bool     { return l.shape.Pods != lab.PodsBridge }
func bridged(l *layout) bool       { return l.shape.Pods == lab.PodsBridge }
func nodesRouted(l *layout) bool   { return l.shape.Network == "" } // the default of shapes, as below
func plainlyRouted(l *layout) bool { return nodesRouted(l) && l.shape.Pods == "" }
func twoDevices(l *layout) bool    { return l.shape.TwoNICs }

// changes are all that the test makes.
var changes = slices.Concat(routeChanges, ruleChanges, settingChanges, policyChanges, filterChanges, deviceChanges)

var routeChanges = []change{
	route("a route with an MTU to a pod of the other node", "<{b1}|{b1.6}> {to b1<|.6>} mtu 1350"),
	route("a route with a locked MTU to a pod of the other node", "<{b1}|{b1.6}> {to b1<|.6>} mtu lock 1350"),
	{
		name: "a route with an MTU to a pod of the node", follows: soon, where: podRoutes,
		do: both("ip <-4|-6> route change <{a2}|{a2.6}> dev a2 mtu 1350"), undo: both("ip <-4|-6> route change <{a2}|{a2.6}> dev a2 src <{node}|{node.6}>"),
	},
	{
		name: "a route with a locked MTU to a pod of the node", follows: soon, where: podRoutes,
		do: both("ip <-4|-6> route change <{a2}|{a2.6}> dev a2 mtu lock 1350"), undo: both("ip <-4|-6> route change <{a2}|{a2.6}> dev a2 src <{node}|{node.6}>"),
	},
	{
		name: "a prohibit route instead of a pod's", follows: soon, where: podRoutes,
		do:   both("ip <-4|-6> route del <{a2}|{a2.6}> dev a2", "ip <-4|-6> route add prohibit <{a2}|{a2.6}>"),
		undo: both("ip <-4|-6> route del prohibit <{a2}|{a2.6}>", "ip <-4|-6> route add <{a2}|{a2.6}> dev a2 src <{node}|{node.6}>"),
	},
	route("a prohibit route to a pod of the other node", "prohibit <{b1}|{b1.6}>"),
	route("a blackhole route to a pod of the other node", "blackhole <{b1}|{b1.6}>"),
	route("an unreachable route to a pod of the other node", "unreachable <{b1}|{b1.6}>"),
	route("a prohibit route to a pod of the node in a table of the pod", "prohibit <{a2}|{a2.6}> table 100").withRule("from <{a1}|{a1.6}> table 100"),
	route("a table of a pod without the node's pods", "default via <{gateway}|{gateway.6}> dev eth0 table 100").withRule("from <{a1}|{a1.6}> table 100").in(podRoutes),
	{
		name: "an MPLS route to a pod of the other node", follows: soon, where: nodesRouted,
		needs: "ip route add 192.0.2.1/32 encap mpls 100 via {gateway} dev eth0 && ip route del 192.0.2.1/32",
		do:    []string{"ip route add {b1} encap mpls 100 via {gateway} dev eth0"}, undo: []string{"ip route del {b1} encap mpls 100 via {gateway} dev eth0"},
	},
	{
		name: "a route with a VXLAN tunnel of its own", follows: soon, where: nodesRouted, needs: external + " && ip link del twin0",
		do:   []string{external, "ip link set twin0 up", "ip route add {b1} encap ip id 100 dst {node-b} dev twin0", "ip neigh add {b1} lladdr 02:00:00:00:11:01 dev twin0"},
		undo: []string{"ip link del twin0"},
	},
	{
		name: "the address of a pod of the other node at the node itself", follows: soon,
		do: both("ip addr add <{b1}/32|{b1.6}/128> dev lo"), undo: both("ip addr del <{b1}/32|{b1.6}/128> dev lo"),
	},
}

// external is a VXLAN device whose routes give tunnel and remote end, as FRR sets it up.
const external = "ip link add twin0 address 02:00:00:00:11:02 type vxlan external dstport 8472 nolearning udpcsum udp6zerocsumrx"

// withRule adds a routing rule.
func (c change) withRule(text string) change {
	r := rule(c.name, text)
	c.do, c.undo = append(c.do, r.do...), append(c.undo, r.undo...)
	return c
}

var ruleChanges = []change{
	rule("a prohibit rule between pods of the node", "from <{a1}|{a1.6}> to <{a2}|{a2.6}> prohibit"),
	rule("a blackhole rule for a pod", "from <{a1}|{a1.6}> blackhole"),
	rule("an unreachable rule to a pod", "to <{a1}|{a1.6}> unreachable"),
	rule("a blackhole rule by device of arrival", "iif a1 blackhole").in(podRoutes),
	rule("a blackhole rule by device of departure, with rp_filter", "iif a1 blackhole").with("echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter", "echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter").in(podRoutes),
	rule("an unreachable rule to a pod, with rp_filter", "to <{a1}|{a1.6}> unreachable").with("echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter", "echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter"),
	rule("a prohibit rule to a pod of the other node", "to <{b1}|{b1.6}> prohibit"),
	rule("a prohibit rule by protocol and port", "ipproto udp dport 80 prohibit"),
	rule("a blackhole rule by TOS", "tos 0x10 blackhole"),
	rule("a blackhole rule by TOS for replies, with rp_filter", "from <{b1}|{b1.6}> to <{a1}|{a1.6}> tos 0x10 blackhole").with("echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter", "echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter"),
}

var settingChanges = []change{
	setting("no forwarding from a pod's device", "0", "1", "ipv4/conf/a1/forwarding").in(podRoutes),
	setting("no forwarding from the uplink", "0", "1", "ipv4/conf/eth0/forwarding"),
	setting("no forwarding", "0", "1", "ipv4/conf/all/forwarding", "ipv6/conf/all/forwarding"),
	setting("rp_filter 1", "1", "0", "ipv4/conf/all/rp_filter"),
	setting("rp_filter 2", "2", "0", "ipv4/conf/all/rp_filter"),
	setting("rp_filter 1 at the uplink", "1", "0", "ipv4/conf/eth0/rp_filter"),
	setting("rp_filter 1 at the second uplink", "1", "0", "ipv4/conf/eth1/rp_filter").in(twoDevices),
	setting("accept_local", "1", "0", "ipv4/conf/all/accept_local"),
	setting("the MTU of routes counts", "1", "0", "ipv4/ip_forward_use_pmtu"),
	setting("the priority by TOS is left", "0", "1", "ipv4/ip_forward_update_priority"),
}

// esp adds a state without ciphers: the same packets give the same octets in both labs.
const esp = "ip xfrm state add src {node} dst {node-b} proto esp spi 1 mode tunnel enc 'ecb(cipher_null)' '' auth digest_null ''"

var policyChanges = []change{
	xfrm("an XFRM policy that blocks between pods of the node", "src <{a1}|{a1.6}> dst <{a2}|{a2.6}> dir fwd action block"),
	xfrm("an XFRM policy that blocks to the other node", "src <{a1}|{a1.6}> dst <{b1}|{b1.6}> dir out action block"),
	xfrm("an XFRM policy that blocks from the other node", "src <{b1}|{b1.6}> dst <{a1}|{a1.6}> dir fwd action block"),
	xfrm("an XFRM policy that requires ESP to the other node", "src <{a1}|{a1.6}> dst <{b1}|{b1.6}> dir out tmpl src <{node}|{node.6}> dst <{node-b}|{node-b.6}> proto esp mode tunnel"),
	xfrm("an XFRM policy that requires ESP from the other node", "src <{b1}|{b1.6}> dst <{a1}|{a1.6}> dir fwd tmpl src <{node-b}|{node-b.6}> dst <{node}|{node.6}> proto esp mode tunnel"),
	xfrm("an XFRM policy that blocks a port", "src <{a1}|{a1.6}> dst <{a2}|{a2.6}> proto udp dport 80 dir out action block"),
	{
		name: "an XFRM policy with ESP to the other node", follows: filters, needs: esp + " && ip xfrm state flush",
		do:   []string{esp, "ip xfrm policy add src {a1} dst {b1} dir out tmpl src {node} dst {node-b} proto esp mode tunnel"},
		undo: []string{"ip xfrm policy flush", "ip xfrm state flush"},
	},
	{
		name: "an XFRM policy with ESP for packets of Services", follows: filters, needs: esp + " && ip xfrm state flush",
		do:   []string{esp, "ip xfrm policy add src {node} dst {b1} dir out tmpl src {node} dst {node-b} proto esp mode tunnel"},
		undo: []string{"ip xfrm policy flush", "ip xfrm state flush"},
	},
	{
		name: "XFRM blocks what no policy allows", follows: filters,
		do: []string{"ip xfrm policy setdefault fwd block"}, undo: []string{"ip xfrm policy setdefault fwd accept"},
	},
}

var filterChanges = []change{
	nft("an nftables rule in forward", "inet", "type filter hook forward priority 0", datagrams),
	nft("an nftables policy in forward", "inet", "type filter hook forward priority 0; policy drop", "ip daddr {a2} accept"),
	nft("an nftables rule that rejects", "inet", "type filter hook forward priority 0", "ip saddr {a1} reject with icmpx admin-prohibited"),
	nft("an nftables rule that changes packets", "inet", "type filter hook prerouting priority -150", "ip daddr {a2} ip dscp set cs1"),
	nft("a netdev rule at ingress of a pod's device", "netdev", "type filter hook ingress device a1 priority 0", datagrams),
	nft("a netdev rule at ingress of the uplink", "netdev", "type filter hook ingress device eth0 priority 0", datagrams),
	nft("a netdev rule at egress of a pod's device", "netdev", "type filter hook egress device a2 priority 0", datagrams),
	nft("a netdev rule at egress of the uplink", "netdev", "type filter hook egress device eth0 priority 0", datagrams),
	nft("a bridge rule", "bridge", "type filter hook forward priority 0", datagrams).in(bridged),
	nft("rules that drop invalid packets", "inet", "type filter hook forward priority 0", "ct state invalid drop"),
	nft("an nftables rule for invalid packets before conntrack", "inet", "type filter hook prerouting priority -300", "ct state invalid drop"),
	nft("an nftables rule at prerouting", "inet", "type filter hook prerouting priority -300", "udp dport { 80, 30080, 30081 } drop"),
	nft("an nftables rule by mark of the connection", "inet", "type filter hook prerouting priority -140; ct mark set 1; }; chain d { type filter hook forward priority 0", "ct mark 1 drop"),
	nft("an nftables rule by group of devices", "inet", "type filter hook forward priority 0", "iifgroup 7 drop").with("ip link set a1 group 7", "ip link set a1 group default"),
	{
		name: "an nftables set whose elements time out", follows: later, undo: []string{"nft delete table inet twin"},
		do: []string{"nft 'table inet twin { set s { type ipv4_addr; flags interval, timeout; elements = { {a2} timeout 1s }; }; " +
			"chain c { type filter hook forward priority 0; ip daddr {a2} ip daddr != @s drop; }; }'"},
	},
	{
		name: "a flow table of nftables", follows: filters, needs: flowtable + "; nft delete table inet twin",
		do: []string{flowtable}, undo: []string{"nft delete table inet twin"},
	},
	{
		name: "an iptables-nft rule by type of address", follows: filters,
		do:   []string{"iptables-nft -A FORWARD -m addrtype --dst-type UNICAST -p udp -j DROP", "ip6tables-nft -A FORWARD -m addrtype --dst-type UNICAST -p udp -j DROP"},
		undo: []string{"iptables-nft -F FORWARD", "ip6tables-nft -F FORWARD"},
	},
	{
		name: "an iptables-legacy rule", follows: later,
		do:   []string{"iptables-legacy -A FORWARD -p udp -m multiport --dports 80,8080 -j DROP", "ip6tables-legacy -A FORWARD -p udp -m multiport --dports 80,8080 -j DROP"},
		undo: []string{"iptables-legacy -F FORWARD", "ip6tables-legacy -F FORWARD"},
	},
	{
		name: "an iptables-legacy rule behind 40 chains", follows: later,
		do: []string{
			"{ echo '*filter'; for i in $(seq 40); do echo \":twin$i - [0:0]\"; done; echo '-A FORWARD -j twin1'; for i in $(seq 39); do echo \"-A twin$i -j twin$((i+1))\"; done; " +
				"echo '-A twin40 -p udp -j DROP'; echo COMMIT; } | iptables-legacy-restore",
		},
		undo: []string{"iptables-legacy -F", "iptables-legacy -X"},
	},
}

// flowtable has the kernel forward established flows past its own hooks.
const flowtable = "nft 'table inet twin { flowtable f { hook ingress priority 0; devices = { eth0, a1, a2 }; }; chain c { type filter hook forward priority 0; ct state established flow add @f; }; }'"

const vrf = "ip link add twin0 type vrf table 77"

var deviceChanges = []change{
	{name: "neighbours forgotten", // compared at once: they are found again soon
		do: []string{"ip neigh flush all", "ip -6 neigh flush all"}},
	{
		name: "a pod's device down", follows: soon, where: plainlyRouted, do: []string{"ip link set a2 down"},
		undo: append([]string{"ip link set a2 up", "ip addr replace fe80::1/64 dev a2"}, both("ip <-4|-6> route replace <{a2}|{a2.6}> dev a2 src <{node}|{node.6}>")...),
	},
	{
		name: "a pod's device down without an agent", follows: later, where: plainlyRouted, do: []string{"ip link set a2 down"}, ended: true,
		undo: append([]string{"ip link set a2 up", "ip addr replace fe80::1/64 dev a2"}, both("ip <-4|-6> route replace <{a2}|{a2.6}> dev a2 src <{node}|{node.6}>")...),
	},
	{
		name: "a pod's device in a VRF", follows: soon, where: plainlyRouted, needs: vrf + " && ip link del twin0",
		do:   []string{vrf, "ip link set twin0 up", "ip link set a2 master twin0"},
		undo: append([]string{"ip link del twin0", "ip addr replace fe80::1/64 dev a2"}, both("ip <-4|-6> route replace <{a2}|{a2.6}> dev a2 src <{node}|{node.6}>")...),
	},
	{name: "a pod's port down", follows: soon, where: bridged, do: []string{"ip link set a2 down"}, undo: []string{"ip link set a2 up"}},
	{name: "a pod's port down without an agent", follows: filterAge, where: bridged, do: []string{"ip link set a2 down"}, undo: []string{"ip link set a2 up"}, ended: true},
	{name: "a small MTU of a pod's device", follows: soon, do: []string{"ip link set a2 mtu 1300"}, undo: []string{"ip link set a2 mtu {mtu}"}, where: podRoutes},
	{name: "a small MTU of the uplink", follows: soon, do: []string{"ip link set eth0 mtu 1300"}, undo: []string{"ip link set eth0 mtu 1500"}, where: nodesRouted},
	{name: "isolated ports", follows: soon, where: bridged, do: []string{"bridge link set dev a1 isolated on", "bridge link set dev a2 isolated on"}, undo: []string{"bridge link set dev a1 isolated off", "bridge link set dev a2 isolated off"}},
	{
		name: "VLANs of ports", follows: soon, where: bridged, needs: "ip link set cni0 type bridge vlan_filtering 1 && ip link set cni0 type bridge vlan_filtering 0",
		do:   []string{"ip link set cni0 type bridge vlan_filtering 1", "bridge vlan del dev a2 vid 1"},
		undo: []string{"bridge vlan add dev a2 vid 1 pvid untagged", "ip link set cni0 type bridge vlan_filtering 0"},
	},
	{name: "a blocked port", follows: soon, where: bridged, do: []string{"bridge link set dev a2 state 4"}, undo: []string{"bridge link set dev a2 state 3"}},
}

// fits reports whether a layout can have a change.
func (c change) fits(l *layout) bool {
	return (c.where == nil || c.where(l)) && (l.changes == nil || slices.Contains(l.changes, c.name))
}

// changesOf are the changes that a layout can have.
func changesOf(l *layout) (all []change) {
	for _, c := range changes {
		if c.fits(l) {
			all = append(all, c)
		}
	}
	return all
}

// replacer has the addresses of the lab, and what follows a destination in a route to a pod of the other node.
func (s *side) replacer() *strings.Replacer {
	var pairs []string
	for _, h := range s.Hosts() {
		pairs = append(pairs, "{"+h.Name+"}", h.Addr4.String(), "{"+h.Name+".6}", h.Addr6.String())
	}
	for name, h := range map[string]string{"node": nodeA, "gateway": "fabric"} {
		pairs = append(pairs, "{"+name+"}", s.Host(h).Addr4.String(), "{"+name+".6}", s.Host(h).Addr6.String())
	}
	mtu := s.Shape.Network.MTU()
	if mtu == 0 {
		mtu = 1500
	}
	for family, name := range []string{"to b1", "to b1.6"} {
		pairs = append(pairs, "{"+name+"}", s.toOtherNode(family))
	}
	return strings.NewReplacer(append(pairs, "{mtu}", fmt.Sprint(mtu))...)
}

// toOtherNode is the next hop of routes to pods of the other node.
func (s *side) toOtherNode(family int) string {
	gateway := [2]netip.Addr{s.Host("fabric").Addr4, s.Host("fabric").Addr6}[family]
	switch s.Shape.Network {
	case lab.NetworkVXLAN:
		return "via " + [2]string{"10.10.2.0", "fd00:10:2::"}[family] + " dev vxlan0 onlink"
	case lab.NetworkWireGuard:
		return "dev wg0"
	}
	return "via " + gateway.String() + " dev eth0"
}

// commands runs commands on the node of both labs.
func (w *world) commands(all []string) {
	w.t.Helper()
	for _, s := range w.sides {
		w.must(s.shell(nodeA, all))
	}
}

// lacks is why the kernel cannot make a change; empty: it can.
func (w *world) lacks(c change) string {
	if c.needs == "" {
		return ""
	}
	for _, s := range w.sides {
		if err := s.shell(nodeA, []string{c.needs}); err != nil {
			return fmt.Sprintf("the kernel lacks what this change needs: %v", err)
		}
	}
	return ""
}

func (w *world) make(c change) {
	w.t.Helper()
	if c.ended {
		w.must(w.sides[0].agent.Kill())
	}
	w.commands(c.do)
	w.endFlows(c, true)
	w.changes = append(w.changes, c.name)
}

// hinders reports whether another change cannot be undone while this one is in force: no route can be set by a device
// that is down.
func (c change) hinders(other change) bool {
	return slices.Contains(c.do, "ip link set a2 down") && strings.Contains(strings.Join(other.undo, "\n"), " dev a2")
}

func (c change) is(other change) bool { return c.name == other.name }

// endFlows is for XFRM policies: the edge deletes flows that one concerns.
func (w *world) endFlows(c change, inForce bool) {
	for _, s := range w.sides {
		if slices.ContainsFunc(policyChanges, c.is) {
			s.endFlows(inForce)
		}
	}
}

func (w *world) unmake(c change) {
	w.t.Helper()
	w.commands(c.undo)
	w.endFlows(c, false)
	if c.ended {
		w.must(w.sides[0].agent.Start())
	}
	w.changes = slices.DeleteFunc(w.changes, func(name string) bool { return name == c.name })
}
