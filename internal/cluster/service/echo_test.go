// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const answered = "pod answer, node pass, outside answer"

// Pings of load balancer and external IPs are answered while the Service serves clients outside the cluster
// there; the address's other ports are not affected.
func TestEchoes(t *testing.T) {
	second := ports(corev1.ServicePort{Name: "http", Port: 80}, corev1.ServicePort{Name: "none", Port: 81})
	lb := loadBalancer(vip)
	runRules(t, []rule{
		{"a load balancer's address", nil, []Object{service("web", lb), both}, expect{vip + "/ICMP": answered, vip: "none", webIP + "/ICMP": "none"}},
		{"an external IP, in both families", nil, []Object{service("web", dualStack, externalIPs(vip, vip6)), both, slice("web-6", []string{"a here"}, ipv6)},
			expect{vip + "/ICMP": answered, vip6 + "/ICMPv6": answered, vip6 + "/ICMP": "none", webIP6 + "/ICMPv6": "none"}},
		{"one family without endpoints", nil, []Object{service("web", dualStack, externalIPs(vip, vip6)), both},
			expect{vip + "/ICMP": answered, vip6 + "/ICMPv6": "none"}},
		{"no endpoints", nil, []Object{service("web", lb)}, expect{vip + "/ICMP": "none"}},
		{"one port of two has endpoints", nil, []Object{service("web", lb, second), both}, expect{vip + "/ICMP": answered}},
		{"Local policy, and one here", nil, []Object{service("web", lb, eTPLocal), both}, expect{vip + "/ICMP": answered}},
		{"Local policy, and none here", nil, []Object{service("web", lb, eTPLocal), elsewhere}, expect{vip + "/ICMP": "none"}},
		{"NodePorts alone", nil, []Object{service("web", nodePort(30080)), both}, expect{hereIP + "/ICMP": "none"}},
		{"an external IP that pods do not meet (R26)", func(c *Config) { c.RefuseForeignExternalIPs = true }, []Object{service("web", externalIPs(vip)), both},
			expect{vipHTTP: "pod pass, node pass, outside a b masq", vip + "/ICMP": "none"}},
		{"a node's address: its stack answers", nil, []Object{service("web", externalIPs(hereIP)), both}, expect{hereIP + ":80": "all a b masq", hereIP + "/ICMP": "none"}},
	})
}

// Either of two Services with one address may answer, without a problem, and the other one takes over when the
// first no longer serves.
func TestEchoOfSharedAddress(t *testing.T) {
	second := service("second", created(2), clusterIP("10.0.0.2"), loadBalancer(vip), ports(corev1.ServicePort{Name: "http", Port: 81}), sources("198.51.100.0/24"))
	its := slice("second-1", []string{"c there"}, of("second"))
	table := cluster(testConfig(), service("web", created(1), loadBalancer(vip)), both, second, its)
	for _, ref := range []Ref{web, second.Ref()} {
		if p := problemTexts(table.Plan(ref).Problems); len(p) > 0 {
			t.Errorf("%s: %q", ref, p)
		}
	}
	check(t, table, expect{vip + "/ICMP": answered})
	if _, f := find(table, vip+"/ICMP"); f.SourceRanges != nil {
		t.Errorf("the second Service has the echo of the first: %+v", f)
	}
	table.Apply([]Change{gone(both)})
	check(t, table, expect{vip + "/ICMP": answered})
	if _, f := find(table, vip+"/ICMP"); f.Port.Owner != second.Ref() || !slices.Equal(f.SourceRanges, prefixes("198.51.100.0/24")) {
		t.Errorf("%+v", f)
	}
	table.Apply([]Change{gone(its)})
	check(t, table, expect{vip + "/ICMP": "none"})
}

// An address that becomes this node's, or another one's, is left to that node's stack.
func TestEchoFollowsNodeAddresses(t *testing.T) {
	table := cluster(testConfig(), service("web", loadBalancer(vip)), both)
	check(t, table, expect{vip + "/ICMP": answered})
	table.SetLocalAddresses([]netip.Addr{netip.MustParseAddr(hereIP), netip.MustParseAddr(vip)})
	check(t, table, expect{vip + "/ICMP": "none"})
	table.SetLocalAddresses(nil)
	check(t, table, expect{vip + "/ICMP": answered})
	there := &Node{Name: "there", Addresses: addrs(vip)}
	table.Apply(changes(there))
	check(t, table, expect{vip + "/ICMP": "none"})
	table.Apply([]Change{gone(there)})
	check(t, table, expect{vip + "/ICMP": answered})
}
