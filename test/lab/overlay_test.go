// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Pods of two nodes reach each other over each overlay in both families, with the longest datagram that their
// devices allow, and the fabric sees only encapsulated packets between the nodes: no packet of a pod, no fragment,
// none too long for it.
func TestPodsReachEachOtherOverAnOverlay(t *testing.T) {
	for network, encapsulated := range map[Network]struct {
		protocol uint8
		port     uint16
		longest  int
	}{
		NetworkVXLAN: {unix.IPPROTO_UDP, overlayPort, 1500},
		// 60 octets over IPv4, of which up to 15 are padding (WireGuard, section 5.4.6).
		NetworkWireGuard: {unix.IPPROTO_UDP, wireGuardPort, overlays[NetworkWireGuard].mtu + 60},
		NetworkIPIP:      {unix.IPPROTO_IPIP, 0, 1500},
	} {
		t.Run(string(network), func(t *testing.T) {
			if err := Supports(network); err != nil {
				t.Skipf("this kernel has no devices of network %s: %v", network, err)
			}
			l := NewOf(t, Shape{Network: network})
			if err := l.StartServers(); err != nil {
				t.Fatal(err)
			}
			ear, err := l.Host("fabric").Hear("node-a", "node-b")
			if err != nil {
				t.Fatal(err)
			}
			defer ear.Close()
			wantPodsReach(t, l, network)
			heard, err := ear.Packets()
			if err != nil {
				t.Fatal(err)
			}
			longest := 0
			for _, p := range heard {
				if network == NetworkIPIP && p.From.Addr().Is6() {
					continue // routed
				}
				if p.Protocol != encapsulated.protocol || p.To.Port() != encapsulated.port || p.Fragment {
					t.Errorf("the fabric received %+v", p)
				}
				longest = max(longest, p.Length)
			}
			if longest != encapsulated.longest {
				t.Errorf("the longest packet that the fabric saw has %d octets, want %d", longest, encapsulated.longest)
			}
		})
	}
}

// wantPodsReach sends between all pods.
func wantPodsReach(t *testing.T, l *Lab, network Network) {
	t.Helper()
	for _, pod := range l.Pods() {
		if mtu := pod.mtu(t, device0); mtu != network.MTU() {
			t.Errorf("%s of %s takes %d octets, want %d", device0, pod.Name, mtu, network.MTU())
		}
	}
	const headers4, headers6, answer = 28, 48, 200 // the answer repeats the payload, and more
	for _, from := range l.Pods() {
		for _, to := range l.Pods() {
			for i, addr := range to.addrs() {
				full := strings.Repeat("x", network.MTU()-[]int{headers4, headers6}[i]-answer)
				for protocol, p := range map[string]uint16{"tcp": PortTCP, "udp": PortUDP} {
					got, err := from.Request(withTimeout(t, patience), protocol, port(addr, p), full)
					if err != nil || got.Pod != to.Name || got.Peer.Addr() != from.addrs()[i] || got.Payload != full {
						t.Errorf("%s to %s by %s: pod %s sees %s, %v", from.Name, to.Name, protocol, got.Pod, got.Peer, err)
					}
				}
			}
		}
	}
	from, to := l.Host("a1"), l.Host("b1")
	for i, addr := range to.addrs() {
		conn, err := from.Dial(withTimeout(t, patience), "udp", port(addr, PortUDP))
		if err != nil {
			t.Fatal(err)
		}
		// As long as the device allows; the answer is longer and arrives in fragments.
		if _, err := Ask(withTimeout(t, patience), conn, strings.Repeat("x", network.MTU()-[]int{headers4, headers6}[i])); err != nil {
			t.Errorf("a datagram of %d octets to %s: %v", network.MTU(), addr, err)
		}
		conn.Close()
	}
}

// With two NICs each client reaches the node at both, and each address answers.
func TestTwoNICs(t *testing.T) {
	for _, network := range Networks[:2] { // the others differ from the second only between nodes
		t.Run(network, func(t *testing.T) {
			l := NewOf(t, Shape{Network: Network(network), TwoNICs: true})
			node := l.Host("node-a")
			for _, addr := range append(node.addrs(), SecondAddresses()...) {
				listener, err := node.Listen("tcp", port(addr, 7777))
				if err != nil {
					t.Fatal(err)
				}
				defer listener.Close()
				for _, client := range []string{"client", "client2"} {
					conn, err := l.Host(client).Dial(withTimeout(t, patience), "tcp", port(addr, 7777))
					if err != nil {
						t.Errorf("%s to %s: %v", client, addr, err)
						continue
					}
					conn.Close()
				}
			}
			for client, device := range map[string]string{"client": device0, "client2": device1} {
				for _, addr := range l.Host(client).addrs() {
					if got := node.deviceTo(t, addr); got != device {
						t.Errorf("the node reaches %s by %s, want %s", client, got, device)
					}
				}
			}
		})
	}
}

// A lab keeps its shape.
func TestShapeIsKept(t *testing.T) {
	name := newName(t)
	want := Shape{Network: NetworkVXLAN, Pods: PodsBridge, TwoNICs: true}
	if _, err := Up(Config{Name: name, Shape: want}); err != nil {
		t.Fatal(err)
	}
	if l, err := Open(name); err != nil || l.Shape != want {
		t.Errorf("opened: %+v, %v; want shape %v", l, err, want)
	}
	if l, err := Up(Config{Name: name, Shape: want}); err != nil || !l.Reused {
		t.Errorf("the same shape once more: %v", err)
	}
	if _, err := Up(Config{Name: name}); err == nil || !contains(err, "is up with network vxlan, pods bridge and two NICs at node-a") {
		t.Errorf("another shape: %v", err)
	}
	if _, err := Up(Config{Name: name, Shape: Shape{Network: "ether"}}); err == nil || !contains(err, "use routed, vxlan, wireguard, ipip") {
		t.Errorf("an unknown network: %v", err)
	}
	for pods, want := range map[PodLayout]string{"pipe": "use routed, bridge, policy, netkit, netkit-l2", PodsPolicy: "need network routed, not vxlan"} {
		if _, err := Up(Config{Name: name, Shape: Shape{Network: NetworkVXLAN, Pods: pods}}); err == nil || !contains(err, want) {
			t.Errorf("pods %s with an overlay: %v", pods, err)
		}
	}
}

func (h *Host) mtu(t *testing.T, device string) int {
	t.Helper()
	nl, link, err := h.OpenDevice(device)
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	return link.Attrs().MTU
}

// deviceTo is the name of the device by which the host reaches an address.
func (h *Host) deviceTo(t *testing.T, to netip.Addr) (name string) {
	t.Helper()
	nl, err := h.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	routes, err := nl.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		t.Fatalf("route to %s: %v", to, err)
	}
	link, err := nl.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().Name
}
