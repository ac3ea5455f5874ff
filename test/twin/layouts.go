// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
)

// nodeA is the host whose shortcut is compared: the same host has no agent in the other lab.
const nodeA = "node-a"

// A layout is a kind of lab, and the flags of its shortcut.
type layout struct {
	name   string
	shape  lab.Shape
	flags  []string
	points map[string]point
	ends   []end
	pairs  []pair
	took   func(*api.Status) uint64 // how many packets the shortcut has had
	forged []string                 // sources that frames from the fabric must not have
	slow   bool                     // a process carries packets of its tunnel

	learns  int                             // so many packets of a flow, after which the shortcut may have it; 0: its first
	changes []string                        // the names of those that it can have; nil: all
	skips   []string                        // names of kinds of frames that say nothing here
	rules   func(*side) string              // of nftables
	server  uint16                          // port of servers whose clients' ports the node translates
	objects func(*lab.Lab) []runtime.Object // Services and their endpoints
	xdp     bool                            // native XDP serves the node's uplink
	fabric  []string                        // commands for a shell of the fabric, as of change.do
	stack   []string                        // the same, for the node without a shortcut
}

// A point is a device of a host by which frames are sent, and the device that they are for.
type point struct {
	host, device string
	hop          string // "host/device" of the next hop
	neighbours   string // a pod of this node is its own next hop, as behind a bridge
}

// An end is a device of a host at which what arrives is compared.
type end struct{ host, device string }

func (e end) String() string { return e.host + "/" + e.device }

// layouts are all kinds.
var layouts = []*layout{
	{name: "routed", flags: auto, points: veths, pairs: between, took: podsTook, ends: plainEnds, forged: forged},
	{name: "bridge", shape: lab.Shape{Pods: lab.PodsBridge}, flags: auto, points: ports, pairs: between, took: podsTook, ends: plainEnds, forged: forged},
	{name: "vxlan", shape: lab.Shape{Network: lab.NetworkVXLAN}, flags: auto, points: veths, pairs: between, took: podsTook, ends: tunnelEnds("vxlan0"), forged: forged},
	{name: "bridge and vxlan", shape: lab.Shape{Pods: lab.PodsBridge, Network: lab.NetworkVXLAN}, flags: auto, points: ports, pairs: between, took: podsTook, ends: tunnelEnds("vxlan0"), forged: forged},
	{name: "wireguard", shape: lab.Shape{Network: lab.NetworkWireGuard}, flags: auto, points: veths, pairs: between, took: podsTook, ends: tunnelEnds("wg0"), forged: forged, slow: true},
	{name: "ipip", shape: lab.Shape{Network: lab.NetworkIPIP}, flags: auto, points: veths, pairs: between, took: podsTook, ends: tunnelEnds("ipip0"), forged: forged},
	{name: "two NICs", shape: lab.Shape{TwoNICs: true}, flags: auto, points: twoNICs, pairs: between, took: podsTook, ends: twoEnds, forged: forged},
	{
		name: "tables of pods", shape: lab.Shape{Pods: lab.PodsPolicy, TwoNICs: true}, points: twoNICs, pairs: between, took: podsTook, ends: twoEnds,
		flags:  []string{"--pod-devices=auto", "--pod-networks=192.168.100.0/24,fd00:100::/64"},
		forged: []string{"192.168.100.12", "fd00:100::a:12", "192.168.100.14", "fd00:100::a:14"},
	},
	{name: "netkit", shape: lab.Shape{Pods: lab.PodsNetkitL2}, flags: auto, points: veths, pairs: between, took: podsTook, ends: plainEnds, forged: forged},
	&offload,
	&balancer,
	&balancerXDP,
	&addresses,
	&masqueraded,
}

// lacks is why this kernel cannot have a layout; empty: it can.
func (l *layout) lacks() string {
	if err := lab.Supports(l.shape.Network); err != nil {
		return fmt.Sprintf("this kernel has no devices of network %s: %v", l.shape.Network, err)
	}
	if l.shape.Pods == lab.PodsNetkitL2 {
		return lab.NetkitMissing()
	}
	return ""
}

var auto = []string{"--pod-devices=auto"}

// forged are a pod of the node and an unused address of its pod network, in both families, and addresses of the node's
// own there, of its bridge and its tunnels.
var forged = []string{
	"10.10.1.12", "fd00:10:1::12", "10.10.1.99", "fd00:10:1::99",
	"10.10.1.0", "fd00:10:1::", "10.10.1.1", "fd00:10:1::1", "10.10.2.11", "fd00:10:2::11",
}

// uplink is the fabric's device to the node: frames from there arrive at the node's eth0. Those of uplink2 arrive at
// eth1.
const (
	uplink  = "uplink"
	uplink2 = "uplink2"
)

var outside = map[string]point{
	"client": {host: "client", device: "eth0", hop: "fabric/client"},
	uplink:   {host: "fabric", device: "node-a", hop: "node-a/eth0"},
}

// veths are the points of a lab whose pods are routed.
var veths = with(outside, map[string]point{
	"a1": {host: "a1", device: "eth0", hop: "node-a/a1"},
	"a2": {host: "a2", device: "eth0", hop: "node-a/a2"},
	"b1": {host: "b1", device: "eth0", hop: "node-b/b1"},
})

// ports are those of a lab whose pods are at bridges.
var ports = with(outside, map[string]point{
	"a1": {host: "a1", device: "eth0", hop: "node-a/cni0", neighbours: "node-a"},
	"a2": {host: "a2", device: "eth0", hop: "node-a/cni0", neighbours: "node-a"},
	"b1": {host: "b1", device: "eth0", hop: "node-b/cni0", neighbours: "node-b"},
})

var twoNICs = with(veths, map[string]point{
	uplink2:   {host: "fabric", device: "node-a-2", hop: "node-a/eth1"},
	"client2": {host: "client2", device: "eth0", hop: "fabric/client2"},
})

func with(some, more map[string]point) map[string]point {
	all := maps.Clone(some)
	maps.Copy(all, more)
	return all
}

var plainEnds = []end{{"a1", "eth0"}, {"a2", "eth0"}, {"a3", "eth0"}, {"b1", "eth0"}, {"client", "eth0"}, {"fabric", "node-a"}}

var twoEnds = append(slices.Clone(plainEnds), end{"fabric", "node-a-2"}, end{"client2", "eth0"})

// tunnelEnds has what comes out of the tunnel at the other node.
func tunnelEnds(device string) []end {
	return append(slices.Clone(plainEnds), end{"node-b", device})
}

// nextHop is "host/device" of the device that a frame to an address is for.
func (l *layout) nextHop(p point, at *lab.Lab, to netip.Addr) string {
	for _, pod := range at.Pods() {
		if pod.Node.Name == p.neighbours && (pod.Addr4 == to || pod.Addr6 == to) {
			return pod.Name + "/eth0"
		}
	}
	return p.hop
}

// podsTook, offloaded and balanced are how many packets have taken the shortcut.
func podsTook(s *api.Status) (packets uint64) {
	for path, n := range s.Pods.Packets {
		if strings.HasPrefix(path, "path_") {
			packets += n
		}
	}
	return packets
}

func offloaded(s *api.Status) uint64 { return s.Offload.Packets["cache"] }

func balanced(s *api.Status) uint64 {
	return s.Edge.Counters["new"] + s.Edge.Counters["established"] + s.Edge.Counters["reply"]
}
