// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

func portNamed(name string) sliceOption {
	return func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = &name }
}

func withoutPorts(s *discoveryv1.EndpointSlice) { s.Ports = nil }

// TestRefusalsSayWhy: a plan contains why clients are rejected at a port (R10, R11, R16, R18). In manifests it
// is a problem if no slice has the port (R5).
func TestRefusalsSayWhy(t *testing.T) {
	for _, test := range []struct {
		name    string
		service *Service
		slices  []*EndpointSlice
		slip    bool
		want    string // empty: nothing is rejected
	}{
		{"served", service("web"), []*EndpointSlice{endpoints("a")}, false, ""},
		{"no slice", service("web"), nil, true, "IPv4 port http/TCP: clients are rejected: no EndpointSlice of addressType IPv4 has the label kubernetes.io/service-name: web"},
		{"of one family only", service("web", dualStack), []*EndpointSlice{endpoints("a")}, true, "IPv6 port http/TCP: clients are rejected: no EndpointSlice of addressType IPv6"},
		{"of another port", service("web"), []*EndpointSlice{slice("web-1", []string{"a"}, portNamed("htpp"))}, true, "have no port of this name and protocol, but htpp/TCP"},
		{"of another protocol", service("web"), []*EndpointSlice{slice("web-1", []string{"a"}, udp)}, true, "but http/UDP"},
		{"without ports", service("web"), []*EndpointSlice{slice("web-1", []string{"a"}, withoutPorts)}, true, "have no ports"},
		{"scaled to zero", service("web"), []*EndpointSlice{slice("web-1", nil, withoutPorts)}, true, "IPv4 port http/TCP: clients are rejected: its EndpointSlices have no endpoints"},
		{"not ready", service("web"), []*EndpointSlice{endpoints("a notready", "b notserving")}, true, "no endpoint is usable: 2 not ready"},
		{"weight 0", service("web"), []*EndpointSlice{slice("web-1", []string{"a"}, weight("0"))}, true, "no endpoint is usable: 1 of weight 0"},
		{"Local, none here", service("web", iTPLocal), []*EndpointSlice{endpoints("a there")}, false, "internalTrafficPolicy is Local, and of 1 usable endpoint none is on this node"},
		{"Local, one here", service("web", iTPLocal), []*EndpointSlice{endpoints("a there", "b here")}, false, ""},
	} {
		for _, manifests := range []bool{false, true} {
			config := testConfig()
			config.Manifests = manifests
			objects := []Object{test.service}
			for _, s := range test.slices {
				objects = append(objects, s)
			}
			plan := cluster(config, objects...).Plan(web)
			got, other := plan.Refusals, problemTexts(plan.Problems)
			want := strings.Replace(test.want, "clients are rejected: ", "", 1)
			if manifests && test.slip {
				got, other, want = other, got, test.want
			}
			if len(other) > 0 || !strings.Contains(strings.Join(got, "\n"), want) || (want == "") != (len(got) == 0) {
				t.Errorf("%s (manifests %t): problems %q, refusals %q, want %q", test.name, manifests, plan.Problems, plan.Refusals, want)
			}
		}
	}
}

// TestRefusalsByHealth: a refusal counts the endpoints that fail their health check (H1).
func TestRefusalsByHealth(t *testing.T) {
	s := service("web")
	s.Check = HealthCheck{Probe: Probe{Kind: "tcp"}}
	table := cluster(testConfig(), s, endpoints("a", "b"))
	down := map[Target]bool{}
	for target := range table.Targets() {
		down[target] = true
	}
	table.SetHealth(down)
	if got := table.Plan(web).Refusals; len(got) != 1 || !strings.Contains(got[0], "2 down by the health check") {
		t.Errorf("refusals %q", got)
	}
}

// All backends of one port in one family down is a problem, which names both, though others are up; all of both
// families are one for each.
func TestAllOfAPortDown(t *testing.T) {
	s := service("web", dualStack)
	s.Check = HealthCheck{Probe: Probe{Kind: CheckTCP}}
	table := cluster(testConfig(), s, endpoints("a", "b"), slice("web-6", []string{"a", "b"}, ipv6))
	var all []Target
	for target := range table.Targets() {
		all = append(all, target)
	}
	for _, c := range []struct {
		down func(Target) bool
		want []string
	}{
		{func(Target) bool { return false }, nil},
		{func(target Target) bool { return target.Addr.Addr().Is6() }, []string{"IPv6"}},
		{func(target Target) bool { return target.Addr == all[0].Addr }, nil},
		{func(Target) bool { return true }, []string{"IPv4", "IPv6"}},
	} {
		down := map[Target]bool{}
		for _, target := range all {
			down[target] = c.down(target)
		}
		table.SetHealth(down)
		got := table.Plan(web).Problems
		if len(got) != len(c.want) {
			t.Errorf("problems %q, want those of %q", got, c.want)
			continue
		}
		for i, family := range c.want {
			if want := "AllBackendsDown: " + family + " port http/TCP: clients are rejected: no endpoint is usable: 2 down"; !strings.HasPrefix(got[i].String(), want) {
				t.Errorf("problem %q, want %q", got[i], want)
			}
		}
	}
}

// A port with TLS behind a check by http, and the reverse, is one warning for both families.
func TestUnlikelyChecks(t *testing.T) {
	withTLS := func(s *discoveryv1.EndpointSlice) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("https"), Port: new(int32(8443))})
	}
	for _, c := range []struct {
		check Probe
		port  uint16 // of the check
		want  string
	}{
		{Probe{Kind: CheckHTTP}, 0, "port 443 (https/TCP) is checked by http"},
		{Probe{Kind: CheckHTTPS}, 0, "port 80 (http/TCP) is checked by https"},
		{Probe{Kind: CheckHTTP}, 8080, ""},
		{Probe{Kind: CheckTCP}, 0, ""},
	} {
		s := service("web", dualStack)
		s.Ports = append(s.Ports, ServicePort{Name: "https", Protocol: TCP, Port: 443})
		s.Check = HealthCheck{Probe: c.check, Port: c.port}
		plan := cluster(testConfig(), s, slice("web-1", []string{"a"}, withTLS), slice("web-6", []string{"a"}, ipv6, withTLS)).Plan(web)
		var got []string
		for _, p := range plan.Problems {
			got = append(got, p.Message)
		}
		if want := strings.Fields(c.want); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s at port %d: problems %q, want %q", c.check.Kind, c.port, got, c.want)
		}
	}
}

// TestStrays: a slice of a Service that does not exist is reported, with the Service for which it is probably
// meant. One without the label is reported by the source.
func TestStrays(t *testing.T) {
	far := service("api")
	far.Namespace = "shop"
	table := cluster(testConfig(), service("web"), far,
		slice("right", []string{"a"}), slice("typing", []string{"a"}, of("wbe")), slice("elsewhere", []string{"a"}, of("api")), slice("unknown", nil, of("nothing-like-it")), slice("nameless", nil, of("")))
	want := map[string]string{
		"typing":    `there is no Service default/wbe, did you mean "web"?`,
		"elsewhere": "there is no Service default/api, but one in namespace shop",
		"unknown":   "there is no Service default/nothing-like-it; a slice belongs",
	}
	strays := table.OrphanSlices()
	if len(strays) != len(want) {
		t.Errorf("orphan slices %v", strays)
	}
	for _, s := range strays {
		if reason := want[s.Object.Name]; reason == "" || !strings.Contains(s.Problem.Message, reason) {
			t.Errorf("%s: %q, want %q", s.Object, s.Problem.Message, reason)
		}
	}
	table.Apply([]Change{{Ref: Ref{KindService, "default", "wbe"}, Object: service("wbe", clusterIP("10.0.0.9"))}})
	if n := len(table.OrphanSlices()); n != len(want)-1 {
		t.Errorf("%d orphan slices after their Service was added", n)
	}
}
