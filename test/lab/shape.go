// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// A Network says how pods reach pods of other nodes.
type Network string

const (
	// NetworkRouted has the fabric route to each node's pods.
	NetworkRouted Network = "routed"
	// NetworkVXLAN hides pods from the fabric: nodes send to each other's pods by a VXLAN device (RFC
	// 7348), as flannel sets it up. Fixed entries say where each pod is; nothing is learned or multicast.
	NetworkVXLAN Network = "vxlan"
	// NetworkWireGuard is the same with a WireGuard device, as flannel's backend of that name sets it up. If the
	// kernel has no WireGuard it is a tun device with WireGuard in a process.
	NetworkWireGuard Network = "wireguard"
	// NetworkIPIP sends IPv4 by an IPIP device (RFC 2003) without a remote end of its own, which the routes
	// give, as Calico sets it up. It carries no IPv6, which is routed.
	NetworkIPIP Network = "ipip"
)

// Networks are all values, for a flag.
var Networks = []string{string(NetworkRouted), string(NetworkVXLAN), string(NetworkWireGuard), string(NetworkIPIP)}

// Shape is the variable part of a lab.
type Shape struct {
	// Network is NetworkRouted if empty.
	Network Network `json:"network"`
	// Pods is PodsRouted if empty.
	Pods PodLayout `json:"pods,omitempty"`
	// TwoNICs gives node-a a second device, eth1, and adds client2, which the node reaches by that one. The
	// client can reach the node at both devices; the node's best route to it is by the first.
	TwoNICs bool `json:"twoNICs,omitempty"`
	// ThreeNodes adds node-c with three pods.
	ThreeNodes bool `json:"threeNodes,omitempty"`
	// Bare leaves out all links, addresses and routes: who makes the lab connects the hosts.
	Bare bool `json:"bare,omitempty"`
}

// largest has every host of any shape: a lab whose shape is unknown is removed as this one.
var largest = Shape{Network: NetworkVXLAN, TwoNICs: true, ThreeNodes: true}

func (s Shape) String() string {
	if s.Bare {
		return "no links"
	}
	nics := "one NIC each"
	if s.TwoNICs {
		nics = "two NICs at node-a"
	}
	if s.ThreeNodes {
		nics += " and three nodes"
	}
	return fmt.Sprintf("network %s, pods %s and %s", s.Network, s.Pods, nics)
}

func (s *Shape) complete() error {
	switch s.Network {
	case "":
		s.Network = NetworkRouted
	default:
		if !slices.Contains(Networks, string(s.Network)) {
			return fmt.Errorf("unknown network %q: use %s", s.Network, strings.Join(Networks, ", "))
		}
	}
	return s.completePods()
}

// OverlayDevice is a node's device of NetworkVXLAN.
const OverlayDevice = "vxlan0"

// The overlay as in flannel: one network, and the port that Linux used before VXLAN had one of its own. Over
// IPv4 a packet is 50 octets longer.
const (
	overlayID   = 1
	overlayPort = 8472
	overlayMTU  = 1500 - 50
)

// overlays are the nodes' devices of each network, with the longest packet that they carry.
var overlays = map[Network]struct {
	device string
	mtu    int
}{
	NetworkVXLAN:     {OverlayDevice, overlayMTU},
	NetworkWireGuard: {"wg0", 1500 - 80},
	NetworkIPIP:      {"ipip0", 1500 - 20},
}

// Device is a node's device that leads to pods of other nodes; "" if there is none of its own. MTU is the longest
// packet that it carries, in octets.
func (n Network) Device() string { return overlays[n].device }
func (n Network) MTU() int       { return overlays[n].mtu }

// overlayPlan is a node's overlay device. It has the first address of the node's pod range.
type overlayPlan struct {
	network Network
	node    string     // its name
	local   netip.Addr // its address: the source of outer packets
	mac     net.HardwareAddr
	peers   []overlayPeer
}

// overlayPeer is another node: its address, and the addresses of its device.
type overlayPeer struct {
	name         string
	node         netip.Addr
	addr4, addr6 netip.Addr
	pods         []netip.Prefix
	mac          net.HardwareAddr
}

// addOverlay connects the nodes' pods by the network's devices.
func (p *topologyPlan) addOverlay(s Shape) {
	for i, e := range s.edges() {
		if e.podRange4 == "" {
			continue
		}
		node := p.host(e.name)
		node.overlay = &overlayPlan{network: s.Network, node: e.name, local: node.addr4, mac: overlayMAC(i)}
		for _, pods := range []string{e.podRange4, e.podRange6} {
			if s.Network.carries(netip.MustParsePrefix(pods)) {
				node.addresses = append(node.addresses, addressPlan{s.Network.Device(), single(netip.MustParsePrefix(pods).Addr())})
			}
		}
		for j, other := range s.edges() {
			if i != j && other.podRange4 != "" {
				node.addPeer(j, other)
			}
		}
	}
}

// addPeer has a node reach the pods of another one, whose number is i.
func (h *hostPlan) addPeer(i int, other edgePlan) {
	range4, range6 := netip.MustParsePrefix(other.podRange4), netip.MustParsePrefix(other.podRange6)
	peer := overlayPeer{
		name: other.name, node: netip.MustParseAddr(other.addr4), addr4: range4.Addr(), addr6: range6.Addr(),
		pods: []netip.Prefix{range4, range6}, mac: overlayMAC(i),
	}
	h.overlay.peers = append(h.overlay.peers, peer)
	for _, r := range peer.pods {
		if h.overlay.network.carries(r) {
			h.routes = append(h.routes, h.overlay.route(r, peer))
		}
	}
}

// carries reports whether packets to a range take the overlay.
func (n Network) carries(r netip.Prefix) bool {
	return n.Device() != "" && (n != NetworkIPIP || r.Addr().Is4())
}

// route is the route to pods of another node. WireGuard finds the node by the destination, IPIP by the gateway.
func (o *overlayPlan) route(to netip.Prefix, peer overlayPeer) routePlan {
	route := routePlan{to: to, device: o.network.Device()}
	switch o.network {
	case NetworkVXLAN:
		route.via, route.onLink = to.Addr(), true
	case NetworkIPIP:
		route.via, route.onLink = peer.node, true
	}
	return route
}

func overlayMAC(node int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0x10, byte(node + 1)} }

// device1 is node-a's second device, and fabricDevice1 the fabric's end of it.
const (
	device1       = "eth1"
	fabricDevice1 = "node-a-2"
)

// node3 is the third node.
var node3 = edgePlan{
	name: "node-c", short: "c",
	addr4: "192.168.100.3", gateway4: "192.168.100.254", podRange4: "10.10.3.0/24", pod4: "10.10.3.1",
	addr6: "fd00:100::3", gateway6: "fd00:100::fe", podRange6: "fd00:10:3::/64", pod6: "fd00:10:3::1",
}

// client2 is a client that node-a reaches by its second device.
var client2 = edgePlan{
	name:  "client2",
	addr4: "192.168.201.1", gateway4: "192.168.201.254",
	addr6: "fd00:201::1", gateway6: "fd00:201::fe",
}

// Addresses of node-a's second device.
var (
	secondAddresses = []netip.Addr{netip.MustParseAddr("192.168.101.1"), netip.MustParseAddr("fd00:101::1")}
	secondGateways  = []netip.Addr{netip.MustParseAddr("192.168.101.254"), netip.MustParseAddr("fd00:101::fe")}
)

// SecondAddresses are the addresses of node-a's second device, one of each family.
func SecondAddresses() []netip.Addr { return append([]netip.Addr(nil), secondAddresses...) }

// secondMetric is worse than the metric of the route by the first device: 0 for IPv4, 1024 for IPv6.
const secondMetric = 2000

// addSecondNIC connects node-a to the fabric once more.
func (p *topologyPlan) addSecondNIC(fabric *hostPlan) {
	node := p.host(nodes[0].name)
	p.links = append(p.links, linkPlan{host: fabric.name, device: fabricDevice1, peerHost: node.name, peerDevice: device1})
	for i, own := range secondAddresses {
		gateway, client := secondGateways[i], netip.MustParseAddr([]string{client2.addr4, client2.addr6}[i])
		node.addresses = append(node.addresses, addressPlan{device1, single(own)})
		node.routes = append(node.routes,
			routePlan{to: single(gateway), device: device1},
			routePlan{to: single(client), device: device1, via: gateway},
			routePlan{to: anywhere(gateway), device: device1, via: gateway, metric: secondMetric})
		fabric.addresses = append(fabric.addresses, addressPlan{fabricDevice1, single(gateway)})
		fabric.routes = append(fabric.routes, routePlan{to: single(own), device: fabricDevice1})
	}
}
