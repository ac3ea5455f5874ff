// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net/netip"
	"slices"
	"testing"
)

// A name or pattern of --pod-devices without a device of a pod is an error, and pods in none of the pod networks are a
// warning. A pattern on a node without pods is none.
func TestMissing(t *testing.T) {
	eth0 := link{index: 1, name: "eth0", kind: "device", up: true, ethernet: true}
	cali := link{index: 2, name: "cali1", kind: "veth", up: true, ethernet: true, otherPeer: true}
	pod := route{to: netip.MustParsePrefix("10.10.1.11/32"), device: 2, direct: true}
	for _, c := range []struct {
		name     string
		links    []link
		wanted   wish
		networks string
		want     []string
	}{
		{"all", []link{eth0, cali}, nil, "10.10.0.0/16", nil},
		{"a pattern", []link{eth0, cali}, wish{"cali*"}, "10.10.0.0/16", nil},
		{"the uplink", []link{eth0, cali}, wish{"eth0"}, "10.10.0.0/16", []string{"--pod-devices eth0: eth0 is not the node's end of a pod's device, or is down"}},
		{"a typing error", []link{eth0, cali}, wish{"cali2"}, "10.10.0.0/16", []string{`--pod-devices cali2: no such device, did you mean "cali1"?`}},
		{"on", []link{eth0, cali}, wish{"on"}, "10.10.0.0/16", []string{"--pod-devices on: no such device; auto stands for all of pods"}},
		{"a pattern for other names", []link{eth0, cali}, wish{"veth*"}, "10.10.0.0/16", []string{"--pod-devices veth*: no device of a pod matches"}},
		{"a pattern on a node without pods", []link{eth0}, wish{"veth*"}, "10.10.0.0/16", nil},
		{"one of two", []link{eth0, cali}, wish{"cali1", "lxc*"}, "10.10.0.0/16", []string{"--pod-devices lxc*: no device of a pod matches"}},
		{"other networks", []link{eth0, cali}, nil, "10.20.0.0/16", []string{"no pod of this node is in the pod networks ([10.20.0.0/16]), but devices of pods lead to 10.10.1.11 (cali1)"}},
		{"no networks", []link{eth0, cali}, nil, "", []string{"no pod of this node is in the pod networks (none is known), but devices of pods lead to 10.10.1.11 (cali1)"}},
		{"other networks on a node without pods", []link{eth0}, nil, "10.20.0.0/16", nil},
	} {
		n := &network{links: c.links, routes: []route{pod}}
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
