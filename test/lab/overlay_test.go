// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Pods of two nodes reach each other over VXLAN in both families, with the longest datagram that their devices
// allow, and the fabric sees only VXLAN between the nodes: no packet of a pod, no fragment, none too long for
// it.
func TestPodsReachEachOtherOverVXLAN(t *testing.T) {
	l := NewOf(t, Shape{Network: NetworkVXLAN})
	if err := l.StartServers(); err != nil {
		t.Fatal(err)
	}
	for _, pod := range l.Pods() {
		if mtu := pod.mtu(t, device0); mtu != overlayMTU {
			t.Errorf("%s of %s takes %d octets, want %d", device0, pod.Name, mtu, overlayMTU)
		}
	}
	ear, err := l.Host("fabric").Hear("node-a", "node-b")
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Close()
	const headers4, headers6, answer = 28, 48, 200 // the answer repeats the payload, and more
	for _, from := range l.Pods() {
		for _, to := range l.Pods() {
			for i, addr := range to.addrs() {
				full := strings.Repeat("x", overlayMTU-[]int{headers4, headers6}[i]-answer)
				for network, p := range map[string]uint16{"tcp": PortTCP, "udp": PortUDP} {
					got, err := from.Request(withTimeout(t, patience), network, port(addr, p), full)
					if err != nil || got.Pod != to.Name || got.Peer.Addr() != from.addrs()[i] || got.Payload != full {
						t.Errorf("%s to %s by %s: pod %s sees %s, %v", from.Name, to.Name, network, got.Pod, got.Peer, err)
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
		if _, err := Ask(withTimeout(t, patience), conn, strings.Repeat("x", overlayMTU-[]int{headers4, headers6}[i])); err != nil {
			t.Errorf("a datagram of %d octets to %s: %v", overlayMTU, addr, err)
		}
		conn.Close()
	}
	heard, err := ear.Packets()
	if err != nil {
		t.Fatal(err)
	}
	longest := 0
	for _, p := range heard {
		if p.Protocol != unix.IPPROTO_UDP || p.To.Port() != overlayPort || p.Fragment {
			t.Errorf("the fabric received %+v", p)
		}
		longest = max(longest, p.Length)
	}
	if longest != 1500 {
		t.Errorf("the longest packet that the fabric saw has %d octets, want 1500", longest)
	}
}

// With two NICs each client reaches the node at both, and each address answers.
func TestTwoNICs(t *testing.T) {
	for _, network := range Networks {
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
	if _, err := Up(Config{Name: name, Shape: Shape{Network: "ether"}}); err == nil || !contains(err, "use routed or vxlan") {
		t.Errorf("an unknown network: %v", err)
	}
	for pods, want := range map[PodLayout]string{"pipe": "use routed, bridge or policy", PodsPolicy: "need network routed, not vxlan"} {
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
