// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func note(annotation, value string) serviceOption {
	return func(s *corev1.Service) {
		if s.Annotations == nil {
			s.Annotations = map[string]string{}
		}
		s.Annotations[annotation] = value
	}
}

// dsrs returns the DSR method of a Service's frontends, by address.
func dsrs(table *Cluster, ref Ref) map[string]string {
	all := map[string]string{}
	for _, f := range table.Plan(ref).Frontends {
		all[f.Key.String()] = string(f.DSR)
		if f.Untracked {
			all[f.Key.String()] += " untracked"
		}
	}
	return all
}

// DSR applies to clients outside the cluster at addresses that they can reach: not at addresses of pods, for
// pings or on loopback. It does not depend on the endpoints.
func TestDSROfFrontends(t *testing.T) {
	config := testConfig()
	config.DSR = DSRGeneve
	all := func(s *corev1.Service) {
		loadBalancer(vip)(s)
		externalIPs("203.0.113.9")(s)
		s.Spec.Ports[0].NodePort = 30080
	}
	for _, endpoints := range [][]string{{"a here", "b there"}, {"b there"}, nil} {
		table := cluster(config, service("web", all), slice("web-1", endpoints))
		table.SetLocalAddresses(nil)
		got := dsrs(table, web)
		want := map[string]string{
			webHTTP + "/TCP": "geneve", vip + ":80/TCP": "geneve", "203.0.113.9:80/TCP": "geneve",
			hereIP + ":30080/TCP": "geneve", "127.0.0.1:30080/TCP": "", webIP + " (other ports)": "",
		}
		if len(endpoints) > 0 {
			want[vip+"/ICMP"], want["203.0.113.9/ICMP"] = "", ""
		}
		if !maps.Equal(got, want) {
			t.Errorf("with endpoints %v: %v, want %v", endpoints, got, want)
		}
	}
	config.RefuseOutsideClusterIP = true
	if got := dsrs(cluster(config, service("web", all), both), web); got[webHTTP+"/TCP"] != "" || got[vip+":80/TCP"] != "geneve" {
		t.Errorf("if clients outside are rejected at ClusterIPs: %v", got)
	}
	p := convertPod(pod("p", 1, hostPort("", 30081, 8080, corev1.ProtocolTCP)))
	for key, kind := range dsrs(cluster(config, p), p.Ref()) {
		if kind != "" {
			t.Errorf("the HostPort at %s has %s", key, kind)
		}
	}
}

// Each annotation takes precedence over the node's flag; hybrid leaves all protocols but TCP to SNAT. A
// frontend needs no conntrack entries if every balancer chooses the same backend, which for UDP requires the
// stateless annotation.
func TestDSRRules(t *testing.T) {
	for _, test := range []struct {
		node       DSR
		nodeHybrid bool
		maglev     bool
		options    []serviceOption
		tcp, udp   string
	}{
		{"", false, false, nil, "", ""},
		{DSROff, true, true, nil, "", ""},
		{DSRIPIP, false, false, nil, "ipip", "ipip"},
		{DSRIPIP, true, false, nil, "ipip", ""},
		{DSROpt, false, true, nil, "opt untracked", "opt"},
		{DSROpt, false, true, []serviceOption{note(AnnotationDSR, "off")}, "", ""},
		{DSROff, false, true, []serviceOption{note(AnnotationDSR, "geneve")}, "geneve untracked", "geneve"},
		{DSRIPIP, true, false, []serviceOption{note(AnnotationDSRHybrid, "false")}, "ipip", "ipip"},
		{DSRIPIP, false, false, []serviceOption{note(AnnotationDSRHybrid, "true")}, "ipip", ""},
		{DSROff, true, false, []serviceOption{note(AnnotationDSR, "opt")}, "opt", ""},
		{DSRIPIP, false, true, []serviceOption{note(AnnotationStateless, "true")}, "ipip untracked", "ipip untracked"},
		{DSRIPIP, false, true, []serviceOption{note(AnnotationStateless, "false")}, "ipip untracked", "ipip"},
		{DSRIPIP, true, true, []serviceOption{note(AnnotationStateless, "true")}, "ipip untracked", ""},
		{DSRIPIP, false, true, []serviceOption{note(AnnotationStateless, "true"), clientIP}, "ipip", "ipip"},
		{DSRIPIP, false, false, []serviceOption{note(AnnotationStateless, "true")}, "ipip", "ipip"},
		{DSRIPIP, false, true, []serviceOption{note(AnnotationAlgorithm, "random")}, "ipip", "ipip"},
	} {
		config := testConfig()
		config.DSR, config.DSRHybrid = test.node, test.nodeHybrid
		if test.maglev {
			config.Algorithm, config.TableSize = Maglev, 251
		}
		options := append([]serviceOption{ports(
			corev1.ServicePort{Name: "http", Port: 80}, corev1.ServicePort{Name: "http", Port: 80, Protocol: corev1.ProtocolUDP},
		)}, test.options...)
		got := dsrs(cluster(config, service("web", options...), both, slice("web-2", []string{"a"}, udp)), web)
		if tcp, udp := got[webHTTP+"/TCP"], got[webHTTP+"/UDP"]; tcp != test.tcp || udp != test.udp {
			t.Errorf("%+v: TCP %q, UDP %q", test, tcp, udp)
		}
	}
}

// Changing the method changes the plan, in both directions.
func TestDSRChange(t *testing.T) {
	table := cluster(testConfig(), service("web"), both)
	for _, kind := range []string{"ipip", "opt", "opt", "off"} {
		before := dsrs(table, web)[webHTTP+"/TCP"]
		delta := table.Apply(changes(service("web", note(AnnotationDSR, kind))))
		after := dsrs(table, web)[webHTTP+"/TCP"]
		if changed := delta.Plans[web] != nil; changed != (before != after) || after != strings.TrimSuffix(kind, "off") {
			t.Errorf("from %q to %s: %q, the plan changed: %t", before, kind, after, changed)
		}
	}
}

func TestDSRAnnotations(t *testing.T) {
	for annotation, want := range map[string]string{
		AnnotationDSR:       "off or ipip or geneve or opt",
		AnnotationDSRHybrid: `"true" or "false"`,
		AnnotationStateless: `"true" or "false"`,
	} {
		for _, value := range []string{"", "True", "ipip ", "yes", "vxlan"} {
			s, err := ConvertService(v1Service("web", note(annotation, value)))
			checkErrors(t, err, "metadata.annotations["+annotation+"] … "+want)
			if s.DSR != "" || s.DSRHybrid != "" || s.Stateless != "" {
				t.Errorf("%s %q is accepted: %+v", annotation, value, s)
			}
		}
	}
}

// Annotations without effect are reported, and only those.
func TestDSRProblems(t *testing.T) {
	stateless, hybrid := note(AnnotationStateless, "true"), note(AnnotationDSRHybrid, "true")
	ipip, maglev := note(AnnotationDSR, "ipip"), note(AnnotationAlgorithm, "maglev")
	datagrams := protocol(corev1.ProtocolUDP)
	for _, test := range []struct {
		options []serviceOption
		want    string // empty: no problem
	}{
		{[]serviceOption{ipip, hybrid}, ""},
		{[]serviceOption{hybrid}, `beeline.io/dsr-hybrid: "true" has no effect while beeline.io/dsr is off: set it to`},
		{[]serviceOption{note(AnnotationDSRHybrid, "false"), note(AnnotationStateless, "false")}, ""},
		{[]serviceOption{datagrams, ipip, maglev, stateless}, ""},
		{[]serviceOption{datagrams, maglev, stateless}, `beeline.io/stateless: "true" has no effect while beeline.io/dsr is off`},
		{[]serviceOption{datagrams, ipip, stateless}, "with the algorithm random: set beeline.io/algorithm to maglev"},
		{[]serviceOption{datagrams, ipip, maglev, stateless, clientIP}, "with session affinity"},
		{[]serviceOption{datagrams, ipip, maglev, stateless, hybrid}, "only TCP uses DSR: set beeline.io/dsr-hybrid to \"false\""},
		{[]serviceOption{ipip, maglev, stateless}, "on TCP, and the Service has only TCP ports"},
	} {
		config := testConfig()
		config.TableSize = 251
		problems := problemTexts(cluster(config, service("web", test.options...), both).Plan(web).Problems)
		if got := strings.Join(problems, "\n"); test.want == "" && got != "" || !strings.Contains(got, test.want) || len(problems) > 1 {
			t.Errorf("problems %q, want %q", problems, test.want)
		}
	}
}

// Two endpoints on other nodes with the same address are indistinguishable with IPIP; on this node their ports
// distinguish them.
func TestIPIPOfSharedAddress(t *testing.T) {
	second := func(node string) Object {
		return slice("web-2", []string{"a " + node}, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = new(int32(8081)) })
	}
	for _, test := range []struct {
		kind, node string
		problem    bool
	}{{"ipip", "there", true}, {"ipip", "here", false}, {"geneve", "there", false}, {"opt", "there", false}, {"off", "there", false}} {
		table := cluster(testConfig(), service("web", note(AnnotationDSR, test.kind)), slice("web-1", []string{"a " + test.node}), second(test.node))
		problems := problemTexts(table.Plan(web).Problems)
		if want := "endpoints 10.1.0.1:8080 and 10.1.0.1:8081 of port default/web:http/TCP"; test.problem != (len(problems) == 1 && strings.HasPrefix(problems[0], want)) ||
			len(problems) > 1 {
			t.Errorf("%s, endpoints %s: %q", test.kind, test.node, problems)
		}
	}
}

// nodesOf returns the node of each backend of a Service's sets, "-" for none.
func nodesOf(table *Cluster, ref Ref) string {
	var all []string
	plan := table.Plan(ref)
	for _, set := range slices.Concat(plan.Sets, plan.Retained) {
		for _, b := range set.Backends {
			node := "-"
			if b.Node.IsValid() {
				node = b.Node.String()
			}
			all = append(all, fmt.Sprintf("%s %s %s", set.Key.Scope, b.Addr.Addr(), node))
		}
	}
	return strings.Join(all, ", ")
}

// With Geneve a backend on another node has the address of its node, of its own family, whenever that is added,
// changed or removed; only affected Services are resolved again. With other methods it has none, and changes of
// Nodes have no effect.
func TestNodesOfBackends(t *testing.T) {
	there := func(addresses ...string) *Node { return &Node{Name: "there", Addresses: addrs(addresses...)} }
	table := cluster(testConfig(), both, slice("web-6", []string{"b there"}, ipv6), service("web", dualStack, note(AnnotationDSR, "geneve")),
		service("plain", clusterIP("10.0.0.2"), note(AnnotationDSR, "ipip")), slice("plain-1", []string{"a here", "b there"}, of("plain")),
		service("other", clusterIP("10.0.0.3"), note(AnnotationDSR, "geneve")), slice("other-1", []string{"c here"}, of("other")))
	for _, step := range []struct {
		node Change
		want string // nodes of b in IPv4 and IPv6
	}{
		{changes(there(thereIP, "2001:db8::2"))[0], thereIP + " 2001:db8::2"},
		{changes(there(thereIP))[0], thereIP + " -"},
		{changes(there("127.0.0.1", "192.0.2.7", thereIP))[0], "192.0.2.7 -"},
		{gone(there()), "- -"},
	} {
		delta := table.Apply([]Change{step.node})
		v4, v6, _ := strings.Cut(step.want, " ")
		want := fmt.Sprintf("cluster 10.1.0.1 -, cluster 10.1.0.2 %s, cluster fd01::2 %s", v4, v6)
		if got := nodesOf(table, web); got != want {
			t.Errorf("nodes %s, want %s", got, want)
		}
		if len(delta.Plans) != 1 || delta.Plans[web] == nil || delta.Resolved != 1 {
			t.Errorf("resolved %d, changed %v", delta.Resolved, delta.Plans)
		}
		if again := table.Apply([]Change{step.node}); again.Resolved != 0 || again.Balancers != nil {
			t.Errorf("the same Node again: %+v", again)
		}
		if got := nodesOf(table, Ref{KindService, "default", "plain"}); got != "cluster 10.1.0.1 -, cluster 10.1.0.2 -" {
			t.Errorf("with ipip: %s", got)
		}
	}
}

// Hybrid leaves UDP to SNAT, where the node of a backend does not matter.
func TestNodesOfHybrid(t *testing.T) {
	two := ports(corev1.ServicePort{Name: "http", Port: 80}, corev1.ServicePort{Name: "http", Port: 80, Protocol: corev1.ProtocolUDP})
	table := cluster(testConfig(), &Node{Name: "there", Addresses: addrs(thereIP)}, slice("web-1", []string{"b there"}), slice("web-2", []string{"b there", "c there terminating"}, udp),
		service("web", two, note(AnnotationDSR, "geneve"), note(AnnotationDSRHybrid, "true")))
	if got, want := nodesOf(table, web), "cluster 10.1.0.2 "+thereIP+", cluster 10.1.0.2 -, kept 10.1.0.3 -"; got != want {
		t.Errorf("nodes %s, want %s", got, want)
	}
	table.Apply(changes(service("web", two, note(AnnotationDSR, "geneve"))))
	if got, want := nodesOf(table, web), "cluster 10.1.0.2 "+thereIP+", cluster 10.1.0.2 "+thereIP+", kept 10.1.0.3 "+thereIP; got != want {
		t.Errorf("without hybrid: nodes %s, want %s", got, want)
	}
}

// Balancers are all Nodes with all of their addresses, and the configured networks, which include the addresses
// inside.
func TestBalancers(t *testing.T) {
	config := testConfig()
	config.Balancers = prefixes("198.51.100.0/24", "192.0.2.2/32")
	table := NewCluster(config)
	want := func(delta Delta, changed bool, networks ...string) {
		t.Helper()
		if !slices.Equal(table.Balancers(), prefixes(networks...)) {
			t.Errorf("balancers %v, want %v", table.Balancers(), networks)
		}
		if (delta.Balancers != nil) != changed || changed && !slices.Equal(*delta.Balancers, table.Balancers()) {
			t.Errorf("delta %v", delta.Balancers)
		}
	}
	want(Delta{}, false, "192.0.2.2/32", "198.51.100.0/24")
	want(table.Apply(changes(here)), true, "192.0.2.1/32", "192.0.2.2/32", "198.51.100.0/24", "2001:db8::1/128")
	there := &Node{Name: "there", Addresses: addrs(thereIP, "198.51.100.3", "127.0.0.1")}
	want(table.Apply(changes(there)), false, "192.0.2.1/32", "192.0.2.2/32", "198.51.100.0/24", "2001:db8::1/128")
	want(table.Apply(changes(&Node{Name: "here"})), true, "192.0.2.2/32", "198.51.100.0/24")
	// Other nodes do not send from addresses of interfaces.
	want(table.SetLocalAddresses([]netip.Addr{netip.MustParseAddr(hereIP)}), false, "192.0.2.2/32", "198.51.100.0/24")
}

// In all plans, untracked frontends have DSR, a Maglev table and no affinity; only addresses for clients
// outside the cluster have DSR; and only with Geneve backends have a node.
func checkDSR(t *testing.T, table *Cluster, plan *Plan) {
	t.Helper()
	for _, f := range plan.Frontends {
		if f.Untracked && (f.DSR == "" || plan.TableSize == 0 || f.Affinity > 0) {
			t.Errorf("untracked: %+v", f)
		}
		if f.DSR != "" && (f.Key.Addr.IsLoopback() || !slices.Contains([]FrontendKind{ClusterIP, NodePort, LoadBalancer, ExternalIP}, f.Kind)) {
			t.Errorf("%s %s has DSR %s", f.Kind, f.Key, f.DSR)
		}
	}
	for _, set := range slices.Concat(plan.Sets, plan.Retained) {
		for _, b := range set.Backends {
			owner := table.services[set.Key.Port.Owner]
			if b.Node.IsValid() && (b.Local || FamilyOf(b.Node) != set.Key.Family || owner == nil || table.config.dsrOf(owner, set.Key.Port.Protocol) != DSRGeneve) {
				t.Errorf("%s: backend %+v", set.Key, b)
			}
		}
	}
}
