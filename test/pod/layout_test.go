// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
)

// podsOfNodeNetwork are the flags for PodsPolicy, whose nodes have no podCIDRs.
const podsOfNodeNetwork = "--pod-networks=192.168.100.0/24,fd00:100::/64"

// P1, P2: in each layout packets between pods take the shortcut in both directions, all others the stack; both arrive,
// in both families, and nothing is invalid to the kernel's conntrack. The TTL is that of the stack.
func TestLayouts(t *testing.T) {
	for _, test := range []struct {
		name  string
		shape lab.Shape
		flags []string
		// hops is the number of routers between a1 and a2, and between a1 and b1.
		hops [2]int
	}{
		{"routed", lab.Shape{}, nil, [2]int{1, 3}},
		{"overlay", lab.Shape{Network: lab.NetworkVXLAN}, nil, [2]int{1, 2}},
		{"overlay without MAC addresses", lab.Shape{Network: lab.NetworkWireGuard}, nil, [2]int{1, 2}},
		{"overlay that takes the other node from the route", lab.Shape{Network: lab.NetworkIPIP}, nil, [2]int{1, 2}},
		{"bridge", lab.Shape{Pods: lab.PodsBridge}, nil, [2]int{0, 3}},
		{"bridge and overlay", lab.Shape{Network: lab.NetworkVXLAN, Pods: lab.PodsBridge}, nil, [2]int{0, 2}},
		{"addresses of the node network", lab.Shape{Pods: lab.PodsPolicy, TwoNICs: true}, []string{podsOfNodeNetwork}, [2]int{1, 3}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := lab.Supports(test.shape.Network); err != nil {
				t.Skipf("this kernel has no devices of network %s: %v", test.shape.Network, err)
			}
			w := startWorld(t, test.shape, test.flags...)
			w.wantShortcut()
			w.wantStack()
			w.wantHops("a1", "a2", test.hops[0])
			w.wantHops("a1", "b1", test.hops[1])
			for host := range w.agents {
				if n := w.invalid(host); n > 0 {
					t.Errorf("%s dropped %d packets as invalid", host, n)
				}
			}
		})
	}
}

// wantShortcut has pods talk and checks that no packet takes the stack.
func (w *world) wantShortcut() {
	w.t.Helper()
	before := w.counters()
	for _, between := range [][2]string{{"a1", "a2"}, {"a1", "b1"}, {"b2", "a3"}, {"a2", "b2"}} {
		w.reach(between[0], between[1])
	}
	for host, now := range w.counters() {
		for path, n := range now {
			n -= before[host][path]
			short := strings.HasPrefix(path, "path_") && path != "path_too_big" && (host == "node-a" || path != "path_local")
			// stack_other has ARP and neighbour discovery, stack_destination what carries the overlay.
			if (n > 0) != short && path != "stack_other" && (path != "stack_destination" || w.Shape.Network == lab.NetworkRouted) {
				w.t.Errorf("%s: %d packets between pods took %s", host, n, path)
			}
		}
	}
}

// wantStack has others talk with pods and checks that no packet takes the shortcut.
func (w *world) wantStack() {
	w.t.Helper()
	for _, host := range []string{"node-a", "node-b", "client"} {
		w.must(w.Host(host).StartServer(lab.ServerOptions{HTTP: 9081}))
	}
	before := w.counters()
	pairs := [][2]string{{"node-a", "a1"}, {"a1", "node-a"}}
	if w.Shape.Network == lab.NetworkRouted { // with an overlay the fabric has no route to pods
		pairs = append(pairs, [2]string{"client", "a1"}, [2]string{"a1", "client"}, [2]string{"a2", "client"})
	}
	for _, between := range pairs {
		w.reach(between[0], between[1])
	}
	if w.Shape.Pods == lab.PodsBridge {
		w.pings("a1", netip.MustParseAddr("10.10.1.1"))
		w.pings("a1", netip.MustParseAddr("fd00:10:1::1"))
	}
	for host, now := range w.counters() {
		for _, path := range []string{"path_local", "path_in", "path_out", "path_too_big"} {
			if n := now[path] - before[host][path]; n > 0 {
				w.t.Errorf("%s: %d packets with other than pods took %s", host, n, path)
			}
		}
	}
	// At the pod's node these take the shortcut if the other node's address is in a pod network.
	pairs = [][2]string{{"node-a", "b1"}, {"node-b", "a2"}}
	if w.Shape.Network != lab.NetworkWireGuard { // its tunnel admits replies of pods only
		pairs = append(pairs, [2]string{"a1", "node-b"})
	}
	for _, between := range pairs {
		w.reach(between[0], between[1])
	}
}

// wantHops traces the route between two pods: so many routers reply.
func (w *world) wantHops(from, to string, routers int) {
	w.t.Helper()
	for _, addr := range addresses(w.Host(to), 0) {
		for ttl := 1; ttl <= routers+1; ttl++ {
			got, err := w.echo(from, addr.Addr(), ttl)
			if want := ttl > routers; err != nil || got.isReply != want || (got.from == addr.Addr()) != want {
				w.t.Errorf("%s to %s with TTL %d: %+v, %v; there are %d routers", from, addr.Addr(), ttl, got, err, routers)
			}
		}
	}
}
