// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/google/go-cmp/cmp"
)

const (
	vip, vip6 = "203.0.113.1", "2001:db8:1::1"
	vipHTTP   = vip + ":80"
	nodeHTTP  = hereIP + ":30080"
)

// nowhere, elsewhere and both are where a Service's endpoints are.
var (
	nowhere   = endpoints("a here notserving", "b there notserving")
	elsewhere = endpoints("a here notserving", "b there")
	both      = endpoints("a here", "b there")
)

func TestR16ClusterIPFollowsInternalTrafficPolicy(t *testing.T) {
	local := service("web", iTPLocal, nodePort(30080))
	runRules(t, []rule{
		{"Cluster", nil, []Object{service("web"), both}, expect{webHTTP: everywhere("a b")}},
		{"Cluster, only elsewhere", nil, []Object{service("web"), elsewhere}, expect{webHTTP: everywhere("b")}},
		{"Cluster, nowhere", nil, []Object{service("web"), nowhere}, expect{webHTTP: "all reject"}},
		{"Cluster, no slice at all", nil, []Object{service("web")}, expect{webHTTP: "all reject"}},
		{"Local", nil, []Object{local, both}, expect{webHTTP: everywhere("a")}},
		{"Local, only elsewhere", nil, []Object{local, elsewhere}, expect{webHTTP: "all drop"}},
		{"Local, only elsewhere and terminating", nil, []Object{local, endpoints("b there terminating")}, expect{webHTTP: "all drop"}},
		{"Local, nowhere", nil, []Object{local, nowhere}, expect{webHTTP: "all reject"}},
		{"eTP does not matter", nil, []Object{service("web", nodePort(30080), eTPLocal), elsewhere}, expect{webHTTP: everywhere("b")}},
	})
}

func TestR17ExternalAddressesFollowExternalTrafficPolicy(t *testing.T) {
	external := func(s *corev1.Service) {
		loadBalancer(vip)(s)
		externalIPs("203.0.113.2")(s)
		s.Spec.Ports[0].NodePort = 30080
	}
	at := func(verdict string) expect {
		return expect{nodeHTTP: verdict, vipHTTP: verdict, "203.0.113.2:80": verdict}
	}
	runRules(t, []rule{
		{"iTP Local does not matter", nil, []Object{service("web", external, iTPLocal), elsewhere}, at("all b masq")},
		{"eTP Local", nil, []Object{service("web", external, eTPLocal), both}, at("pod a b, node a b masq, outside a")},
		{"nowhere", nil, []Object{service("web", external), nowhere}, at("all reject")},
	})
}

func TestR18ExternalTrafficPolicyLocal(t *testing.T) {
	local := service("web", nodePort(30080), eTPLocal)
	runRules(t, []rule{
		{"only outside clients are kept on this node", nil, []Object{local, both}, expect{nodeHTTP: "pod a b, node a b masq, outside a"}},
		{"only elsewhere", nil, []Object{local, elsewhere}, expect{nodeHTTP: "pod b, node b masq, outside drop"}},
		{"nowhere", nil, []Object{local, nowhere}, expect{nodeHTTP: "all reject"}},
		{"the last one here terminates", nil, []Object{local, endpoints("a here terminating", "b there")},
			expect{nodeHTTP: "pod b, node b masq, outside a"}},
	})
}

func TestR19Masquerade(t *testing.T) {
	all := func(c *Config) { c.MasqueradeAll = true }
	runRules(t, []rule{
		{"ClusterIP: all but pods", nil, []Object{service("web"), both}, expect{webHTTP: "pod a b, node a b masq, outside a b masq"}},
		{"ClusterIP, masqueradeAll", all, []Object{service("web"), both}, expect{webHTTP: "all a b masq"}},
		{"eTP Cluster: all", nil, []Object{service("web", nodePort(30080)), both}, expect{nodeHTTP: "all a b masq"}},
		{"eTP Local: the node itself", nil, []Object{service("web", nodePort(30080), eTPLocal), both},
			expect{nodeHTTP: "pod a b, node a b masq, outside a"}},
		{"masqueradeAll is for ClusterIPs", all, []Object{service("web", nodePort(30080), eTPLocal), both},
			expect{nodeHTTP: "pod a b, node a b masq, outside a"}},
	})
	config := testConfig()
	for _, masquerade := range []bool{false, true} {
		config.MasqueradeAll = masquerade
		table := cluster(config, service("web", nodePort(30080), eTPLocal), both)
		for key, want := range map[string]bool{webHTTP: masquerade, nodeHTTP: false} {
			if _, f := find(table, key); f.ByPacket != want {
				t.Errorf("masqueradeAll %v: frontend %v is left to packets: %v", masquerade, key, f.ByPacket)
			}
		}
	}
}

func TestR20ClusterIPFromOutside(t *testing.T) {
	refuse := func(c *Config) { c.RefuseOutsideClusterIP = true }
	w := service("web", nodePort(30080))
	runRules(t, []rule{
		{"is served", nil, []Object{w, both}, expect{webHTTP: everywhere("a b")}},
		{"unless refused", refuse, []Object{w, both}, expect{webHTTP: "pod a b, node a b masq, outside reject", nodeHTTP: "all a b masq"}},
		{"refused with Local policy and none here", refuse, []Object{service("web", iTPLocal), elsewhere},
			expect{webHTTP: "pod drop, node drop, outside reject"}},
	})
}

func TestR21OtherPortsOfAClusterIP(t *testing.T) {
	runRules(t, []rule{
		{"are rejected", nil, []Object{service("web", dualStack), both}, expect{webIP: "all reject", webIP6: "all reject"}},
		{"also without endpoints", nil, []Object{service("web")}, expect{webIP: "all reject"}},
		{"are nobody's at other addresses", nil, []Object{service("web", nodePort(30080), externalIPs(vip)), both},
			expect{vip: "none", hereIP: "none"}},
	})
	_, f := find(cluster(testConfig(), service("web")), webIP)
	if f.Kind != ClusterIPOtherPorts || f.Key.Port != 0 || f.Key.Protocol != 0 || f.Port.Owner != web {
		t.Errorf("%+v", f)
	}
}

func TestR21ServiceCIDRs(t *testing.T) {
	table := cluster(testConfig())
	list := func(d Delta) []string {
		if d.ServiceCIDRs == nil {
			return nil
		}
		out := []string{}
		for _, p := range *d.ServiceCIDRs {
			out = append(out, p.String())
		}
		return out
	}
	steps := []struct {
		change Change
		want   []string
	}{
		{changes(serviceCIDR("kubernetes", "10.0.0.7/16", "fd00::/108"))[0], []string{"10.0.0.0/16", "fd00::/108"}},
		{changes(serviceCIDR("kubernetes", "fd00::/108", "10.0.0.0/16"))[0], nil},
		{changes(serviceCIDR("more", "10.0.0.0/16", "172.16.0.0/20"))[0], []string{"10.0.0.0/16", "172.16.0.0/20", "fd00::/108"}},
		{gone(serviceCIDR("kubernetes")), []string{"10.0.0.0/16", "172.16.0.0/20"}},
		{changes(service("web"))[0], nil},
		{gone(serviceCIDR("more")), []string{}},
	}
	for i, s := range steps {
		if diff := cmp.Diff(s.want, list(table.Apply([]Change{s.change}))); diff != "" {
			t.Errorf("step %d: %s", i, diff)
		}
	}
}

func TestR27Affinity(t *testing.T) {
	timeout := func(seconds int32) serviceOption {
		return func(s *corev1.Service) {
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}
	}
	// Every address of a service port has its timeout and the same port.
	table := cluster(testConfig(), service("web", nodePort(30080), loadBalancer(vip), externalIPs("203.0.113.2"), clientIP, timeout(60)), both)
	for _, at := range []string{webHTTP, nodeHTTP, vipHTTP, "203.0.113.2:80"} {
		_, f := find(table, at)
		if want := (Port{web, "http", TCP}); f.Affinity != time.Minute || f.Port != want {
			t.Errorf("%s: %s by %s", at, f.Affinity, f.Port)
		}
	}
	// The default timeout; and affinity can be switched on and off.
	for _, c := range []struct {
		s    *Service
		want time.Duration
	}{{service("web", clientIP), 3 * time.Hour}, {service("web"), 0}, {service("web", timeout(60)), 0}, {service("web", clientIP), 3 * time.Hour}} {
		table.Apply(changes(c.s))
		if _, f := find(table, webHTTP); f.Affinity != c.want {
			t.Errorf("%s, want %s", f.Affinity, c.want)
		}
	}
}

func TestR28ProtocolsOnOnePortAreIndependent(t *testing.T) {
	dns := ports(
		corev1.ServicePort{Name: "tcp", Port: 53, Protocol: "TCP", NodePort: 30053},
		corev1.ServicePort{Name: "udp", Port: 53, Protocol: "UDP", NodePort: 30053},
		corev1.ServicePort{Name: "sctp", Port: 53, Protocol: "SCTP"},
	)
	named := func(name string, p corev1.Protocol) sliceOption {
		return func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name, s.Ports[0].Protocol = &name, &p }
	}
	check(t, cluster(testConfig(), service("web", dns),
		slice("t", []string{"a"}, named("tcp", "TCP")), slice("u", []string{"b"}, named("udp", "UDP"))), expect{
		"10.0.0.1:53":         everywhere("a"),
		"10.0.0.1:53/UDP":     everywhere("b"),
		"10.0.0.1:53/SCTP":    "all reject",
		"192.0.2.1:30053":     "all a masq",
		"192.0.2.1:30053/UDP": "all b masq",
	})
}

func TestR29WhatIsKept(t *testing.T) {
	keeps := func(config Config, objects ...Object) string {
		var all []Backend
		for _, s := range cluster(config, objects...).Plan(web).Retained {
			all = append(all, s.Backends...)
		}
		return names(all)
	}
	kept := func(objects ...Object) string { return keeps(testConfig(), objects...) }
	lines := func(l ...string) []string { return l }
	w := service("web", protocol("UDP"))
	for _, c := range []struct {
		name, got, want string
	}{
		{"all in the set", kept(w, slice("s", lines("a", "b"), udp)), ""},
		{"terminating, but serving", kept(w, slice("s", lines("a", "b terminating"), udp)), "b"},
		{"not serving any more", kept(w, slice("s", lines("a", "b terminating notserving", "c notserving"), udp)), ""},
		{"in another zone", kept(w, slice("s", lines("a zone=east", "b zone=west"), udp)), "b"},
		{"on another node", kept(service("web", protocol("UDP"), iTPLocal), slice("s", lines("a here", "b there"), udp)), "b"},
		{"on another node only", kept(service("web", protocol("UDP"), iTPLocal), slice("s", lines("b there"), udp)), "b"},
		{"weight 0", kept(w, slice("s", lines("a"), udp), slice("r", lines("b"), udp, weight("0"))), "b"},
		{"none left", kept(w), ""},
		{"reached from pods by either address", kept(service("web", protocol("UDP"), nodePort(30080), eTPLocal), slice("s", lines("a here", "b there"), udp)), ""},
		{"not by the ClusterIP, but by the NodePort", kept(service("web", protocol("UDP"), nodePort(30080), iTPLocal), slice("s", lines("a here", "b there"), udp)), "b"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q is kept, want %q", c.name, c.got, c.want)
		}
	}
}

// R30: TCP connections always stay. Which backends serve matters only with a drain timeout.
func TestR30TCPKeepsNothing(t *testing.T) {
	objects := []Object{service("web"), endpoints("a", "b terminating", "c notserving")}
	if p := cluster(testConfig(), objects...).Plan(web); len(p.Retained) != 0 {
		t.Errorf("%+v", p.Retained)
	}
	config := testConfig()
	config.KeepTCP = true
	if p := cluster(config, objects...).Plan(web); len(p.Retained) != 1 || names(p.Retained[0].Backends) != "b" {
		t.Errorf("with a drain timeout: %+v", p.Retained)
	}
	// Connections without a conntrack entry find their endpoint here, ready or not.
	config = testConfig()
	config.DSR, config.Algorithm, config.TableSize = DSRIPIP, Maglev, 251
	if p := cluster(config, objects...).Plan(web); len(p.Retained) != 1 || names(p.Retained[0].Backends) != "b c" {
		t.Errorf("with untracked connections: %+v", p.Retained)
	}
	// Other balancers choose among the endpoints of this node by DSR, ready or not.
	config = testConfig()
	config.DSR = DSRIPIP
	objects = []Object{service("web"), endpoints("a here", "b here notready", "c there notready"), slice("web-2", []string{"d here", "e there"}, weight("0"))}
	if p := cluster(config, objects...).Plan(web); len(p.Retained) != 1 || names(p.Retained[0].Backends) != "b d" {
		t.Errorf("with DSR: %+v", p.Retained)
	}
}

func TestR31HostNetworkEndpointsAreOrdinary(t *testing.T) {
	check(t, cluster(testConfig(), service("web"), endpoints(hereIP+" here", thereIP+" there")),
		expect{webHTTP: everywhere("192.0.2.1:8080 192.0.2.2:8080")})
}

func TestR32FieldsThatAreNotRead(t *testing.T) {
	unread := func(s *corev1.Service) {
		s.Spec.Ports[0].AppProtocol = new("kubernetes.io/h2c")
		s.Spec.LoadBalancerClass = new("example.com/lb")
		s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameNode)
	}
	slice := endpoints("a here", "b there")
	with := cluster(testConfig(), service("web", loadBalancer(vip), unread), slice).Plan(web)
	without := cluster(testConfig(), service("web", loadBalancer(vip)), slice).Plan(web)
	if !equalPlans(with, without) {
		t.Errorf("plans differ: %+v, %+v", with, without)
	}
}

// R34: which Services have a healthCheckNodePort, at which addresses, and that it follows the node's.
func TestR34HealthPorts(t *testing.T) {
	for _, c := range []struct {
		name    string
		service *Service
		want    int
	}{
		{"a load balancer with eTP Local", service("web", dualStack, loadBalancer(vip), eTPLocal, healthPort), 2},
		{"one that has none", service("web", loadBalancer(vip), eTPLocal), 0},
		{"with eTP Cluster it means nothing", service("web", loadBalancer(vip), healthPort), 0},
		{"nor without a load balancer", service("web", nodePort(30080), eTPLocal, healthPort), 0},
		{"one family", service("web", loadBalancer(vip), eTPLocal, healthPort), 1},
	} {
		table := cluster(testConfig(), c.service, both)
		if ports := table.Plan(web).HealthPorts; len(ports) != c.want {
			t.Errorf("%s: %v", c.name, ports)
		}
	}
	table := cluster(testConfig(), service("web", loadBalancer(vip), eTPLocal, healthPort), both)
	moved := &Node{Name: "here", Addresses: addrs("192.0.2.9")}
	if d := table.Apply(changes(moved)); len(d.Plans[web].HealthPorts) != 1 || d.Plans[web].HealthPorts[0].Addr.String() != "192.0.2.9:32000" {
		t.Errorf("after the node's address changed: %v", d.Plans[web])
	}
	all := testConfig()
	all.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	ports := cluster(all, service("web", dualStack, loadBalancer(vip), eTPLocal, healthPort), both).Plan(web).HealthPorts
	if len(ports) != 2 || ports[0].Addr.String() != "0.0.0.0:32000" || ports[1].Addr.Addr().IsUnspecified() {
		t.Errorf("with all IPv4 addresses selected: %v", ports)
	}
}

// R35: which states of the Node keep load balancers away.
func TestR35Ineligible(t *testing.T) {
	manifests := testConfig()
	manifests.Manifests = true
	none := Change{Ref: here.Ref()}
	for _, c := range []struct {
		name   string
		config Config
		nodes  []Change
		want   string
	}{
		{"a Node", testConfig(), changes(here), ""},
		{"none", testConfig(), nil, "no Node"},
		{"none in manifests", manifests, nil, ""},
		{"being deleted", testConfig(), changes(&Node{Name: "here", Deleting: true}), "being deleted"},
		{"tainted", manifests, changes(&Node{Name: "here", ToBeDeleted: true}), TaintToBeDeleted},
		{"another is tainted", testConfig(), changes(here, &Node{Name: "there", ToBeDeleted: true}), ""},
		{"R39: deleted after the taint", testConfig(), append(changes(&Node{Name: "here", ToBeDeleted: true}), none), TaintToBeDeleted},
		{"R39: deleted without it", testConfig(), append(changes(here), none), ""},
		{"the taint is gone", testConfig(), append(changes(&Node{Name: "here", ToBeDeleted: true}), changes(here)...), ""},
	} {
		table := NewCluster(c.config)
		for _, change := range c.nodes {
			table.Apply([]Change{change})
		}
		if got := table.Ineligible(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A delta names the Services that lost their last endpoint, and not those that never had one or are gone.
func TestLostEndpoints(t *testing.T) {
	table := cluster(testConfig(), service("web"), endpoints("a here"))
	for _, step := range []struct {
		name    string
		changes []Change
		want    int
	}{
		{"it still serves while it terminates", changes(endpoints("a terminating")), 0},
		{"not ready", changes(endpoints("a notready")), 1},
		{"again", changes(endpoints("a notready", "b notready")), 0},
		{"ready", changes(endpoints("a here")), 0},
		{"the Service is gone", []Change{gone(service("web"))}, 0},
	} {
		if lost := table.Apply(step.changes).Lost; len(lost) != step.want {
			t.Errorf("%s: lost %v, want %d", step.name, lost, step.want)
		}
	}
}

func TestAPortNamedTwice(t *testing.T) {
	twice := ports(corev1.ServicePort{Name: "http", Port: 80}, corev1.ServicePort{Name: "http", Port: 81})
	table := cluster(testConfig(), service("web", twice), both)
	check(t, table, expect{webHTTP: everywhere("a b"), "10.0.0.1:81": "none"})
	if p := problemTexts(table.Plan(web).Problems); len(p) != 1 {
		t.Errorf("problems: %q", p)
	}
}

func TestAnAddressAskedForTwiceByOneService(t *testing.T) {
	table := cluster(testConfig(), service("web", loadBalancer(vip), externalIPs(vip, webIP)), both)
	if p := problemTexts(table.Plan(web).Problems); len(p) != 0 {
		t.Errorf("the same port at the same address is a problem: %q", p)
	}
	if _, f := find(table, vipHTTP); f.Kind != LoadBalancer {
		t.Errorf("%s is a %s", vipHTTP, f.Kind)
	}
	check(t, table, expect{webHTTP: "all a b masq"})

	same := ports(corev1.ServicePort{Name: "http", Port: 80, NodePort: 30080}, corev1.ServicePort{Name: "admin", Port: 81, NodePort: 30080})
	table = cluster(testConfig(), service("web", same), both)
	check(t, table, expect{nodeHTTP: "all a b masq"})
	if p := problemTexts(table.Plan(web).Problems); len(p) != 2 {
		t.Errorf("problems, one an address: %q", p)
	}

	// The external IP decides, but for bind() it remains the NodePort's address (R38).
	fields := ports(corev1.ServicePort{Name: "http", Port: 30080}, corev1.ServicePort{Name: "admin", Port: 81, NodePort: 30080})
	table = cluster(testConfig(), service("web", fields, externalIPs(hereIP)), both)
	if _, f := find(table, nodeHTTP); f.Kind != NodePort || f.Port.Name != "http" {
		t.Errorf("%s is the %s of %s", nodeHTTP, f.Kind, f.Port)
	}

	// A port without any address leaves no set.
	shadowed := ports(corev1.ServicePort{Name: "http", Port: 80}, corev1.ServicePort{Name: "admin", Port: 80})
	admin := slice("s", []string{"c"}, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = new("admin") })
	table = cluster(testConfig(), service("web", shadowed), both, admin)
	check(t, table, expect{webHTTP: everywhere("a b")})
	checkSound(t, table)
}

// R11: an endpoint without a node name is local to no traffic policy, but the packet path identifies it by the
// addresses of this node and its pods.
func TestR11EndpointWithoutNode(t *testing.T) {
	self := &Node{Name: "here", Addresses: []netip.Addr{netip.MustParseAddr("192.168.100.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.10.1.0/24")}}
	facts := newNodeFacts(&Config{NodeName: "here"}, map[string]*Node{"here": self}, nil, nil)
	var all []candidate
	for _, addr := range []string{"10.10.1.7:80", "10.10.2.7:80", "192.168.100.1:80", "192.168.100.2:80"} {
		all = append(all, candidate{addr: netip.MustParseAddrPort(addr), endpoint: &Endpoint{Ready: true}, weight: 1})
	}
	sets := selectEndpoints(all, &facts)
	if len(sets.local) > 0 {
		t.Errorf("the local set has %v", sets.local)
	}
	for i, b := range sets.cluster {
		if want := i%2 == 0; b.Local != want {
			t.Errorf("%s is on this node: %t", b.Addr, b.Local)
		}
	}
}
