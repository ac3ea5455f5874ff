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

// checkSound checks invariants of all plans.
func checkSound(t *testing.T, table *Cluster) {
	t.Helper()
	seen := map[FrontendKey]Ref{}
	for ref, p := range table.Owners() {
		used := map[SetKey]bool{}
		if !slices.IsSortedFunc(p.Frontends, func(a, b Frontend) int { return a.Key.Compare(b.Key) }) {
			t.Errorf("%s: frontends are not sorted", ref)
		}
		checkDSR(t, table, p)
		checkExternal(t, table, ref, p)
		for _, f := range p.Frontends {
			if other, taken := seen[f.Key]; taken {
				t.Errorf("%s and %[3]s both have %[2]s", ref, f.Key, other)
			}
			seen[f.Key] = ref
			if a := f.Key.Addr; !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.IsUnspecified() {
				t.Errorf("%s: address %s", ref, a)
			}
			if (f.Key.Port == 0) != (f.Kind == ClusterIPOtherPorts || f.Kind == Echo) || (f.Key.Protocol == 0) != (f.Kind == ClusterIPOtherPorts) {
				t.Errorf("%s: %s is a %s", ref, f.Key, f.Kind)
			}
			if f.Key.Addr.IsLoopback() && (f.Decisions[FromPod].Verdict != Pass || f.Decisions[FromOutside].Verdict != Pass) {
				t.Errorf("%s: %s is for the node alone", ref, f.Key)
			}
			for _, d := range f.Decisions {
				if d.Verdict == Balance {
					used[f.Set(d)] = true
				} else if d != (Decision{Verdict: d.Verdict}) {
					t.Errorf("%s: %s with a set", ref, d.Verdict)
				}
			}
		}
		for _, s := range p.Sets {
			if !used[s.Key] {
				t.Errorf("%s: set %s is of no use", ref, s.Key)
			}
			delete(used, s.Key)
			if len(s.Backends) == 0 {
				t.Errorf("%s: set %s is empty", ref, s.Key)
			}
		}
		for _, s := range slices.Concat(p.Sets, p.Retained) {
			for i, b := range s.Backends { // in the order of the programs' binary search
				if b.Weight == 0 || b.Addr.Port() == 0 || i > 0 && s.Backends[i-1].Addr.Compare(b.Addr) >= 0 {
					t.Errorf("%s: set %s: backend %v", ref, s.Key, b)
				}
			}
		}
		if len(used) > 0 {
			t.Errorf("%s: sets %v are missing", ref, used)
		}
	}
}

// checkExternal expects the source ranges and the policy of a Service at each of its ingress IPs, even if
// another field has the same address (R25, R38).
func checkExternal(t *testing.T, table *Cluster, ref Ref, p *Plan) {
	s := table.services[ref]
	for i := 0; s != nil && i < len(p.Frontends); i++ {
		f := &p.Frontends[i]
		of := slices.IndexFunc(s.Ports, func(o ServicePort) bool { return o.Port == f.Key.Port && o.Protocol == f.Key.Protocol })
		if !slices.Contains(s.IngressIPs, f.Key.Addr) || of < 0 {
			continue
		}
		sameName := func(o ServicePort) bool { return o.named() == s.Ports[of].named() }
		if slices.ContainsFunc(s.Ports[:of], sameName) { // then this port is not served
			continue
		}
		family := FamilyOf(f.Key.Addr)
		want := sourceRanges(s.SourceRanges, ofFamily(s.IngressIPs, family), table.node.primaryOf(family), family)
		if !slices.Equal(f.SourceRanges, want) {
			t.Errorf("%s: ingress IP %s (%s) admits %v, want %v", ref, f.Key, f.Kind, f.SourceRanges, want)
		}
		if d := f.Decisions[FromOutside]; s.ExternalLocal && d.Verdict == Balance && d.Scope != ScopeLocal {
			t.Errorf("%s: ingress IP %s (%s) has backends on other nodes", ref, f.Key, f.Kind)
		}
	}
}

func refs(d Delta) string {
	var names []string
	for ref, p := range d.Plans {
		name := ref.Name
		if p == nil {
			name = "-" + name
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return fmt.Sprintf("%s of %d", strings.Join(names, " "), d.Resolved)
}

func problems(t *Cluster, name string) []string {
	return problemTexts(t.Plan(Ref{KindService, "default", name}).Problems)
}

func TestTheOlderObjectHasTheAddress(t *testing.T) {
	first := service("first", clusterIP("10.0.0.1"), externalIPs(vip), created(1))
	second := service("second", clusterIP("10.0.0.2"), externalIPs(vip), created(2))
	third := service("third", clusterIP("10.0.0.3"), externalIPs(vip), created(2))
	has := func(table *Cluster, want string) {
		t.Helper()
		if _, f := find(table, vipHTTP); f.Port.Owner.Name != want {
			t.Errorf("%s belongs to %s, want %s", vipHTTP, f.Port.Owner.Name, want)
		}
		checkSound(t, table)
	}
	table := cluster(testConfig(), third, second)
	has(table, "second") // as old as third, but first by name
	if d := table.Apply(changes(first)); refs(d) != "first second third of 3" {
		t.Errorf("first was added: %s", refs(d))
	}
	has(table, "first")
	want := "ExternalIP 203.0.113.1:80/TCP belongs to Service default/first, which is older: change one of them"
	for _, name := range []string{"second", "third"} {
		if p := problems(table, name); len(p) != 1 || p[0] != want {
			t.Errorf("problems of %s: %q", name, p)
		}
	}
	if p := problems(table, "first"); len(p) != 0 {
		t.Errorf("problems of first: %q", p)
	}
	if d := table.Apply(changes(first)); refs(d) != " of 1" {
		t.Errorf("first was added again: %s", refs(d))
	}
	// The next one gets the address, and the last one's problem names its new rival.
	if d := table.Apply([]Change{gone(first)}); refs(d) != "-first second third of 2" {
		t.Errorf("first was removed: %s", refs(d))
	}
	has(table, "second")
	if p := problems(table, "third"); len(p) != 1 || !strings.Contains(p[0], "default/second, which has the same age and comes first by name") {
		t.Errorf("problems of third: %q", p)
	}
	table.Apply(changes(service("second", clusterIP("10.0.0.2"))))
	has(table, "third")
	if p := problems(table, "third"); len(p) != 0 {
		t.Errorf("problems of third: %q", p)
	}
}

func TestTheLowerKindHasTheAddress(t *testing.T) {
	// Each requests 192.0.2.1:8000, or 10.0.0.1:80, in the order of precedence.
	rivals := []Object{
		service("nodeport", clusterIP("10.0.0.2"), nodePort(8000), created(9)),
		service("loadbalancer", clusterIP("10.0.0.3"), loadBalancer(hereIP), created(8), ports(corev1.ServicePort{Name: "http", Port: 8000})),
		service("externalip", clusterIP("10.0.0.4"), externalIPs(hereIP), created(7), ports(corev1.ServicePort{Name: "http", Port: 8000})),
		convertPod(pod("hostport", 6, hostPort(hereIP, 8000, 8080, "TCP"))),
	}
	table := cluster(testConfig(), rivals...)
	for i, r := range rivals {
		if _, f := find(table, hereIP+":8000"); f.Port.Owner != r.Ref() {
			t.Errorf("%s belongs to %s, want %s", f.Key, f.Port.Owner, r.Ref())
		}
		for _, loser := range rivals[i+1:] {
			if p := problemTexts(table.Plan(loser.Ref()).Problems); len(p) != 1 || !strings.Contains(p[0], fmt.Sprintf("belongs to %s, as its ", r.Ref())) {
				t.Errorf("problems of %s: %q", loser.Ref(), p)
			}
		}
		checkSound(t, table)
		table.Apply([]Change{gone(r)})
	}
	table = cluster(testConfig(), service("web", created(2)), service("thief", clusterIP("10.0.0.2"), externalIPs(webIP), created(1)), both)
	check(t, table, expect{webHTTP: everywhere("a b")})
}

func TestSetsOfALoserThatHasNoUseForThem(t *testing.T) {
	// Only the NodePort uses the cluster set, and another Service has it.
	loser := service("web", iTPLocal, nodePort(30080), created(2))
	winner := service("winner", clusterIP("10.0.0.2"), nodePort(30080), created(1))
	table := cluster(testConfig(), loser, winner, both)
	checkSound(t, table)
	if sets := table.Plan(web).Sets; len(sets) != 1 || sets[0].Key.Scope != ScopeLocal {
		t.Errorf("%+v", sets)
	}
	table.Apply([]Change{gone(winner)})
	checkSound(t, table)
	check(t, table, expect{nodeHTTP: "all a b masq", webHTTP: everywhere("a")})
}

func TestDeltas(t *testing.T) {
	table := cluster(testConfig())
	other := service("other", clusterIP("10.0.0.2"))
	steps := []struct {
		name    string
		changes []Change
		want    string
	}{
		{"two Services", changes(service("web"), other), "other web of 2"},
		{"a slice of one", changes(endpoints("a")), "web of 1"},
		{"the same again", changes(endpoints("a")), " of 1"},
		{"a change that decides nothing", changes(endpoints("a", "b notready")), " of 1"},
		{"an endpoint", changes(endpoints("a", "b")), "web of 1"},
		{"a slice of nobody's", changes(slice("x", []string{"c"}, of("nobody"))), " of 0"},
		{"it becomes other's", changes(slice("x", []string{"c"}, of("other"))), "other of 1"},
		{"it becomes web's", changes(slice("x", []string{"c"})), "other web of 2"},
		{"away and back in one batch", []Change{gone(other), changes(other)[0]}, " of 1"},
		{"another node", changes(&Node{Name: "there", Addresses: addrs(thereIP)}), " of 0"},
		{"a ServiceCIDR", changes(serviceCIDR("kubernetes", "10.0.0.0/16")), " of 0"},
		{"a Pod without hostPorts", changes(convertPod(pod("p", 1))), " of 0"},
		{"a Service is removed", []Change{gone(other)}, "-other of 0"},
		{"it is already removed", []Change{gone(other)}, " of 0"},
		{"a Service becomes headless", changes(service("web", clusterIP("None"))), "-web of 1"},
		{"its slices matter no more", changes(endpoints("a")), " of 1"},
		{"an object that is added and removed", []Change{changes(other)[0], gone(other)}, " of 0"},
	}
	for _, s := range steps {
		if got := refs(table.Apply(s.changes)); got != s.want {
			t.Errorf("%s: %q, want %q", s.name, got, s.want)
		}
		checkSound(t, table)
	}
}

func TestAPlanStaysAsItIs(t *testing.T) {
	table := cluster(testConfig(), service("web"), endpoints("a", "b"))
	plan := table.Plan(web)
	table.Apply(changes(endpoints("c")))
	table.Apply(changes(service("thief", clusterIP(webIP))))
	if got := names(plan.Sets[0].Backends); got != "a b" {
		t.Errorf("the old plan has %s now", got)
	}
	// An unchanged plan keeps its pointer.
	plan = table.Plan(web)
	table.Apply(changes(endpoints("c")))
	if table.Plan(web) != plan {
		t.Error("an equal plan replaced the old one")
	}
}

func TestNodeViews(t *testing.T) {
	table := cluster(testConfig(), &Node{Name: "there", Addresses: addrs(thereIP), PodCIDRs: prefixes("10.1.1.0/24")})
	table.Apply(changes(&Node{Name: "here", Addresses: addrs(hereIP), PodCIDRs: prefixes("10.1.0.0/24", "fd01::/64")}))
	table.SetLocalAddresses(addrs("198.51.100.1", "127.0.0.1", "169.254.1.1", "fe80::1%eth0", "::ffff:198.51.100.1", "2001:db8:9::1%eth0"))
	for name, c := range map[string][2]string{
		"local":    {fmt.Sprint(table.node.local), "[192.0.2.1 198.51.100.1 2001:db8:9::1]"},
		"nodes":    {fmt.Sprint(slices.SortedFunc(maps.Keys(table.nodeAddrs), netip.Addr.Compare)), "[192.0.2.1 192.0.2.2 198.51.100.1 2001:db8:9::1]"},
		"PodCIDRs": {fmt.Sprint(table.PodCIDRs()), "[10.1.0.0/24 10.1.1.0/24 fd01::/64]"},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %s, want %s", name, c[0], c[1])
		}
	}
	table.Apply([]Change{gone(&Node{Name: "there"}), changes(&Node{Name: "here"})[0]})
	table.SetLocalAddresses(nil)
	if n := len(table.nodeAddrs) + len(table.node.local) + len(table.PodCIDRs()); n != 0 {
		t.Errorf("%d left", n)
	}
}

func healthPort(s *corev1.Service) { s.Spec.HealthCheckNodePort = 32000 }

func TestR34LocalReadyEndpoints(t *testing.T) {
	twoPorts := func(s *discoveryv1.EndpointSlice) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("admin"), Port: new(int32(9090))})
	}
	lines := func(l ...string) []string { return l }
	for _, c := range []struct {
		name    string
		objects []Object
		v4, v6  int
	}{
		{"none", nil, 0, 0},
		{"ready and local", []Object{endpoints("a here", "b there", "c", "d here notready", "e here terminating")}, 1, 0},
		{"each address once", []Object{slice("s", lines("a here", "b here"), twoPorts), slice("r", lines("a here"))}, 2, 0},
		{"each family for itself", []Object{endpoints("a here"), slice("s", lines("a here", "b here"), ipv6)}, 1, 2},
		{"weight 0", []Object{slice("s", lines("a here"), weight("0"))}, 0, 0},
		{"a slice without ports", []Object{slice("s", lines("a here"), func(s *discoveryv1.EndpointSlice) { s.Ports = nil })}, 0, 0},
	} {
		table := cluster(testConfig(), append(c.objects, service("web", dualStack, loadBalancer(vip), eTPLocal, healthPort))...)
		want := []HealthPort{
			{netip.AddrPortFrom(addrs(hereIP)[0], 32000), c.v4}, {netip.AddrPortFrom(addrs(hereIP6)[0], 32000), c.v6},
		}
		if got := table.Plan(web).HealthPorts; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
	}
}
