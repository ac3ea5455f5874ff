// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"slices"
	"testing"

	"beeline.io/beeline/internal/report/condition"
)

// A fault is a difference that the comparison finds, and that has to go.
type fault struct {
	line      string   // its words
	layouts   []string // in which it is found; nil: in all that have the scenario
	scenarios []string // changes, and kinds of frames
	kinds     []string // how packets differ; nil: in any way

	conditions []condition.Code // of a listed difference: the node has one of them meanwhile
}

// Some layouts: those with pods, those whose pods are not at a bridge, and those whose pods are.
var (
	withPods    = []string{"routed", "bridge", "vxlan", "bridge and vxlan", "wireguard", "two NICs", "tables of pods"}
	routedPods  = []string{"routed", "vxlan", "wireguard", "two NICs", "tables of pods"}
	bridgedPods = []string{"bridge", "bridge and vxlan"}
	balancers   = []string{"balancer", "balancer by XDP"}
	edges       = []string{"balancer", "balancer by XDP", "addresses of Services", "masquerade beside NodePorts"}
)

// known are the faults. The test requires that each is found: when it is fixed, its row goes to fixed, where nothing
// may be found.
var known = faults{}

// fixed are faults that were found once. The list shows what the comparison finds.
var fixed = faults{
	{
		line:      "ICMPv6 errors about the MTU of a route that is not locked quote the hop limit before the node, and always tell that MTU: the stack finds it after the device's",
		layouts:   []string{"balancer", "balancer by XDP", "routed", "wireguard", "two NICs", "tables of pods"},
		scenarios: []string{"a route with an MTU to a pod of the other node"},
		kinds:     []string{Other},
	},
	{line: "the edge knows a flow whose only packet the stack drops because of its TTL", layouts: []string{"balancer", "balancer by XDP", "addresses of Services"}, scenarios: []string{"TTL 2"}, kinds: []string{Other}},
	{line: "the edge looks at the TTL before the route: it answers where the route drops", layouts: edges, scenarios: []string{"TTL 2"}, kinds: []string{Passes}},
	{
		line:      "the edge knows a flow whose only packet conntrack finds invalid because of its checksum: the answer to a masqueraded pod goes the same way",
		layouts:   []string{"masquerade beside NodePorts"},
		scenarios: []string{"wrong UDP checksum", "wrong TCP checksum"},
		kinds:     []string{Elsewhere},
	},
	{
		line:      "the edge answers pings although a blackhole route leads to who sent them",
		layouts:   []string{"addresses of Services"},
		scenarios: []string{"a blackhole route to a pod of the other node"},
		kinds:     []string{Passes},
	},
	{
		line:      "pods of one node are delivered although the device of one is in a VRF",
		scenarios: []string{"a pod's device in a VRF"},
	},
	{
		line:      "TCP segments without flags, or with a wrong checksum, which conntrack finds invalid, are forwarded by flow offload",
		layouts:   []string{"offload"},
		scenarios: []string{"no flags of TCP", "wrong TCP checksum", "wrong UDP checksum"},
		kinds:     []string{Passes, Elsewhere},
	},
	{line: "while no agent runs, a pod receives by a device that is down", scenarios: []string{"a pod's device down without an agent", "a pod's port down without an agent"}},
	{
		line:      "with rp_filter, a pod's packets pass although a rule makes its own address unreachable",
		scenarios: []string{"an unreachable rule to a pod, with rp_filter"},
		kinds:     []string{Passes},
	},
	{
		line:      "pods: the MTU of a route is ignored",
		layouts:   withPods,
		scenarios: []string{"a route with an MTU to a pod of the other node", "a route with an MTU to a pod of the node"},
	},
	{
		line:      "edge: the MTU of a route is ignored",
		layouts:   balancers,
		scenarios: []string{"a route with an MTU to a pod of the other node"},
		kinds:     []string{Passes, Elsewhere},
	},
	{
		line:      "pods: packets that are too long for a route with a tunnel of its own get an ICMP error where the stack fragments",
		layouts:   []string{"routed", "two NICs"},
		scenarios: []string{"a route with a VXLAN tunnel of its own"},
		kinds:     []string{Elsewhere},
	},
	{
		line:      "edge: packets to a backend with a route that has a VXLAN tunnel of its own are dropped",
		layouts:   balancers,
		scenarios: []string{"a route with a VXLAN tunnel of its own"},
	},
	{
		line:    "the edge drops without an error what the stack answers with one",
		layouts: balancers,
		scenarios: []string{
			"a prohibit route to a pod of the other node", "an unreachable route to a pod of the other node", "a prohibit rule to a pod of the other node",
		},
		kinds: []string{Drops},
	},
	{
		line:      "ICMP errors of the edge about merged segments are other ones",
		layouts:   balancers,
		scenarios: []string{"a route with a locked MTU to a pod of the other node"},
		kinds:     []string{Other},
	},
	{line: "ICMP errors of the edge about a device's MTU have TOS 0 and DF", layouts: []string{"balancer", "addresses of Services", "masquerade beside NodePorts"}, scenarios: []string{"a small MTU of the uplink"}, kinds: []string{Other}},
	{
		line:      "pods: the MTU of a locked route to a pod of the node is ignored",
		scenarios: []string{"a route with a locked MTU to a pod of the node"},
	},
	{
		line:    "pods of one node are delivered without a route look-up: rules and tables of a pod have no effect",
		layouts: routedPods,
		scenarios: []string{
			"a prohibit route to a pod of the node in a table of the pod", "a table of a pod without the node's pods",
			"a prohibit rule between pods of the node", "a blackhole rule for a pod", "a blackhole rule by device of arrival",
		},
		kinds: []string{Passes, Elsewhere},
	},
	{
		line:      "pods of one node, and packets of other nodes, are delivered without a route look-up: rules have no effect",
		layouts:   withPods,
		scenarios: []string{"an unreachable rule to a pod", "a prohibit rule by protocol and port", "a blackhole rule by TOS"},
		kinds:     []string{Passes, Elsewhere},
	},
	{
		line:      "forwarding=0 of a pod's device, or of all, has no effect",
		layouts:   routedPods,
		scenarios: []string{"no forwarding from a pod's device", "no forwarding"},
		kinds:     []string{Passes, Elsewhere},
	},
	{line: "a tag with a priority alone is stripped where a bridge keeps it", layouts: bridgedPods, scenarios: []string{"a tag with a priority only"}, kinds: []string{Other}},
	{
		line:      "an unresolved pod's MAC address: frames have another pod's",
		layouts:   routedPods,
		scenarios: []string{"neighbours forgotten"},
		kinds:     []string{Other},
	},
	{
		line:      "ICMP errors of the pod shortcut have TOS 0 and DF, those of the stack TOS 0xc0 and no DF",
		layouts:   routedPods,
		scenarios: []string{"a small MTU of the uplink", "merged TCP segments that are too long"},
		kinds:     []string{Other},
	},
	{
		line:      "ICMP errors of the pod shortcut about a route's MTU have TOS 0 and DF",
		layouts:   routedPods,
		scenarios: []string{"a route with a locked MTU to a pod of the other node"},
		kinds:     []string{Other},
	},
	{
		line:      "ICMP errors of the pod shortcut about a tunnel's MTU have TOS 0 and DF",
		layouts:   []string{"wireguard"},
		scenarios: []string{"merged TCP segments"},
		kinds:     []string{Other},
	},
	{
		line:      "merged packets without DF get an ICMP error where the stack fragments",
		layouts:   routedPods,
		scenarios: []string{"merged TCP segments that are too long, without DF"},
		kinds:     []string{Elsewhere, Other},
	},
	{line: "a wrong checksum of the IPv4 header passes", layouts: withPods, scenarios: []string{"wrong IPv4 checksum"}, kinds: []string{Passes}},
	{line: "ICMP messages that are longer than their frames pass", layouts: withPods, scenarios: []string{"ICMP longer than its frame"}, kinds: []string{Passes}},
	{line: "padding is delivered", layouts: withPods, scenarios: []string{"padding"}, kinds: []string{Other}},
	{
		line:      "a frame for another pod's MAC address is delivered in the routed layout, and one for the receiver's is bridged",
		layouts:   routedPods,
		scenarios: []string{"a frame for another pod", "a frame for the receiver"}, kinds: []string{Passes},
	},
	{
		line:      "a remembered decision ignores the frame's destination MAC address",
		layouts:   bridgedPods,
		scenarios: []string{"a frame for another pod", "a frame for the receiver"}, kinds: []string{Passes, Elsewhere, Other},
	},
	{
		line: "XFRM policies have no effect",
		scenarios: []string{
			"an XFRM policy that blocks between pods of the node", "an XFRM policy that blocks to the other node", "an XFRM policy that blocks from the other node",
			"an XFRM policy that requires ESP to the other node", "an XFRM policy that requires ESP from the other node", "an XFRM policy that blocks a port",
			"XFRM blocks what no policy allows",
		},
	},
	{
		line:      "TCP segments of Services with impossible flags, which conntrack finds invalid, are forwarded by the edge",
		layouts:   edges,
		scenarios: []string{"SYN and FIN", "no flags of TCP"},
		kinds:     []string{Passes, Elsewhere},
	},
	{
		line:      "packets of Services with a wrong checksum, which conntrack finds invalid, are forwarded by the edge",
		layouts:   []string{"balancer", "balancer by XDP", "addresses of Services"},
		scenarios: []string{"wrong UDP checksum", "wrong TCP checksum"},
		kinds:     []string{Passes, Elsewhere},
	},
	{
		line:      "the edge answers pings with a wrong checksum, and refuses them at a ClusterIP",
		layouts:   []string{"addresses of Services"},
		scenarios: []string{"wrong ICMP checksum"},
		kinds:     []string{Passes},
	},
	{
		line:      "IPv6 packets with a routing header are not served by the edge",
		layouts:   []string{"balancer", "balancer by XDP", "masquerade beside NodePorts"},
		scenarios: []string{"routing header"},
	},
	{line: "nftables' netdev egress hook at the uplink is skipped", scenarios: []string{"a netdev rule at egress of the uplink"}},
	{
		line: "the source of packets from other nodes is not validated",
		scenarios: []string{
			"rp_filter 1", "rp_filter 2", "rp_filter 1 at the uplink", "rp_filter 1 at the second uplink",
			"the address of a pod of the other node at the node itself", "no forwarding from the uplink",
		},
	},
	{
		line:      "a rule for invalid packets before conntrack, to which all are, is no filter",
		scenarios: []string{"an nftables rule for invalid packets before conntrack"},
	},
	{line: "ports of a bridge that are isolated, or blocked, reach each other", scenarios: []string{"isolated ports", "a blocked port"}},
}

type faults []fault

// explain reports whether a difference of a walk is of a known fault: of a kind of its frame, or of a change in force.
func (all faults) explain(d Difference) bool { return all.line(d) != "" }

// line is the line of the first fault that explains a difference; empty: none does.
func (all faults) line(d Difference) string { return all.of(d, d.scenarios()...) }

// of is the same for some scenarios.
func (all faults) of(d Difference, scenarios ...string) string {
	for _, scenario := range scenarios {
		for _, f := range all {
			if f.covers(d.Layout, scenario) && (f.kinds == nil || slices.Contains(f.kinds, d.Kind())) {
				return f.line
			}
		}
	}
	return ""
}

func (f *fault) covers(layout, scenario string) bool {
	return slices.Contains(f.scenarios, scenario) && (f.layouts == nil || slices.Contains(f.layouts, layout))
}

// judge fails the test for differences that are neither known faults nor listed, and for a fault or a row of the list
// that is not found.
func (w *world) judge(scenario string, found []Difference) {
	w.t.Helper()
	excused := map[int]bool{}
	for j, d := range found {
		excused[j] = w.ping(d)
	}
	for _, f := range excuses(w.t) {
		if !f.covers(w.layout.name, scenario) {
			continue
		}
		seen := false
		for j, d := range found {
			if f.kinds == nil || slices.Contains(f.kinds, d.Kind()) {
				seen, excused[j] = true, true
			}
		}
		if !seen {
			w.t.Errorf("%s, layout %s: nothing differs as this row says: move it from known to fixed, or delete it from differences.md: %s", scenario, w.layout.name, f.line)
		}
		if f.conditions != nil {
			w.wantCondition(f.conditions)
		}
	}
	for j, d := range found {
		if !excused[j] {
			w.t.Error(d)
		}
	}
}

// ping reports whether a difference is one of echo requests, which are among plain frames, that is known or listed.
func (w *world) ping(d Difference) bool {
	w.t.Helper()
	return d.Frame.Protocol == icmp && !d.Frame.Reply && excuses(w.t).of(d, "an echo request") != ""
}

// example reports whether a scenario is the first one of a fault, known or fixed.
func example(scenario string) bool {
	return slices.ContainsFunc(slices.Concat(known, fixed), func(f fault) bool { return f.scenarios[0] == scenario })
}

// layoutNames and scenarioNames are those that faults may have.
func layoutNames() (names []string) {
	for _, l := range layouts {
		names = append(names, l.name)
	}
	return names
}

func scenarioNames() (names []string) {
	names = append(names, plain)
	for _, c := range changes {
		names = append(names, c.name)
	}
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// has reports whether a layout has a scenario.
func (l *layout) has(scenario string) bool {
	return scenario == plain || slices.ContainsFunc(changesOf(l), func(c change) bool { return c.name == scenario }) ||
		slices.ContainsFunc(kindsOf(l), func(k kind) bool { return k.name == scenario })
}

// Each fault names scenarios and layouts that exist and go together, and each change is made in some layout.
func TestFaultsAreComplete(t *testing.T) {
	for _, f := range slices.Concat(known, fixed, mustList(t)) {
		for _, s := range f.scenarios {
			if !slices.Contains(scenarioNames(), s) {
				t.Errorf("no change and no kind of frames is named %q: %s", s, f.line)
			}
		}
		for _, l := range f.layouts {
			if !slices.Contains(layoutNames(), l) {
				t.Errorf("no layout is named %q: %s", l, f.line)
			}
		}
	}
	for _, f := range slices.Concat(known, fixed, mustList(t)) {
		for _, s := range f.scenarios {
			if !slices.ContainsFunc(layouts, func(l *layout) bool { return f.covers(l.name, s) && l.has(s) }) {
				t.Errorf("%q is in none of its layouts: %s", s, f.line)
			}
		}
	}
	for _, s := range scenarioNames() {
		if !slices.ContainsFunc(layouts, func(l *layout) bool { return l.has(s) }) {
			t.Errorf("%q is in no layout", s)
		}
	}
	for _, l := range layouts {
		for _, name := range slices.Concat(l.changes, l.skips) {
			if !slices.Contains(scenarioNames(), name) {
				t.Errorf("layout %s: no change and no kind of frames is named %q", l.name, name)
			}
		}
	}
}
