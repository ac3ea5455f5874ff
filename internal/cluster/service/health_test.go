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
)

func healthChecked(pairs ...string) serviceOption {
	return func(s *corev1.Service) { s.Annotations = healthAnnotations(pairs...) }
}

// fail marks the targets at these addresses as failing; "a" is 10.1.0.1:8080.
func fail(t *Cluster, letters ...string) Delta {
	fails := map[Target]bool{}
	for target := range t.Targets() {
		fails[target] = slices.ContainsFunc(letters, func(l string) bool { return target.Addr.Addr() == netip.MustParseAddr(address(l, false)) })
	}
	return t.SetHealth(fails)
}

// membersOf returns web's set of a scope as letters; "-" if there is none.
func membersOf(t *Cluster, scope Scope) string {
	for _, s := range t.Plan(web).Sets {
		if s.Key.Scope == scope {
			return letters(s.Backends)
		}
	}
	return "-"
}

func letters(all []Backend) (s string) {
	for _, b := range all {
		s += string(rune('a' - 1 + b.Addr.Addr().As4()[3]))
	}
	return s
}

func podVerdict(t *Cluster) string {
	for _, f := range t.Plan(web).Frontends {
		if f.Kind == ClusterIP {
			return f.Decisions[FromPod].Verdict.String()
		}
	}
	return ""
}

// H1, H2: a failing endpoint is neither ready nor serving; a passing one follows its conditions. H4: what
// happens if all fail.
func TestHealthIsReadiness(t *testing.T) {
	for _, test := range []struct {
		name      string
		endpoints []string
		fail      string
		allDown   string
		want      string // cluster set, local set, verdict
	}{
		{"all pass", []string{"a here", "b there", "c notready"}, "", "reject", "ab a balance"},
		{"one fails", []string{"a here", "b there"}, "a", "reject", "b - balance"},
		{"all fail", []string{"a here", "b there"}, "ab", "reject", "- - reject"},
		{"all fail, but it is better to try", []string{"a here", "b there", "c notready"}, "abc", "serve", "ab a balance"},
		{"one passes, so the others do not count", []string{"a here", "b there"}, "a", "serve", "b - balance"},
		{"those that terminate are tried", []string{"a here", "b terminating"}, "a", "reject", "b - balance"},
		{"if they pass", []string{"a here", "b terminating"}, "ab", "reject", "- - reject"},
		{"a failing one has no say in hints", []string{"a zone=east", "b", "c zone=west"}, "b", "reject", "a - balance"},
	} {
		table := cluster(testConfig(), service("web", eTPLocal, nodePort(30080), healthChecked("", "tcp", "all-down", test.allDown)), endpoints(test.endpoints...))
		fail(table, strings.Split(test.fail, "")...)
		if got := fmt.Sprint(membersOf(table, ScopeCluster), " ", membersOf(table, ScopeLocal), " ", podVerdict(table)); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// R29, R34: a failing endpoint keeps no UDP flows and does not count as a local ready one.
func TestHealthElsewhere(t *testing.T) {
	table := cluster(testConfig(), service("web", protocol("UDP"), loadBalancer(vip), eTPLocal, healthPort, healthChecked("", "tcp", "port", "9000")),
		slice("web-1", []string{"a here", "b terminating", "c terminating"}, udp))
	if got := letters(table.Plan(web).Retained[0].Backends); got != "bc" {
		t.Errorf("retained: %s", got)
	}
	if n := table.Plan(web).HealthPorts[0].Ready; n != 1 {
		t.Errorf("%d local ready endpoints, want 1", n)
	}
	fail(table, "a", "c")
	if kept := table.Plan(web).Retained; len(kept) != 0 || membersOf(table, ScopeCluster) != "b" {
		t.Errorf("retained: %v, set for new flows: %s", kept, membersOf(table, ScopeCluster))
	}
	if n := table.Plan(web).HealthPorts[0].Ready; n != 0 {
		t.Errorf("%d local ready endpoints, want none", n)
	}
}

// A health check of UDP endpoints needs a TCP port.
func TestHealthOfUDP(t *testing.T) {
	table := cluster(testConfig(), service("web", protocol("UDP"), healthChecked("", "tcp")), slice("web-1", []string{"a"}, udp))
	want := []string{"port 80/UDP: its endpoints are not checked, because checks use TCP: set the annotation beeline.io/health-check-port to a TCP port of the endpoints"}
	if got := problemTexts(table.Plan(web).Problems); !slices.Equal(got, want) || len(slices.Collect(table.Targets())) > 0 {
		t.Errorf("%q", got)
	}
}

// Services with the same check of an address share a target; different checks do not. Only affected Services
// are resolved again.
func TestTargetsAreShared(t *testing.T) {
	config := testConfig()
	other := func(name string, n int, pairs ...string) *Service {
		return service(name, clusterIP(fmt.Sprintf("10.0.0.%d", n)), healthChecked(pairs...))
	}
	table := cluster(config, service("web", healthChecked("", "tcp")), other("same", 2, "", "tcp"), other("apart", 3, "", "http"), other("none", 4),
		endpoints("a", "b"), slice("same-1", []string{"a"}, of("same")), slice("apart-1", []string{"a"}, of("apart")), slice("none-1", []string{"a"}, of("none")))
	if n := len(slices.Collect(table.Targets())); n != 3 {
		t.Errorf("%d targets, want 3", n)
	}
	tcp := Target{Addr: netip.MustParseAddrPort("10.1.0.1:8080"), Probe: service("x", healthChecked("", "tcp")).Check.Probe}
	if users := table.TargetServices(tcp); len(users) != 2 || users[0].Name != "same" || users[1] != web {
		t.Errorf("users: %v", users)
	}
	delta := table.SetHealth(map[Target]bool{tcp: true, {Addr: tcp.Addr}: true})
	if len(delta.Plans) != 2 || delta.Resolved != 2 || delta.Targets {
		t.Errorf("changed plans: %v", slices.Collect(maps.Keys(delta.Plans)))
	}
	if again := table.SetHealth(map[Target]bool{tcp: true}); again.Resolved != 0 {
		t.Errorf("the same again resolves %d", again.Resolved)
	}
	// The target stays while a Service uses it, and is removed with the last one.
	table.Apply([]Change{gone(service("same"))})
	if membersOf(table, ScopeCluster) != "b" {
		t.Errorf("web has %s", membersOf(table, ScopeCluster))
	}
	if delta := table.Apply([]Change{gone(service("web"))}); !delta.Targets || len(slices.Collect(table.Targets())) != 1 {
		t.Errorf("remaining: %v", slices.Collect(table.Targets()))
	}
	table.Apply(changes(service("web", healthChecked("", "tcp"))))
	if membersOf(table, ScopeCluster) != "ab" {
		t.Errorf("a target that is added again does not fail yet, but web has %s", membersOf(table, ScopeCluster))
	}
}

// H5: the previous valid check stays until there is another one or none.
func TestWrongAnnotationsKeepTheCheck(t *testing.T) {
	table := cluster(testConfig(), service("web", healthChecked("", "tcp")), endpoints("a", "b"))
	fail(table, "a")
	for range 2 {
		table.Apply(changes(service("web", healthChecked("", "http", "port", "x"))))
		if p := problemTexts(table.Plan(web).Problems); membersOf(table, ScopeCluster) != "b" || len(p) != 1 || !strings.HasSuffix(p[0], "; until then the previous valid check stays in use") {
			t.Errorf("%s, %q", membersOf(table, ScopeCluster), p)
		}
	}
	table.Apply(changes(service("web")))
	if membersOf(table, ScopeCluster) != "ab" || len(problemTexts(table.Plan(web).Problems)) > 0 {
		t.Errorf("%+v", table.Plan(web))
	}
	table.Apply(changes(service("web", healthChecked("", "http", "port", "x"))))
	if p := problemTexts(table.Plan(web).Problems); membersOf(table, ScopeCluster) != "ab" || len(p) != 1 || !strings.HasSuffix(p[0], "; until then its endpoints are not checked") {
		t.Errorf("%s, %q", membersOf(table, ScopeCluster), p)
	}
}

// The state of a Cluster depends on the objects and on the failing targets, not on their history.
func TestHealthProperty(t *testing.T) {
	withSeeds(t, 60, func(t *testing.T, r random) {
		config := r.config()
		w := world{objects: map[Ref]Object{}, local: r.localAddresses()}
		table := NewCluster(config)
		table.SetLocalAddresses(w.local)
		for range 30 {
			batch := r.batch()
			for i, c := range batch {
				if s, ok := c.Object.(*Service); ok && r.maybe(60) {
					checked := *s
					checked.Check, checked.CheckErrors = ParseHealthCheck(healthAnnotations("", r.oneOf("tcp", "http"), "port", r.oneOf("8080", "9000"), "all-down", r.oneOf("serve", "reject")))
					batch[i].Object = &checked
				}
			}
			w.apply(batch)
			table.Apply(batch)
			fails := map[Target]bool{}
			for target := range table.Targets() {
				if r.maybe(20) {
					fails[target] = r.maybe(60)
				}
			}
			table.SetHealth(fails)

			fresh, down := w.table(config), map[Target]bool{}
			for target := range table.health.down {
				down[target] = true
			}
			fresh.SetHealth(down)
			if diff := diffPlans(snapshot(fresh), snapshot(table)); diff != "" {
				t.Fatal(diff)
			}
			if !maps.Equal(fresh.health.down, table.health.down) || len(fresh.health.services) != len(table.health.services) || !maps.EqualFunc(fresh.health.checked, table.health.checked, slices.Equal) {
				t.Fatalf("health is %+v, computed from scratch %+v", table.health, fresh.health)
			}
		}
	})
}
