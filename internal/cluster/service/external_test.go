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
	table := NewCluster(testConfig())
	table.Apply(changes(service("web", loadBalancer(vip), sources("192.0.2.0/24")), both))
	ranges := func() int { _, f := find(table, vipHTTP); return len(f.SourceRanges) }
	if n := ranges(); n != 1 {
		t.Errorf("%d ranges without the node", n)
	}
	if table.Apply(changes(here)); ranges() != 2 {
		t.Errorf("%d ranges that admit the node", ranges())
	}
	if d := table.Apply(changes(&Node{Name: "here", Zone: "east", Addresses: addrs(hereIP, hereIP6, "192.0.2.200")})); d.Resolved != 0 {
		t.Errorf("an address that is not the primary one: resolved %d", d.Resolved)
	}
}

// R25: the node reaches its own address from that address.
func TestR25TheNodesOwnAddresses(t *testing.T) {
	table := cluster(testConfig(), service("web", loadBalancer(vip), sources("198.51.100.0/24")), both)
	own := func() bool { _, f := find(table, vipHTTP); return f.OwnAddress }
	if own() {
		t.Error("a foreign address counts as this node's own")
	}
	if d := table.SetLocalAddresses(addrs("192.0.2.200")); d.Resolved != 0 {
		t.Errorf("another address: resolved %d", d.Resolved)
	}
	if table.SetLocalAddresses(addrs(vip)); !own() {
		t.Error("the address was added to this node, and does not count as its own")
	}
	if table.SetLocalAddresses(nil); own() {
		t.Error("the address was removed, and counts as this node's own")
	}
}

func TestR26ExternalIPs(t *testing.T) {
	refuse := func(c *Config) { c.RefuseForeignExternalIPs = true }
	w := service("web", externalIPs(vip, thereIP, hereIP), loadBalancer("203.0.113.2"))
	there := &Node{Name: "there", Addresses: addrs(thereIP)}
	const at, atThere, atHere, atLB = vipHTTP, thereIP + ":80", hereIP + ":80", "203.0.113.2:80"
	served, ignored := "all a b masq", "pod pass, node pass, outside a b masq"
	server := slice("kubernetes", []string{vip}, of("kubernetes"))
	runRules(t, []rule{
		{"as Kubernetes has them", nil, []Object{w, both, there, server}, expect{at: served, atThere: served, atHere: served, atLB: served}},
		{"ignored inside, and for all at addresses of nodes", refuse, []Object{w, both, there},
			expect{at: ignored, atThere: "none", atHere: "none", atLB: served}},
		{"ignored without endpoints", refuse, []Object{w, nowhere}, expect{at: "pod pass, node pass, outside reject"}},
		{"and for all at the API server's", refuse, []Object{w, both, there, server}, expect{at: "none", atLB: served}},
		{"an ingress IP is trusted", refuse, []Object{service("web", externalIPs(vip), loadBalancer(vip)), both, server}, expect{at: served}},
		{"so is the Service's own ClusterIP", refuse, []Object{service("web", externalIPs(webIP)), both}, expect{webHTTP: served}},
		{"a NodePort remains at the node's address", refuse, []Object{service("web", nodePort(30080), externalIPs(hereIP), ports(
			corev1.ServicePort{Name: "http", Port: 30080, NodePort: 30080})), both}, expect{nodeHTTP: served}},
		{"slices of others name no API server", refuse, []Object{w, both, slice("kubernetes", []string{vip}, of("mine"))}, expect{at: ignored}},
	})
}

// R26: changes of the protected addresses take effect, and only the Services that have them are resolved again.
func TestR26GuardedAddressesAreFollowed(t *testing.T) {
	config := testConfig()
	config.RefuseForeignExternalIPs = true
	ignored := "pod pass, node pass, outside a b masq"
	there := &Node{Name: "there", Addresses: addrs(thereIP)}
	table := cluster(config, service("web", externalIPs(vip, thereIP)), both, service("plain", clusterIP("10.0.0.2"), externalIPs("203.0.113.77")))
	const at, atThere = vipHTTP, thereIP + ":80"
	check(t, table, expect{at: ignored, atThere: ignored})
	for _, step := range []struct {
		name          string
		do            func() Delta
		resolved      int
		at, atThere   string
		complaintsAre int
	}{
		{"a Node is added", func() Delta { return table.Apply(changes(there)) }, 1, ignored, "none", 1},
		{"it changes nothing that matters", func() Delta {
			return table.Apply(changes(&Node{Name: "there", Zone: "west", Addresses: addrs("192.0.2.77", thereIP)}))
		}, 0, ignored, "none", 1},
		{"it is removed", func() Delta { return table.Apply([]Change{gone(there)}) }, 1, ignored, ignored, 0},
		{"an address is added to this node's interfaces", func() Delta { return table.SetLocalAddresses(addrs(vip)) }, 1, ignored, ignored, 0},
		{"the API server says where it is", func() Delta {
			return table.Apply(changes(slice("kubernetes", []string{vip}, of("kubernetes"))))
		}, 1, "none", ignored, 1},
		{"it moves", func() Delta {
			return table.Apply(changes(slice("kubernetes", []string{thereIP}, of("kubernetes"))))
		}, 1, ignored, "none", 1},
		{"the agent reaches it at another address", func() Delta {
			table.SetServer(addrs(vip))
			return table.Apply(nil)
		}, 1, "none", "none", 2},
		{"it is the same one", func() Delta {
			table.SetServer(addrs(vip))
			return table.Apply(nil)
		}, 0, "none", "none", 2},
		{"both are removed", func() Delta {
			table.SetServer(nil)
			return table.Apply([]Change{gone(slice("kubernetes", nil))})
		}, 1, ignored, ignored, 0},
	} {
		if d := step.do(); d.Resolved != step.resolved {
			t.Errorf("%s: resolved %d, want %d", step.name, d.Resolved, step.resolved)
		}
		check(t, table, expect{at: step.at, atThere: step.atThere})
		if p := problems(table, "web"); len(p) != step.complaintsAre {
			t.Errorf("%s: problems %q, want %d", step.name, p, step.complaintsAre)
		}
		checkSound(t, table)
		if t.Failed() {
			return
		}
	}
}
