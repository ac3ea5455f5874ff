// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/test/lab"
)

// twoNICs has backends behind an overlay over eth0, and another NIC eth1.
var twoNICs = lab.Shape{Network: lab.NetworkVXLAN, TwoNICs: true}

// nics are node-a's addresses with the NodePort, by device and family.
func (w *world) nics() map[string][]netip.AddrPort {
	all := map[string][]netip.AddrPort{"eth0": addresses(w.Host("node-a"), nodePort)}
	for _, a := range lab.SecondAddresses() {
		all["eth1"] = append(all["eth1"], netip.AddrPortFrom(a, nodePort))
	}
	return all
}

// allAddresses has the node serve NodePorts at all of its addresses.
const allAddresses = "--nodeport-addresses=0.0.0.0/0,::/0"

// R17, R19: clients behind either NIC are served at the addresses of both, by backends of this node and behind
// the overlay. A reply leaves by the device at which the request arrived, even if the best route to the client
// is by the other one. For IPv6 that takes rules by source address, since the kernel's lookup there does not
// ask for a device.
func TestTwoNICsFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorldOf(t, twoNICs, "--edge-mode="+mode, allAddresses)
		w.routeBySource()
		ear, err := w.Host("fabric").Hear("node-a", "node-a-2")
		w.must(err)
		defer ear.Close()
		for _, pod := range []string{"a1", "b1"} {
			w.apply("web", objects(w.public(pod))...)
			for _, client := range []string{"client", "client2"} {
				for device, own := range w.nics() {
					for i, to := range own {
						for _, network := range []string{"tcp", "udp"} {
							answer, err := w.askAs(client, network, to)
							want := addresses(w.Host(client), 0)[i].Addr()
							if pod == "b1" {
								want = overlayAddresses[i]
							}
							if err != nil || answer.Pod != pod || answer.Peer.Addr() != want {
								t.Errorf("%s asks %s at %s for %s: %+v, %v; want %s to see %s", client, network, to, device, answer, err, pod, want)
							}
							w.wantLeft(ear, client, to, device)
						}
					}
				}
			}
		}
		// The rules' tables have no other route to the backends, if that were looked up there.
		w.wantDevices("eth0 " + mode + " clients and backends, eth1 " + mode + " clients and backends, vxlan0 tc backends")
	})
}

// routeBySource has node-a send packets from eth0's IPv6 address by eth0, and from eth1's by eth1.
func (w *world) routeBySource() {
	w.t.Helper()
	w.must(w.agent.Host.Do(func() error {
		for i, device := range []string{"eth0", "eth1"} {
			link, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			own := w.nics()[device][1].Addr()
			gateway := own.As16()
			gateway[15] = 0xfe
			rule := netlink.NewRule()
			rule.Family, rule.Src, rule.Table = netlink.FAMILY_V6, netlink.NewIPNet(own.AsSlice()), 100+i
			if err := netlink.RuleAdd(rule); err != nil {
				return err
			}
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway[:], Table: 100 + i}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// wantLeft checks that all replies from an address left by one device.
func (w *world) wantLeft(ear *lab.Ear, client string, from netip.AddrPort, device string) {
	w.t.Helper()
	by := map[string]string{"node-a": "eth0", "node-a-2": "eth1"}
	heard, err := ear.Packets()
	w.must(err)
	n := 0
	for _, p := range heard {
		if p.From != from {
			continue
		}
		n++
		if by[p.Device] != device {
			w.t.Errorf("a reply from %s to %s left by %s", from, client, by[p.Device])
		}
	}
	if n == 0 {
		w.t.Errorf("no reply from %s to %s was captured", from, client)
	}
}

// A flow's replies follow the client's packets to another NIC, without rules for IPv4.
func TestFlowMovesToAnotherNIC(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorldOf(t, twoNICs, "--edge-mode="+mode, allAddresses)
		for _, pod := range []string{"a1", "b1"} {
			w.apply("web", objects(w.public(pod))...)
			to := w.nics()["eth0"][0]
			conn := w.open("tcp", to)
			if got := w.served(conn); got != pod {
				t.Fatalf("served by %s", got)
			}
			ear, err := w.Host("fabric").Hear("node-a", "node-a-2")
			w.must(err)
			way := w.fabricRoute(to.Addr(), "node-a-2")
			if got := w.served(conn); got != pod {
				t.Errorf("served by %s by the other NIC", got)
			}
			w.wantLeft(ear, "client", to, "eth1")
			ear.Close()
			w.must(w.Host("fabric").Do(func() error { return netlink.RouteReplace(way) }))
		}
	})
}

// fabricRoute has the fabric route an address by a device, and returns the route before.
func (w *world) fabricRoute(to netip.Addr, device string) (before *netlink.Route) {
	w.t.Helper()
	w.must(w.Host("fabric").Do(func() error {
		old, err := netlink.RouteGet(to.AsSlice())
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		dst := netlink.NewIPNet(to.AsSlice())
		before = &netlink.Route{Dst: dst, LinkIndex: old[0].LinkIndex, Scope: netlink.SCOPE_LINK}
		// The neighbour is the node: it answers for the address at both devices.
		return netlink.RouteReplace(&netlink.Route{Dst: dst, LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK})
	}))
	return before
}
