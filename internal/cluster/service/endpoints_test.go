// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const webHTTP = webIP + ":80"

func proxyName(name string) serviceOption {
	return func(s *corev1.Service) { s.Labels = map[string]string{LabelServiceProxyName: name} }
}

func TestR1OnlyServicesForThisProxyCount(t *testing.T) {
	configured := func(c *Config) { c.ServiceProxyName = "beeline" }
	served := expect{webHTTP: everywhere("a")}
	not := expect{webHTTP: "none", webIP: "none"}
	a := endpoints("a here")
	runRules(t, []rule{
		{"no label", nil, []Object{service("web"), a}, served},
		{"another's label", nil, []Object{service("web", proxyName("cilium")), a}, not},
		{"an empty label is a label", nil, []Object{service("web", proxyName("")), a}, not},
		{"no label, a name configured", configured, []Object{service("web"), a}, served},
		{"the label configured", configured, []Object{service("web", proxyName("beeline")), a}, served},
		{"another's label, a name configured", configured, []Object{service("web", proxyName("cilium")), a}, not},
		{"headless", nil, []Object{service("web", clusterIP("None")), a}, expect{"10.1.0.1:80": "none"}},
	})
	table := cluster(testConfig(), service("web"), a)
	table.Apply(changes(service("web", proxyName("other"))))
	check(t, table, not)
	table.Apply(changes(service("web")))
	check(t, table, served)
}

func TestR2HeadlessLabelOnTheSliceDecides(t *testing.T) {
	for _, value := range []string{"", "true"} {
		headless := slice("web-2", []string{"b there"}, func(s *discoveryv1.EndpointSlice) {
			s.Labels[corev1.IsHeadlessService] = value
		})
		table := cluster(testConfig(), service("web"), endpoints("a here"), headless)
		check(t, table, expect{webHTTP: everywhere("a")})
		table.Apply(changes(slice("web-2", []string{"b there"})))
		check(t, table, expect{webHTTP: everywhere("a b")})
		table.Apply(changes(headless))
		check(t, table, expect{webHTTP: everywhere("a")})
	}
}

func TestR3NoClusterIPNoService(t *testing.T) {
	externalName := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }
	for name, s := range map[string]*Service{
		"empty":            service("web", clusterIP(""), externalIPs("203.0.113.1")),
		"None":             service("web", clusterIP("None"), externalIPs("203.0.113.1")),
		"None, but a list": service("web", func(s *corev1.Service) { s.Spec.ClusterIP = "None" }, externalIPs("203.0.113.1")),
		"no list":          {Namespace: "default", Name: "web"},
		"ExternalName":     service("web", externalName, externalIPs("203.0.113.1")),
	} {
		if table := cluster(testConfig(), s, endpoints("a here")); table.Plan(web) != nil {
			t.Errorf("%s: %+v", name, table.Plan(web))
		}
	}
}

func TestR5EndpointsAreFoundByPortNameAndProtocol(t *testing.T) {
	named := func(name string, p corev1.Protocol) sliceOption {
		return func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name, s.Ports[0].Protocol = &name, &p }
	}
	targetPort := func(s *corev1.Service) { s.Spec.Ports[0].TargetPort.IntVal = 9999 }
	a := []string{"a here"}
	runRules(t, []rule{
		{"name and protocol agree", nil, []Object{service("web"), endpoints(a...)}, expect{webHTTP: everywhere("a")}},
		{"another name", nil, []Object{service("web"), slice("s", a, named("admin", "TCP"))}, expect{webHTTP: "all reject"}},
		{"another protocol", nil, []Object{service("web"), slice("s", a, named("http", "UDP"))}, expect{webHTTP: "all reject"}},
		{"targetPort is not read", nil, []Object{service("web", targetPort), endpoints(a...)}, expect{webHTTP: everywhere("a")}},
		{"the port without a name", nil,
			[]Object{service("web", ports(corev1.ServicePort{Port: 80})), slice("s", a, named("", "TCP"))},
			expect{webHTTP: everywhere("a")}},
		{"another Service's slice", nil, []Object{service("web"), slice("s", a, of("db"))}, expect{webHTTP: "all reject"}},
		{"nobody's slice", nil, []Object{service("web"), slice("s", a, of(""))}, expect{webHTTP: "all reject"}},
		{"a slice of the other family", nil, []Object{service("web"), slice("s", a, ipv6)}, expect{webHTTP: "all reject"}},
		{"slices with different numbers for one name", nil, []Object{
			service("web"), endpoints(a...),
			slice("s", []string{"b"}, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = new(int32(9090)) }),
		}, expect{webHTTP: everywhere("a 10.1.0.2:9090")}},
	})
}

func TestR6SlicesAreMerged(t *testing.T) {
	merged := func(first, second *EndpointSlice, want string) {
		t.Helper()
		for _, order := range [][]Object{{first, second}, {second, first}} {
			table := cluster(testConfig(), append(order, service("web"))...)
			check(t, table, expect{webHTTP: want})
		}
	}
	lines := func(l ...string) []string { return l }
	merged(endpoints("a here"), slice("web-2", lines("b there")), everywhere("a b"))
	merged(endpoints("a"), slice("web-2", lines("a")), everywhere("a"))
	merged(endpoints("a", "a terminating"), slice("web-2", lines("b")), everywhere("a b"))
	merged(endpoints("a terminating"), slice("web-2", lines("a")), everywhere("a"))
	// The entry that is not terminating wins, even if it is not ready.
	merged(endpoints("a terminating", "b terminating"), slice("web-2", lines("a notserving")), everywhere("b"))
	// Of otherwise equal entries, the more available one wins.
	merged(endpoints("a notready"), slice("web-2", lines("a")), everywhere("a"))
	merged(endpoints("a terminating notserving"), slice("web-2", lines("a terminating")), everywhere("a"))
}

// Within a slice kube-proxy uses the last entry that is not terminating, or else the first.
func TestR6LastEntryOfASliceCounts(t *testing.T) {
	for _, c := range []struct {
		entries []string
		want    string
	}{
		{[]string{"a", "a notready", "b"}, everywhere("b")},
		{[]string{"a notready", "a", "b"}, everywhere("a b")},
		{[]string{"a", "a terminating", "b"}, everywhere("a b")},
		{[]string{"a notserving", "a terminating"}, "all reject"},
		{[]string{"a terminating notserving", "a terminating", "b terminating"}, everywhere("b")},
		{[]string{"a terminating", "a terminating notserving", "b terminating"}, everywhere("a b")},
	} {
		check(t, cluster(testConfig(), service("web"), endpoints(c.entries...)), expect{webHTTP: c.want})
	}
}

func TestR6AnEndpointThatMovesNeverVanishes(t *testing.T) {
	table := cluster(testConfig(), service("web"), endpoints("a", "b"))
	second := slice("web-2", []string{"b"})
	table.Apply(changes(second))
	check(t, table, expect{webHTTP: everywhere("a b")})
	table.Apply(changes(endpoints("a")))
	check(t, table, expect{webHTTP: everywhere("a b")})
	table.Apply([]Change{gone(second)})
	check(t, table, expect{webHTTP: everywhere("a")})
}

func TestWeights(t *testing.T) {
	lines := func(l ...string) []string { return l }
	runRules(t, []rule{
		{"of a slice", nil, []Object{service("web"), endpoints("a"), slice("s", lines("b", "c"), weight("20"))},
			expect{webHTTP: everywhere("a b*20 c*20")}},
		{"of an address in two slices the larger counts", nil,
			[]Object{service("web"), slice("s", lines("a"), weight("7")), slice("r", lines("a"), weight("5"))},
			expect{webHTTP: everywhere("a*7")}},
		{"of an address in two slices the larger counts, in whichever slice", nil,
			[]Object{service("web"), slice("s", lines("a"), weight("5")), slice("r", lines("a"), weight("7"))},
			expect{webHTTP: everywhere("a*7")}},
		{"zero takes no new connections", nil, []Object{service("web"), endpoints("a"), slice("s", lines("b"), weight("0"))},
			expect{webHTTP: everywhere("a")}},
		{"zero does not even as the last", nil, []Object{service("web"), slice("s", lines("a", "b terminating"), weight("0"))},
			expect{webHTTP: "all reject"}},
		{"zero does not hold a topology up", nil,
			[]Object{service("web"), endpoints("a there zone=west", "b there zone=east"), slice("s", lines("c"), weight("0"))},
			expect{webHTTP: everywhere("b")}},
	})
}

func TestR7FamiliesAreSeparate(t *testing.T) {
	both := []Object{endpoints("a here"), slice("web-6", []string{"b here"}, ipv6)}
	with := func(s *Service) []Object { return append([]Object{s}, both...) }
	vip4, vip6 := "203.0.113.1", "2001:db8:1::1"
	addresses := func(s *corev1.Service) {
		nodePort(30080)(s)
		externalIPs(vip4, vip6)(s)
	}
	v4 := expect{webHTTP: everywhere("a"), vip4 + ":80": "all a masq", hereIP + ":30080": "all a masq",
		"127.0.0.1:30080": "pod pass, node a masq, outside pass"}
	v6 := expect{"[fd00::1]:80": everywhere("b"), "[2001:db8:1::1]:80": "all b masq", "[2001:db8::1]:30080": "all b masq",
		"[::1]:30080": "pod pass, node b masq, outside pass"}
	none := func(e expect) expect {
		n := expect{}
		for at := range e {
			n[at] = "none"
		}
		return n
	}
	noFamilies := func(s *corev1.Service) { s.Spec.IPFamilies = nil }
	noList := func(s *corev1.Service) { s.Spec.IPFamilies, s.Spec.ClusterIPs = nil, nil }
	swapped := func(s *corev1.Service) {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	}
	runRules(t, []rule{
		{"dual stack: IPv4", nil, with(service("web", dualStack, addresses)), v4},
		{"dual stack: IPv6", nil, with(service("web", dualStack, addresses)), v6},
		{"IPv6 first", nil, with(service("web", clusterIP(webIP6, webIP), addresses)), v4},
		{"without IPv6 ClusterIP no IPv6", nil, with(service("web", addresses)), none(v6)},
		{"without IPv4 ClusterIP no IPv4", nil, with(service("web", clusterIP(webIP6), addresses)), none(v4)},
		{"an object without ipFamilies", nil, with(service("web", addresses, noFamilies)), v4},
		{"an object with clusterIP alone", nil, with(service("web", addresses, noList)), v4},
		{"a ClusterIP that its family does not fit", nil, with(service("web", dualStack, swapped)), none(v4)},
	})
}

func TestR9NilConditions(t *testing.T) {
	yes, no := new(true), new(false)
	for _, c := range []struct {
		name       string
		conditions discoveryv1.EndpointConditions
		// The decision if only b exists and is in this state, and if a is also ready.
		alone, beside string
	}{
		{"all nil", discoveryv1.EndpointConditions{}, everywhere("b"), everywhere("a b")},
		{"ready false, others nil", discoveryv1.EndpointConditions{Ready: no}, "all reject", everywhere("a")},
		{"ready false, terminating, serving nil", discoveryv1.EndpointConditions{Ready: no, Terminating: yes}, everywhere("b"), everywhere("a")},
		{"terminating, not serving", discoveryv1.EndpointConditions{Ready: no, Serving: no, Terminating: yes}, "all reject", everywhere("a")},
		{"publishNotReadyAddresses", discoveryv1.EndpointConditions{Ready: yes, Serving: no, Terminating: yes}, everywhere("b"), everywhere("a b")},
	} {
		b := slice("web-2", nil, func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.2"}, Conditions: c.conditions}}
		})
		t.Run(c.name, func(t *testing.T) {
			check(t, cluster(testConfig(), service("web"), b), expect{webHTTP: c.alone})
			check(t, cluster(testConfig(), service("web"), b, endpoints("a")), expect{webHTTP: c.beside})
		})
	}
}

func TestR10ClusterSet(t *testing.T) {
	runRules(t, []rule{
		{"ready ones of all nodes", nil, []Object{service("web"), endpoints("a here", "b there", "c")}, expect{webHTTP: everywhere("a b c")}},
		{"no terminating one beside a ready one", nil, []Object{service("web"), endpoints("a here terminating", "b there")}, expect{webHTTP: everywhere("b")}},
		{"terminating ones that serve, if none is ready", nil,
			[]Object{service("web"), endpoints("a here terminating", "b there terminating", "c notready")}, expect{webHTTP: everywhere("a b")}},
		{"not ready is not enough", nil, []Object{service("web"), endpoints("a here notready")}, expect{webHTTP: "all reject"}},
	})
}

func TestR11LocalSet(t *testing.T) {
	local := service("web", iTPLocal)
	runRules(t, []rule{
		{"ready ones of this node", nil, []Object{local, endpoints("a here", "b there", "c here terminating")}, expect{webHTTP: everywhere("a")}},
		{"its terminating ones, although another node has ready ones", nil,
			[]Object{local, endpoints("a here terminating", "b there")}, expect{webHTTP: everywhere("a")}},
		{"an endpoint without a node is not local", nil, []Object{local, endpoints("a", "b here")}, expect{webHTTP: everywhere("b")}},
		{"topology is ignored", nil, []Object{local, endpoints("a here zone=west node=there", "b there zone=east node=here")}, expect{webHTTP: everywhere("a")}},
		{"without a node name nothing is local", func(c *Config) { c.NodeName = "" },
			[]Object{local, endpoints("a", "b there")}, expect{webHTTP: "all drop"}},
	})
}

// In manifests an endpoint without a node name is on this node if it has one of its addresses: of the Node
// object, or of an interface, which may change. An endpoint with a node name belongs to that node.
func TestR11LocalByAddress(t *testing.T) {
	files := func(c *Config) { c.LocalByAddress = true }
	local := service("web", iTPLocal)
	own := func(words ...string) *EndpointSlice {
		var lines []string
		for i, w := range words {
			lines = append(lines, []string{hereIP, thereIP}[i]+" "+w)
		}
		return endpoints(lines...)
	}
	here := expect{webHTTP: everywhere(hereIP + ":8080")}
	runRules(t, []rule{
		{"in a cluster none is", nil, []Object{local, own("", "")}, expect{webHTTP: "all drop"}},
		{"in files", files, []Object{local, own("", "")}, here},
		{"beside one that names this node", files, []Object{local, endpoints(hereIP, "b here", "c")}, expect{webHTTP: everywhere("b " + hereIP + ":8080")}},
		{"it names another node", files, []Object{local, own("there", "")}, expect{webHTTP: "all drop"}},
		{"an address of another node's names this one", files, []Object{local, own("there", "here")}, expect{webHTTP: everywhere(thereIP + ":8080")}},
		{"of the other family", files, []Object{service("web", iTPLocal, dualStack), slice("web-1", []string{hereIP6, "b there"}, ipv6)},
			expect{"[" + webIP6 + "]:80": everywhere("a")}},
		{"it terminates", files, []Object{local, own("terminating", "")}, here},
		{"no node has this name", func(c *Config) { files(c); c.NodeName = "" }, []Object{local, own("", "")}, expect{webHTTP: "all drop"}},
	})
	config := testConfig()
	files(&config)
	table := cluster(config, local, endpoints("a", "b"))
	check(t, table, expect{webHTTP: "all drop"})
	table.SetLocalAddresses(addrs("10.1.0.2"))
	check(t, table, expect{webHTTP: everywhere("b")})
	table.SetLocalAddresses(nil)
	check(t, table, expect{webHTTP: "all drop"})
}

func TestR11BackendsKnowWhetherTheyAreLocal(t *testing.T) {
	for _, b := range cluster(testConfig(), service("web"), endpoints("a here", "b there", "c")).Plan(web).Sets[0].Backends {
		if b.Local != (names([]Backend{b}) == "a") {
			t.Errorf("%s: local %t", b.Addr, b.Local)
		}
	}
}

func TestR12TerminatingAndNotServingTakesNothingNew(t *testing.T) {
	ending := "a here terminating notserving"
	runRules(t, []rule{
		{"in the cluster set", nil, []Object{service("web"), endpoints(ending)}, expect{webHTTP: "all reject"}},
		{"in the local set", nil, []Object{service("web", iTPLocal), endpoints(ending, "b there")}, expect{webHTTP: "all drop"}},
		{"beside one that serves", nil, []Object{service("web"), endpoints(ending, "b terminating")}, expect{webHTTP: everywhere("b")}},
	})
}

func TestR13Topology(t *testing.T) {
	w := service("web")
	runRules(t, []rule{
		{"zone", nil, []Object{w, endpoints("a zone=east", "b zone=west", "c zone=west zone=east")}, expect{webHTTP: everywhere("a c")}},
		{"one without a zone hint turns it off", nil, []Object{w, endpoints("a zone=east", "b zone=west", "c")}, expect{webHTTP: everywhere("a b c")}},
		{"no hint for this zone turns it off", nil, []Object{w, endpoints("a zone=west", "b zone=west")}, expect{webHTTP: everywhere("a b")}},
		{"node before zone", nil, []Object{w, endpoints("a zone=east node=there", "b zone=west node=here")}, expect{webHTTP: everywhere("b")}},
		{"one without a node hint: zone", nil, []Object{w, endpoints("a zone=east", "b zone=west node=here")}, expect{webHTTP: everywhere("a")}},
		{"no hint for this node: zone", nil, []Object{w, endpoints("a zone=east node=there", "b zone=west node=there")}, expect{webHTTP: everywhere("a")}},
		{"hints of one that is not ready do not count", nil, []Object{w, endpoints("a zone=east", "b zone=west", "c notready")}, expect{webHTTP: everywhere("a")}},
		{"the only one for this zone is not ready", nil, []Object{w, endpoints("a zone=east notready", "b zone=west")}, expect{webHTTP: everywhere("b")}},
		{"terminating ones are not chosen by hints", nil, []Object{w, endpoints("a zone=east terminating", "b zone=west terminating")}, expect{webHTTP: everywhere("a b")}},
	})
	noZone := cluster(testConfig(), w, endpoints("a zone=east", "b zone=west"))
	noZone.Apply(changes(&Node{Name: "here"}))
	check(t, noZone, expect{webHTTP: everywhere("a b")})
}

func TestR13ANewZoneTakesEffect(t *testing.T) {
	other := service("other", clusterIP("10.0.0.2"))
	table := cluster(testConfig(), service("web"), other, endpoints("a zone=east", "b zone=west"), slice("o", []string{"c"}, of("other")))
	check(t, table, expect{webHTTP: everywhere("a")})
	d := table.Apply(changes(&Node{Name: "here", Zone: "west", Addresses: here.Addresses}))
	check(t, table, expect{webHTTP: everywhere("b")})
	if d.Resolved != 1 {
		t.Errorf("resolved %d objects, want only the one with hints", d.Resolved)
	}
}

func TestR14OnlySetsInUseExist(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []serviceOption
		scopes  []Scope
	}{
		{"ClusterIP", nil, []Scope{ScopeCluster}},
		{"iTP Local", []serviceOption{iTPLocal}, []Scope{ScopeLocal}},
		{"NodePort", []serviceOption{nodePort(30080)}, []Scope{ScopeCluster}},
		{"NodePort, eTP Local", []serviceOption{nodePort(30080), eTPLocal}, []Scope{ScopeCluster, ScopeLocal}},
		{"NodePort, iTP Local", []serviceOption{nodePort(30080), iTPLocal}, []Scope{ScopeCluster, ScopeLocal}},
		{"both Local", []serviceOption{nodePort(30080), eTPLocal, iTPLocal}, []Scope{ScopeCluster, ScopeLocal}},
		{"eTP Local without an external address", []serviceOption{loadBalancer(), eTPLocal}, []Scope{ScopeCluster}},
		{"eTP Local on a ClusterIP Service means nothing", []serviceOption{eTPLocal}, []Scope{ScopeCluster}},
	} {
		var got []Scope
		for _, s := range cluster(testConfig(), service("web", c.options...), endpoints("a here", "b there")).Plan(web).Sets {
			got = append(got, s.Key.Scope)
		}
		if len(got) != len(c.scopes) || got[0] != c.scopes[0] || got[len(got)-1] != c.scopes[len(c.scopes)-1] {
			t.Errorf("%s: sets %v, want %v", c.name, got, c.scopes)
		}
	}
}

func TestR15TopologyCanHideLocalEndpointsOfTheClusterSet(t *testing.T) {
	table := cluster(testConfig(), service("web", nodePort(30080), eTPLocal), endpoints("a here zone=west", "b there zone=east"))
	check(t, table, expect{
		webHTTP:           everywhere("b"),
		hereIP + ":30080": "pod b, node b masq, outside a",
	})
}
