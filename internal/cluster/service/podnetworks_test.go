// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"testing"
)

// TestLearnedPods: if Nodes have no podCIDRs, addresses of Pods identify pods (R18), except those of the host
// network, of finished Pods or of nodes. The Cluster counts the other Nodes whose pods are not identified.
func TestLearnedPods(t *testing.T) {
	own, other := &Node{Name: "here", Addresses: addrs(hereIP)}, &Node{Name: "there", Addresses: addrs(thereIP)}
	withCIDR := &Node{Name: "here", Addresses: addrs(hereIP), PodCIDRs: prefixes("10.1.0.0/24")}
	pod := func(name, ip string, change func(*Pod)) *Pod {
		p := &Pod{Namespace: "default", Name: name, Node: "here", IPs: addrs(ip)}
		if change != nil {
			change(p)
		}
		return p
	}
	a, b := pod("a", "10.1.0.1", nil), pod("b", "10.2.0.2", nil)
	for _, test := range []struct {
		name         string
		objects      []Object
		config       func(*Config)
		want         string
		unclassified int
	}{
		{"no podCIDRs", []Object{own, other, a, b}, nil, "[10.1.0.1/32 10.2.0.2/32]", 1},
		{"one node", []Object{own, a}, nil, "[10.1.0.1/32]", 0},
		{"podCIDRs of some", []Object{withCIDR, other, a, b}, nil, "[10.1.0.0/24 10.2.0.2/32]", 0},
		{"networks are named", []Object{own, other, a}, func(c *Config) { c.PodNetworks = prefixes("10.1.0.0/16") }, "[10.1.0.0/16]", 0},
		{"manifests without Pods", []Object{own, other}, func(c *Config) { c.Manifests = true }, "[]", 0},
		{"no real pods", []Object{own, other,
			pod("host", "10.1.0.3", func(p *Pod) { p.HostNetwork = true }),
			pod("finished", "10.1.0.4", func(p *Pod) { p.Finished = true }),
			pod("node", thereIP, nil)}, nil, "[]", 1},
	} {
		config := testConfig()
		if test.config != nil {
			test.config(&config)
		}
		table := NewCluster(config)
		table.Apply(changes(test.objects...))
		if got := fmt.Sprint(table.PodNetworks()); got != test.want || table.UnclassifiedPods() != test.unclassified {
			t.Errorf("%s: networks %s, want %s; pods of %d Nodes unclassified, want %d", test.name, got, test.want, table.UnclassifiedPods(), test.unclassified)
		}
	}
	table := NewCluster(testConfig())
	table.Apply(changes(own, a))
	if d := table.Apply([]Change{gone(a)}); d.PodNetworks == nil || len(*d.PodNetworks) != 0 {
		t.Errorf("a pod was removed: %v", d.PodNetworks)
	}
	if d := table.Apply(changes(a)); d.PodNetworks == nil || len(*d.PodNetworks) != 1 {
		t.Errorf("a pod was added: %v", d.PodNetworks)
	}
	if d := table.Apply(changes(withCIDR)); d.PodNetworks == nil || fmt.Sprint(*d.PodNetworks) != "[10.1.0.0/24]" {
		t.Errorf("a podCIDR was added: %v", d.PodNetworks)
	}
	if d := table.Apply([]Change{gone(a)}); d.PodNetworks != nil {
		t.Errorf("a pod inside the podCIDR was removed: %v", *d.PodNetworks)
	}
}
