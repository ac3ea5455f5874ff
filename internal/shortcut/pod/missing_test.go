// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net/netip"
	"slices"
	"testing"

	"beeline.io/beeline/internal/node/netdev"
)

// A name or pattern of --pod-devices without a device of a pod is an error, and pods in none of the pod networks are a
// warning. A pattern on a node without pods is none.
func TestMissing(t *testing.T) {
	eth0 := netdev.Device{Index: 1, Name: "eth0", Kind: "device", Up: true, Ethernet: true}
	cali := netdev.Device{Index: 2, Name: "cali1", Kind: "veth", Up: true, Ethernet: true, PeerElsewhere: true}
	pod := route{to: netip.MustParsePrefix("10.10.1.11/32"), device: 2, direct: true}
	for _, c := range []struct {
		name     string
		links    []netdev.Device
		wanted   wish
		networks string
		want     []string
	}{
		{"all", []netdev.Device{eth0, cali}, nil, "10.10.0.0/16", nil},
		{"a pattern", []netdev.Device{eth0, cali}, wish{"cali*"}, "10.10.0.0/16", nil},
		{"the uplink", []netdev.Device{eth0, cali}, wish{"eth0"}, "10.10.0.0/16", []string{"--pod-devices eth0: eth0 is not the node's end of a pod's device, or is down"}},
		{"a typing error", []netdev.Device{eth0, cali}, wish{"cali2"}, "10.10.0.0/16", []string{`--pod-devices cali2: no such device, did you mean "cali1"?`}},
		{"on", []netdev.Device{eth0, cali}, wish{"on"}, "10.10.0.0/16", []string{"--pod-devices on: no such device; auto stands for all of pods"}},
		{"a pattern for other names", []netdev.Device{eth0, cali}, wish{"veth*"}, "10.10.0.0/16", []string{"--pod-devices veth*: no device of a pod matches"}},
		{"a pattern on a node without pods", []netdev.Device{eth0}, wish{"veth*"}, "10.10.0.0/16", nil},
		{"one of two", []netdev.Device{eth0, cali}, wish{"cali1", "lxc*"}, "10.10.0.0/16", []string{"--pod-devices lxc*: no device of a pod matches"}},
		{"other networks", []netdev.Device{eth0, cali}, nil, "10.20.0.0/16", []string{"no pod of this node is in the pod networks ([10.20.0.0/16]), but devices of pods lead to 10.10.1.11 (cali1)"}},
		{"no networks", []netdev.Device{eth0, cali}, nil, "", []string{"no pod of this node is in the pod networks (none is known), but devices of pods lead to 10.10.1.11 (cali1)"}},
		{"other networks on a node without pods", []netdev.Device{eth0}, nil, "10.20.0.0/16", nil},
	} {
		n := &network{devices: c.links, routes: []route{pod}}
		n.prepare()
		var networks []netip.Prefix
		if c.networks != "" {
			networks = append(networks, netip.MustParsePrefix(c.networks))
		}
		s := newSurroundings(n, networks, n.find(networks, c.wanted))
		var got []string
		for _, p := range s.missing(c.wanted) {
			got = append(got, p.Message)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
