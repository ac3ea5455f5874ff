// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// Addresses of Services in node-a's pod range: an overlay leads other nodes' pods to them.
var l3VIPs = []netip.AddrPort{netip.MustParseAddrPort("10.10.1.200:80"), netip.MustParseAddrPort("[fd00:10:1::200]:80")}

// inL3Overlays runs a test in the overlays whose devices have no MAC addresses. Clients are behind the devices, too.
func inL3Overlays(t *testing.T, f func(w *world, overlay lab.Network)) {
	for _, overlay := range []lab.Network{lab.NetworkWireGuard, lab.NetworkIPIP} {
		t.Run(string(overlay), func(t *testing.T) {
			if err := lab.Supports(overlay); err != nil {
				t.Skipf("this kernel has no devices of network %s: %v", overlay, err)
			}
			f(borrowWorldOf(t, lab.Shape{Network: overlay}, nil, "--edge-mode=tc", "--devices=eth0,"+overlay.Device()), overlay)
		})
	}
}

// families are those that an overlay carries.
func families(overlay lab.Network) []int {
	if overlay == lab.NetworkIPIP {
		return []int{0}
	}
	return []int{0, 1}
}

// applyAtVIPs applies w.public with the addresses of l3VIPs.
func (w *world) applyAtVIPs(pods ...string) {
	w.t.Helper()
	s, slices := w.public(pods...)
	for _, vip := range l3VIPs {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, vip.Addr().String())
	}
	w.apply("web", objects(s, slices)...)
}

// R17, R19: packets of clients outside go from an Ethernet header to none: to backends behind WireGuard, and behind
// IPIP, whose outer destination is in each packet's route. Replies, ICMP errors, the path MTU, merged segments and
// fragments are as behind other devices.
func TestL3OverlayFromOutside(t *testing.T) {
	inL3Overlays(t, func(w *world, overlay lab.Network) {
		w.apply("web", objects(w.public("a1", "b1"))...)
		for _, i := range families(overlay) {
			to := addresses(w.Host("node-a"), nodePort)[i]
			for _, network := range []string{"tcp", "udp"} {
				for _, answer := range w.wantServed(network, to, "a1", "b1") {
					want := addresses(w.Host("client"), 0)[i].Addr()
					if answer.Pod == "b1" {
						want = overlayAddresses[i]
					}
					if answer.Peer.Addr() != want {
						w.t.Errorf("%s to %s: %s sees %s, want %s", network, to, answer.Pod, answer.Peer.Addr(), want)
					}
				}
			}
		}
		atEth0 := "clients"
		if len(families(overlay)) == 1 { // backends of the other family
			atEth0 = "clients and backends"
		}
		w.wantDevices("eth0 tc " + atEth0 + ", " + overlay.Device() + " tc clients and backends")
		w.apply("web", objects(w.public("b1"))...)
		for _, i := range families(overlay) {
			w.wantPathMTU("client", addresses(w.Host("node-a"), nodePort)[i], i, overlay.MTU(), "b1")
		}
		w.must(w.forgetPathMTUs())
		w.setMTU("b1", "eth0", fabricMTU)
		w.setMTU("node-b", "b1", fabricMTU)
		for _, i := range families(overlay) {
			to := addresses(w.Host("node-a"), nodePort)[i]
			if err := transfer(w.open("tcp", to), "b1", 5<<20); err != nil {
				w.t.Errorf("to %s: %v", to, err)
			}
		}
		w.wantCounted("drop_too_big")
		w.must(w.Host("b1").StopServer())
		for _, i := range families(overlay) {
			to := addresses(w.Host("node-a"), nodePort)[i]
			w.wantRefused("udp", to)
			w.wantRefused("tcp", to)
		}
		w.wantCounted("icmp")
		w.must(w.forgetPathMTUs())
		w.echoes("b1")
		w.wantEchoed("client", netip.AddrPortFrom(w.Host("node-a").Addr4, nodePort), fragmentable...)
		w.wantCounted("fragmented")
	})
}

// The same for clients behind the overlay, whose packets have no Ethernet header as they arrive: the backend is on
// this node, behind the same device, or outside, behind Ethernet. Their packets are rejected, and their pings answered.
func TestL3OverlayToClients(t *testing.T) {
	inL3Overlays(t, func(w *world, overlay lab.Network) {
		outside := w.Host("client")
		w.must(outside.StartServer(lab.ServerOptions{}))
		w.t.Cleanup(func() { w.must(outside.StopServer()) })
		w.applyAtVIPs("a1", "b2", "client")
		for _, i := range families(overlay) {
			for _, network := range []string{"tcp", "udp"} {
				w.wantServedAs("b1", network, l3VIPs[i], "a1", "b2", "client")
			}
			w.pinger("b1", i).wantEcho(l3VIPs[i].Addr(), true)
		}
		for _, pod := range []string{"a1", "b2", "client"} {
			w.applyAtVIPs(pod)
			for _, i := range families(overlay) {
				if err := transfer(w.openAs("b1", "tcp", l3VIPs[i]), pod, 5<<20); err != nil {
					w.t.Errorf("to %s, %s: %v", l3VIPs[i], pod, err)
				}
			}
		}
		w.narrow("node-a", netip.PrefixFrom(outside.Addr4, 32), fabric, 1300)
		w.wantPathMTU("b1", l3VIPs[0], 0, 1300, "client")
		w.wantCounted("drop_too_big", "echo", "established", "reply")
		w.applyAtVIPs()
		for _, i := range families(overlay) {
			w.wantRefusedAs("b1", "tcp", l3VIPs[i])
			w.wantRefusedAs("b1", "udp", l3VIPs[i])
		}
		w.wantCounted("rejected")
		w.applyAtVIPs("a1")
		w.must(w.forgetPathMTUs())
		w.echoes("a1")
		w.wantEchoed("b1", l3VIPs[0], fragmentable...)
	})
}

// R16: so are those of a pod of this node that has opted out of the socket shortcut.
func TestL3OverlayFromOptedOutPod(t *testing.T) {
	inL3Overlays(t, func(w *world, overlay lab.Network) {
		w.optOut("a1")
		w.apply("web", objects(w.public("b1"))...)
		for _, i := range families(overlay) {
			to := netip.AddrPortFrom(netip.MustParseAddr(node.ClusterIPs(1)[i]), 80)
			for _, network := range []string{"tcp", "udp"} {
				for _, answer := range w.wantServedAs("a1", network, to, "b1") {
					if answer.Peer.Addr() != addresses(w.Host("a1"), 0)[i].Addr() {
						w.t.Errorf("%s to %s: b1 sees %s, want the pod's address", network, to, answer.Peer.Addr())
					}
				}
			}
			if err := transfer(w.openAs("a1", "tcp", to), "b1", 5<<20); err != nil {
				w.t.Errorf("to %s: %v", to, err)
			}
		}
	})
}
