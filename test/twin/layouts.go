// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"net/netip"

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
	slow   bool // a process carries packets of its tunnel
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

var routed = layout{
	name:   "routed",
	flags:  []string{"--pod-devices=auto"},
	points: routedPoints,
	ends:   routedEnds,
}

// uplink is the fabric's device to the node: frames from there arrive at the node's eth0.
const uplink = "uplink"

var routedPoints = map[string]point{
	"a1":     {host: "a1", device: "eth0", hop: "node-a/a1"},
	"a2":     {host: "a2", device: "eth0", hop: "node-a/a2"},
	"a3":     {host: "a3", device: "eth0", hop: "node-a/a3"},
	"b1":     {host: "b1", device: "eth0", hop: "node-b/b1"},
	"client": {host: "client", device: "eth0", hop: "fabric/client"},
	uplink:   {host: "fabric", device: "node-a", hop: "node-a/eth0"},
}

var routedEnds = []end{{"a1", "eth0"}, {"a2", "eth0"}, {"a3", "eth0"}, {"b1", "eth0"}, {"client", "eth0"}, {"fabric", "node-a"}}

// nextHop is "host/device" of the device that a frame to an address is for.
func (l *layout) nextHop(p point, at *lab.Lab, to netip.Addr) string {
	for _, pod := range at.Pods() {
		if pod.Node.Name == p.neighbours && (pod.Addr4 == to || pod.Addr6 == to) {
			return pod.Name + "/eth0"
		}
	}
	return p.hop
}
