// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/report/condition"
)

func TestR22NodePortAddresses(t *testing.T) {
	const second, second6 = "198.51.100.1", "2001:db8:2::1"
	w := service("web", dualStack, nodePort(30080))
	dual := []Object{w, both, slice("web-6", []string{"c there"}, ipv6)}
	served, served6 := "all a b masq", "all c masq"
	addressesOf := func(list ...string) func(*Config) {
		return func(c *Config) { c.NodePortAddresses = prefixes(list...) }
	}
	for _, c := range []struct {
		name   string
		config func(*Config)
		want   expect
	}{
		{"default: the primary of each family", func(*Config) {},
			expect{nodeHTTP: served, "[2001:db8::1]:30080": served6, second + ":30080": "none", "[2001:db8:2::1]:30080": "none"}},
		{"a prefix of one family leaves the other at its default", addressesOf("198.51.100.0/24"),
			expect{nodeHTTP: "none", second + ":30080": served, "[2001:db8::1]:30080": served6, "[2001:db8:2::1]:30080": "none"}},
		{"all of both families", addressesOf("0.0.0.0/0", "::/0"),
			expect{nodeHTTP: served, second + ":30080": served, "[2001:db8::1]:30080": served6, "[2001:db8:2::1]:30080": served6}},
		{"the primary of each family, and a prefix", func(c *Config) { addressesOf("198.51.100.0/24")(c); c.PrimaryNodePorts = true },
			expect{nodeHTTP: served, second + ":30080": served, "[2001:db8::1]:30080": served6, "[2001:db8:2::1]:30080": "none"}},
		{"the primary of each family, and loopback", func(c *Config) { addressesOf("127.0.0.0/8", "::1/128")(c); c.PrimaryNodePorts = true },
			expect{nodeHTTP: served, second + ":30080": "none", "[2001:db8::1]:30080": served6, "[2001:db8:2::1]:30080": "none"}},
		{"loopback", addressesOf("127.0.0.0/8", "::1/128"),
			expect{nodeHTTP: "none", second + ":30080": "none", "[2001:db8::1]:30080": "none", "[2001:db8:2::1]:30080": "none"}},
		{"the primary, and a prefix that has it", func(c *Config) { addressesOf("0.0.0.0/0")(c); c.PrimaryNodePorts = true },
			expect{nodeHTTP: served, second + ":30080": served, "[2001:db8::1]:30080": served6, "[2001:db8:2::1]:30080": "none"}},
		{"a prefix that has none of the addresses", addressesOf("10.9.0.0/16"), expect{nodeHTTP: "none", second + ":30080": "none"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := testConfig()
			c.config(&config)
			table := cluster(config, append(dual, &Node{Name: "there", Addresses: addrs(thereIP)})...)
			table.SetLocalAddresses(addrs(hereIP, second, second6, "127.0.0.1", "fe80::1%eth0"))
			check(t, table, c.want)
			check(t, table, expect{
				thereIP + ":30080": "none", // that node serves it
				"[fe80::1]:30080":  "none",
				"127.0.0.1:30080":  "pod pass, node a b masq, outside pass",
				"[::1]:30080":      "pod pass, node c masq, outside pass",
			})
		})
	}
}

func TestR22LoopbackHasItsOwnSwitch(t *testing.T) {
	off := func(c *Config) { c.LocalhostNodePorts = false }
	w := service("web", nodePort(30080), eTPLocal)
	runRules(t, []rule{
		{"on", nil, []Object{w, elsewhere}, expect{"127.0.0.1:30080": "pod pass, node b masq, outside pass", "[::1]:30080": "none"}},
		{"on, nowhere", nil, []Object{w, nowhere}, expect{"127.0.0.1:30080": "pod pass, node reject, outside pass"}},
		{"off", off, []Object{w, both}, expect{"127.0.0.1:30080": "none", nodeHTTP: "pod a b, node a b masq, outside a"}},
	})
}

// R21: other ports of a ClusterIP are not rejected while the node itself has the address.
func TestR21OwnAddress(t *testing.T) {
	table := cluster(testConfig(), service("web", dualStack), both)
	for _, c := range []struct {
		own        []netip.Addr
		ip, other6 string
	}{
		{addrs(hereIP), "all reject", "all reject"},
		{addrs(hereIP, webIP), "none", "all reject"},
		{addrs(hereIP, webIP, webIP6), "none", "none"},
		{addrs(hereIP, webIP6), "all reject", "none"},
		{nil, "all reject", "all reject"},
	} {
		table.SetLocalAddresses(c.own)
		check(t, table, expect{webIP: c.ip, webIP6: c.other6, webHTTP: everywhere("a b")})
	}
	table.Apply(changes(&Node{Name: "here", Addresses: addrs(hereIP, webIP)}))
	check(t, table, expect{webIP: "none", webIP6: "all reject"})
}

func TestR22AddressChangesAreFollowed(t *testing.T) {
	table := NewCluster(testConfig())
	table.Apply(changes(service("web", nodePort(30080)), service("plain", clusterIP("10.0.0.2")), both))
	check(t, table, expect{nodeHTTP: "none", webHTTP: everywhere("a b")})
	if d := table.Apply(changes(here)); d.Resolved != 1 || len(d.Plans) != 1 {
		t.Errorf("the node was added: resolved %d, changed %d, want only the Service with a NodePort", d.Resolved, len(d.Plans))
	}
	check(t, table, expect{nodeHTTP: "all a b masq"})
	table.Apply(changes(&Node{Name: "here", Addresses: addrs("192.0.2.9", hereIP)}))
	check(t, table, expect{nodeHTTP: "none", "192.0.2.9:30080": "all a b masq"})
	table.Apply(changes(&Node{Name: "here", Addresses: addrs("127.0.0.1", hereIP)}))
	check(t, table, expect{nodeHTTP: "all a b masq", "127.0.0.1:30080": "pod pass, node a b masq, outside pass"})
}

func TestR23NodePortsIgnoreSourceRanges(t *testing.T) {
	ranged := func(s *corev1.Service) {
		loadBalancer(vip)(s)
		sources("198.51.100.0/24")(s)
		s.Spec.Ports[0].NodePort = 30080
	}
	table := cluster(testConfig(), service("web", ranged), both)
	for _, at := range []string{nodeHTTP, "127.0.0.1:30080", webHTTP} {
		if _, f := find(table, at); f.SourceRanges != nil {
			t.Errorf("%s: ranges %v", at, f.SourceRanges)
		}
	}
}

func TestR23NoNodePortWithoutANumber(t *testing.T) {
	unallocated := func(s *corev1.Service) { s.Spec.AllocateLoadBalancerNodePorts = new(false) }
	asked := func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 }
	table := cluster(testConfig(), service("web", loadBalancer(vip), unallocated), both)
	for _, f := range table.Plan(web).Frontends {
		if f.Kind == NodePort {
			t.Errorf("there is %s", f.Key)
		}
	}
	// The API: "requests for specific NodePorts will be respected, regardless".
	check(t, cluster(testConfig(), service("web", loadBalancer(vip), unallocated, asked), both), expect{nodeHTTP: "all a b masq"})
}

// R41: a ClusterIP's port that a socket of this node serves is left to it, of one protocol and family; the Service
// keeps its other addresses and ports, and gets it back.
func TestR41NodeSockets(t *testing.T) {
	table := cluster(testConfig(), service("web", dualStack, nodePort(30080)), both, slice("web-6", []string{"c there"}, ipv6), service("plain", clusterIP("10.0.0.2")))
	table.SetLocalAddresses(addrs(hereIP, webIP, webIP6))
	served := expect{webHTTP: everywhere("a b"), "[" + webIP6 + "]:80": everywhere("c"), nodeHTTP: "all a b masq"}
	check(t, table, served)
	key := func(ip string, protocol Protocol) map[FrontendKey]bool {
		return map[FrontendKey]bool{{addrs(ip)[0], 80, protocol}: true}
	}
	if d := table.SetNodeSockets(key(webIP, UDP)); len(d.Plans) > 0 {
		t.Errorf("a socket of another protocol: %v", d.Plans)
	}
	check(t, table, served)
	if d := table.SetNodeSockets(key(webIP, TCP)); d.Resolved != 1 || len(d.Plans) != 1 {
		t.Errorf("a socket: resolved %d, changed %v; want one Service", d.Resolved, d.Plans)
	}
	check(t, table, expect{webHTTP: "none", "[" + webIP6 + "]:80": everywhere("c"), nodeHTTP: "all a b masq"})
	if all := table.Plan(web).Problems; len(all) != 1 || all[0].Code != condition.ClusterIPLeftToNode.Code {
		t.Errorf("problems: %v", all)
	}
	// What is known of sockets outlives changes of the node and of the Service.
	table.SetLocalAddresses(addrs(hereIP, "192.0.2.9", webIP, webIP6))
	table.Apply(changes(service("web", dualStack, nodePort(30081))))
	check(t, table, expect{webHTTP: "none", "192.0.2.1:30081": "all a b masq"})
	table.SetNodeSockets(nil)
	check(t, table, expect{webHTTP: everywhere("a b"), "192.0.2.1:30081": "all a b masq"})
	if all := table.Plan(web).Problems; len(all) != 0 {
		t.Errorf("problems: %v", all)
	}

	// Of a Service without any other address the note stays.
	table.SetLocalAddresses(addrs(hereIP, "10.0.0.2"))
	table.SetNodeSockets(key("10.0.0.2", TCP))
	check(t, table, expect{"10.0.0.2:80": "none"})
	if p := table.Plan(Ref{KindService, "default", "plain"}); p == nil || len(p.Frontends) != 0 || len(p.Problems) != 1 {
		t.Errorf("plan: %+v", p)
	}
}
