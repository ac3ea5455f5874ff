// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
)

// A drop is what drops datagrams between two pods on the stack, in one direction.
type drop struct {
	name     string
	from, to string
	do, undo func(*world)
	ipv6     bool
	// filter is a part of what the status of node-a says of the pod's device.
	filter string
}

// target is where datagrams are sent.
func (d *drop) target(w *world) netip.AddrPort {
	to := w.Host(d.to)
	if d.ipv6 {
		return netip.AddrPortFrom(to.Addr6, lab.PortUDP)
	}
	return netip.AddrPortFrom(to.Addr4, lab.PortUDP)
}

// routedDrops are at nodes whose pods have routes.
var routedDrops = []drop{
	{name: "iptables-legacy, behind 40 chains", from: "a1", to: "a2", do: func(w *world) { w.legacy("-A FORWARD -s 10.10.1.11 -d 10.10.1.12 -p udp -j c39\n-A c39 -j DROP\n") },
		undo: func(w *world) { w.legacy("") }, filter: "iptables-legacy rules in chain FORWARD of table filter"},
	{name: "what is invalid before conntrack", from: "a1", to: "a2", do: func(w *world) {
		w.rules("node-a", fmt.Sprintf("table inet t { chain c { type filter hook prerouting priority -300; udp dport %d ct state invalid drop; }; }", lab.PortUDP))
	}, undo: func(w *world) { w.run("node-a", "nft", "delete", "table", "inet", "t") }, filter: "nftables rule in chain c of table inet t: drop"},
	{name: "address types of ip6tables", from: "a1", to: "a2", ipv6: true, do: func(w *world) {
		w.feed("node-a", "*filter\n-A FORWARD -m addrtype --dst-type LOCAL,UNICAST -j ACCEPT\n-A FORWARD -p udp -j DROP\nCOMMIT\n", "ip6tables-nft-restore")
	}, undo: func(w *world) { w.run("node-a", "nft", "delete", "table", "ip6", "filter") }, filter: "nftables rule in chain FORWARD of table ip6 filter: drop"},
	{name: "netdev egress of the uplink", from: "a1", to: "b1", do: func(w *world) {
		w.rules("node-a", fmt.Sprintf("table netdev t { chain c { type filter hook egress device eth0 priority 0; udp dport %d drop; }; }", lab.PortUDP))
	}, undo: func(w *world) { w.run("node-a", "nft", "delete", "table", "netdev", "t") }, filter: "nftables rule in chain c of table netdev t: drop"},
}

// bridgeDrops are at nodes whose pods are behind ports of a bridge.
var bridgeDrops = []drop{
	{name: "isolated ports", from: "a1", to: "a2", do: func(w *world) { w.ports("isolated on", "a1", "a2") }, undo: func(w *world) { w.ports("isolated off", "a1", "a2") },
		filter: "port of bridge cni0: isolated"},
	{name: "STP state", from: "a1", to: "a2", do: func(w *world) { w.ports("state 2", "a2") }, undo: func(w *world) { w.ports("state 3", "a2") },
		filter: "port of bridge cni0: STP state learning"},
	{name: "STP state, to another node", from: "a1", to: "b1", do: func(w *world) { w.ports("state 1", "a1") }, undo: func(w *world) { w.ports("state 3", "a1") },
		filter: "port of bridge cni0: STP state listening"},
	{name: "locked port", from: "a1", to: "a2", do: func(w *world) {
		w.ports("locked on", "a1")
		w.forgetMACs("a1")
	}, undo: func(w *world) { w.ports("locked off", "a1") }, filter: "port of bridge cni0: locked"},
}

// ports changes ports of node-a's bridge.
func (w *world) ports(setting string, devices ...string) {
	w.t.Helper()
	for _, device := range devices {
		w.run("node-a", append([]string{"bridge", "link", "set", "dev", device}, strings.Fields(setting)...)...)
	}
}

// awaitForwardDelay waits until no port of node-a's bridge has a running timer: 15 s after a port was set up the kernel
// forwards for it if it is in state learning, whoever has set that (br_forward_delay_timer_expired).
func (w *world) awaitForwardDelay() {
	w.t.Helper()
	w.eventually("the forward delay of all ports has passed", func() bool {
		ports := w.run("node-a", "ip", "-details", "link", "show", "master", lab.BridgeDevice)
		const timer = "forward_delay_timer "
		all := strings.Count(ports, timer)
		return all > 0 && strings.Count(ports, timer+"   0.00 ") == all
	})
}

// forgetMACs has node-a's bridge forget the addresses that it has learned at a port.
func (w *world) forgetMACs(port string) {
	w.t.Helper()
	for _, line := range strings.Split(w.run("node-a", "bridge", "fdb", "show", "dev", port), "\n") {
		if mac, _, ok := strings.Cut(line, " "); ok && strings.Contains(line, "master") && !strings.Contains(line, "permanent") {
			w.run("node-a", "bridge", "fdb", "del", mac, "dev", port, "master")
		}
	}
}

// legacy replaces the table filter of iptables-legacy at node-a: 40 chains, and rules.
func (w *world) legacy(rules string) {
	w.t.Helper()
	var table strings.Builder
	table.WriteString("*filter\n:FORWARD ACCEPT [0:0]\n")
	for i := range 40 {
		fmt.Fprintf(&table, ":c%02d - [0:0]\n", i)
	}
	w.feed("node-a", table.String()+rules+"COMMIT\n", "iptables-legacy-restore")
}

// What drops packets on the stack drops them beside the shortcut, too, and what the shortcut has taken before; without
// it they pass again.
func TestDrops(t *testing.T) { testDrops(t, lab.Shape{}, routedDrops) }

// The same for ports of a bridge.
func TestDropsOfBridges(t *testing.T) { testDrops(t, lab.Shape{Pods: lab.PodsBridge}, bridgeDrops) }

func testDrops(t *testing.T, shape lab.Shape, drops []drop) {
	w := newWorld(t, shape, "--pod-devices=auto")
	if shape.Pods == lab.PodsBridge {
		w.awaitForwardDelay()
	}
	for _, d := range drops { // without an agent
		d.do(w)
		w.wantAnswer(d, false)
		d.undo(w)
		w.awaitAnswer(d) // a datagram is lost in a veth whose XDP program goes
	}
	for _, a := range w.agents {
		w.must(a.Start())
	}
	w.awaitAllPods()
	for _, d := range drops {
		t.Run(d.name, func(t *testing.T) { w.in(t).dropped(d) })
	}
}

// dropped has a flow run on the shortcut until it is dropped, and again.
func (w *world) dropped(d drop) {
	w.t.Helper()
	w.eventually("the shortcut takes the flow", func() bool {
		before := w.counters()["node-a"]
		for range 10 {
			w.wantAnswer(d, true)
		}
		after := w.counters()["node-a"]
		return after["path_local"]+after["path_out"]-before["path_local"]-before["path_out"] >= 10
	})
	w.endsFlowOf(d.from, d.target(w), auditDelay, func() { d.do(w) })
	w.wantAnswer(d, false)
	found := ""
	defer func() {
		if w.t.Failed() {
			text, err := w.agents["node-a"].CLI("status", "-v")
			w.t.Logf("devices that the shortcut withholds:\n%s\nports of bridges:\n%s\nstatus (%v):\n%s", found, w.run("node-a", "bridge", "-d", "link"), err, text)
		}
	}()
	w.eventually("the status says "+d.filter, func() bool {
		found = ""
		for _, device := range w.pods("node-a").Devices {
			if !device.Shortcut {
				found += device.Name + ": " + strings.Join(device.PacketFilters, "; ") + "\n"
			}
		}
		return strings.Contains(found, d.filter)
	})
	d.undo(w)
	w.awaitAllPods()
	w.awaitAnswer(d)
	if n := w.invalid("node-a") + w.invalid("node-b"); n > 0 {
		w.t.Errorf("%d packets were invalid", n)
	}
}

// awaitAnswer sends datagrams until one is answered.
func (w *world) awaitAnswer(d drop) {
	w.t.Helper()
	w.eventually(d.name+": an answer from "+d.to+" to "+d.from, func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		defer cancel()
		_, err := w.Host(d.from).Request(ctx, "udp", d.target(w).String(), "hello")
		return err == nil
	})
}

// wantAnswer checks whether a new flow of datagrams is answered.
func (w *world) wantAnswer(d drop, want bool) {
	w.t.Helper()
	wait := patience / 4
	if !want {
		wait = 300 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), wait)
	defer cancel()
	_, err := w.Host(d.from).Request(ctx, "udp", d.target(w).String(), "hello")
	if (err == nil) != want {
		w.t.Errorf("%s: a datagram of %s to %s: %v; want an answer: %t", d.name, d.from, d.to, err, want)
	}
}
