// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestR24LoadBalancerIngress(t *testing.T) {
	proxy, vipMode := corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP
	ingress := func(list ...corev1.LoadBalancerIngress) serviceOption {
		return func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = list
		}
	}
	runRules(t, []rule{
		{"no mode", nil, []Object{service("web", ingress(corev1.LoadBalancerIngress{IP: vip})), both}, expect{vipHTTP: "all a b masq"}},
		{"VIP", nil, []Object{service("web", ingress(corev1.LoadBalancerIngress{IP: vip, IPMode: &vipMode})), both}, expect{vipHTTP: "all a b masq"}},
		{"Proxy", nil, []Object{service("web", ingress(corev1.LoadBalancerIngress{IP: vip, IPMode: &proxy})), both}, expect{vipHTTP: "none"}},
		{"a host name beside", nil, []Object{service("web", ingress(corev1.LoadBalancerIngress{Hostname: "lb.example"}, corev1.LoadBalancerIngress{IP: vip})), both},
			expect{vipHTTP: "all a b masq"}},
	})
}

func TestR25SourceRanges(t *testing.T) {
	lb := func(ranges ...string) *Service {
		return service("web", dualStack, loadBalancer(vip, "203.0.113.2", vip6), sources(ranges...))
	}
	const at, at6 = vipHTTP, "[2001:db8:1::1]:80"
	for _, c := range []struct {
		name   string
		ranges []string
		at     string
		want   []string
	}{
		{"none", nil, at, nil},
		{"sorted, canonical, once each", []string{"198.51.100.7/24", " 10.0.0.0/8 ", "010.0.0.0/8"}, at, []string{"10.0.0.0/8", "198.51.100.0/24"}},
		{"only those of the family", []string{"198.51.100.0/24", "2001:db8:5::/48"}, at6, []string{"2001:db8:5::/48"}},
		{"those of the other family alone restrict nothing", []string{"198.51.100.0/24"}, at6, nil},
		{"all addresses of the family", []string{"198.51.100.0/24", "0.0.0.0/0", "2001:db8:5::/48"}, at, nil},
		{"half of all addresses is not all", []string{"0.0.0.0/1"}, at, []string{"0.0.0.0/1"}},
		{"nor is half of those of IPv6", []string{"8000::/1"}, at6, []string{"8000::/1"}},
		{"all addresses of the other family", []string{"198.51.100.0/24", "::/0"}, at, []string{"198.51.100.0/24"}},
		{"with the node, its VIPs", []string{"192.0.2.0/24"}, at, []string{"192.0.2.0/24", vip + "/32", "203.0.113.2/32"}},
		{"with the node's IPv6 address, its IPv6 VIP", []string{"2001:db8::/64"}, at6, []string{"2001:db8::/64", vip6 + "/128"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, f := find(cluster(testConfig(), lb(c.ranges...), both), c.at)
			if want := prefixes(c.want...); !slices.Equal(f.SourceRanges, want) || (f.SourceRanges == nil) != (want == nil) {
				t.Errorf("%v, want %v", f.SourceRanges, want)
			}
		})
	}
	// An external IP has none, and the decisions are those of R17.
	table := cluster(testConfig(), service("web", loadBalancer(vip), sources("198.51.100.0/24"), externalIPs("203.0.113.9")), both)
	if _, f := find(table, "203.0.113.9:80"); f.SourceRanges != nil {
		t.Errorf("external IP: %v", f.SourceRanges)
	}
	check(t, table, expect{vipHTTP: "all a b masq"})
}

func TestR25TheNodesAddressIsFollowed(t *testing.T) {
	table := NewTable(testConfig())
	table.Apply(changes(service("web", loadBalancer(vip), sources("192.0.2.0/24")), both))
	ranges := func() int { _, f := find(table, vipHTTP); return len(f.SourceRanges) }
	if n := ranges(); n != 1 {
		t.Errorf("%d ranges without a node", n)
	}
	if table.Apply(changes(here)); ranges() != 2 {
		t.Errorf("%d ranges with a node inside", ranges())
	}
	if d := table.Apply(changes(&Node{Name: "here", Zone: "east", Addresses: addrs(hereIP, hereIP6, "192.0.2.200")})); d.Resolved != 0 {
		t.Errorf("an address that is not the primary one: resolved %d", d.Resolved)
	}
}

// R25: the node asks an address of its own from that address.
func TestR25TheNodesOwnAddresses(t *testing.T) {
	table := cluster(testConfig(), service("web", loadBalancer(vip), sources("198.51.100.0/24")), both)
	own := func() bool { _, f := find(table, vipHTTP); return f.OwnAddress }
	if own() {
		t.Error("an address that is no node's is said to be this one's")
	}
	if d := table.SetLocalAddresses(addrs("192.0.2.200")); d.Resolved != 0 {
		t.Errorf("another address: resolved %d", d.Resolved)
	}
	if table.SetLocalAddresses(addrs(vip)); !own() {
		t.Error("the address came to this node, and is not said to be its own")
	}
	if table.SetLocalAddresses(nil); own() {
		t.Error("the address left, and is said to be this node's own")
	}
}

func TestR26ExternalIPs(t *testing.T) {
	refuse := func(c *Config) { c.RefuseForeignExternalIPs = true }
	w := service("web", externalIPs(vip, thereIP, hereIP), loadBalancer("203.0.113.2"))
	there := &Node{Name: "there", Addresses: addrs(thereIP)}
	const at, atThere, atHere, atLB = vipHTTP, thereIP + ":80", hereIP + ":80", "203.0.113.2:80"
	served, refused := "all a b masq", "pod reject, node reject, outside a b masq"
	runRules(t, []rule{
		{"as Kubernetes has them", nil, []Object{w, both, there}, expect{at: served, atThere: served, atHere: served, atLB: served}},
		{"those that are no node's refused from inside", refuse, []Object{w, both, there},
			expect{at: refused, atThere: served, atHere: served, atLB: served}},
		{"an ingress IP is trusted", refuse, []Object{service("web", externalIPs(vip), loadBalancer(vip)), both}, expect{at: served}},
	})

	config := testConfig()
	refuse(&config)
	table := cluster(config, w, both, service("plain", clusterIP("10.0.0.2"), externalIPs("203.0.113.77")))
	check(t, table, expect{atThere: refused})
	if d := table.Apply(changes(there)); d.Resolved != 1 {
		t.Errorf("node there came: resolved %d, want 1", d.Resolved)
	}
	check(t, table, expect{atThere: served})
	if d := table.Apply(changes(&Node{Name: "there", Zone: "west", Addresses: addrs("192.0.2.77", thereIP)})); d.Resolved != 0 {
		t.Errorf("node there changed nothing that matters: resolved %d", d.Resolved)
	}
	table.Apply([]Change{gone(there)})
	check(t, table, expect{atThere: refused})
	table.SetLocalAddresses(addrs(vip))
	check(t, table, expect{at: served})
}
