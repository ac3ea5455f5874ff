// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// A pod is behind the device of the longest route to it, or behind the port of a bridge at which its MAC address was
// seen. Not a pod: the node itself, an address that does not answer, and what is behind a device by which the node
// reaches everything else.
func TestFind(t *testing.T) {
	mac := func(n byte) [6]byte { return [6]byte{2, 0, 0, 0, 0, n} }
	pod := func(index, master int) netdev.Device {
		return netdev.Device{Index: index, Kind: "veth", Up: true, PeerElsewhere: true, Master: master}
	}
	to := func(network string, device int, direct bool) route {
		return route{to: netip.MustParsePrefix(network), device: device, direct: direct}
	}
	at := func(device int, addr string, mac [6]byte) node.Neighbour {
		return node.Neighbour{Device: device, Address: netip.MustParseAddr(addr), MAC: mac}
	}
	const bridge, port, routed, uplink, ethernet = 1, 2, 3, 4, 9
	gone := at(bridge, "10.10.2.8", mac(7))
	gone.Gone = true
	n := &network{
		devices: []netdev.Device{{Index: bridge, Kind: "bridge", Up: true}, pod(port, bridge), pod(routed, 0), pod(uplink, 0), {Index: ethernet, Up: true}},
		routes: []route{
			to("10.10.1.3/32", routed, true), to("10.10.1.4/32", uplink, true), to("0.0.0.0/0", uplink, false),
			to("10.10.2.0/24", bridge, true), to("10.10.0.0/16", ethernet, true), to("10.20.0.1/32", routed, true),
		},
		neighbours: []node.Neighbour{at(routed, "10.10.1.3", mac(3)), at(bridge, "10.10.2.7", mac(7)), at(bridge, "10.10.2.1", mac(7)), at(bridge, "10.10.2.9", mac(9)), gone},
		ports:      map[node.BridgeMAC]int{{Bridge: bridge, MAC: mac(7)}: port},
		own:        map[netip.Addr]bool{netip.MustParseAddr("10.10.2.1"): true},
	}
	n.prepare()
	want := map[netip.Addr]place{
		netip.MustParseAddr("10.10.1.3"): {routed, mac(3), false},
		netip.MustParseAddr("10.10.2.7"): {port, mac(7), true},
	}
	got := n.find([]netip.Prefix{netip.MustParsePrefix("10.10.0.0/16")}, nil)
	for a, p := range want {
		if got[a] != p {
			var routes []string
			for _, r := range n.routes {
				routes = append(routes, fmt.Sprintf("%s by device %d", r.to, r.device))
			}
			t.Errorf("the pod %s is found %s, want %s; routes: %s", a, got[a], p, strings.Join(routes, ", "))
		}
	}
	for a, p := range got {
		if _, ok := want[a]; !ok {
			t.Errorf("%s is found %s, and is no pod: the node itself, one that does not answer, or behind a device for everything else", a, p)
		}
	}
}

// String is a place in the words of a failed test.
func (p place) String() string {
	if p == (place{}) {
		return "nowhere"
	}
	by := "by a route"
	if p.learned {
		by = "by its bridge"
	}
	return fmt.Sprintf("behind device %d, MAC %s, %s", p.device, net.HardwareAddr(p.mac[:]), by)
}

// The MTU to a pod is the smaller of its device's and of a route's to it.
func TestMTUToPods(t *testing.T) {
	n := &network{routeMTUs: node.DestinationMTUs{netip.MustParsePrefix("10.10.1.0/24"): 1400, netip.MustParsePrefix("10.10.2.0/24"): 9000}}
	for addr, want := range map[string]uint16{"10.10.1.3": 1400, "10.10.2.3": 1500, "10.10.3.3": 1500} {
		if got := n.mtuTo(netip.MustParseAddr(addr), netdev.Device{MTU: 1500}); got != want {
			t.Errorf("the MTU to %s behind a device of MTU 1500 is %d, want %d; MTUs of routes: %v", addr, got, want, n.routeMTUs)
		}
	}
	if got := n.mtuTo(netip.MustParseAddr("10.10.3.3"), netdev.Device{MTU: 1 << 17}); got != 0xffff {
		t.Errorf("the MTU of a device without a limit is %d, want 65535", got)
	}
}
