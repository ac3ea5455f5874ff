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

// fail has the targets at these addresses fail; "a" is 10.1.0.1:8080.
func fail(t *Table, letters ...string) Delta {
	fails := map[Target]bool{}
	for target := range t.Targets() {
		fails[target] = slices.ContainsFunc(letters, func(l string) bool { return target.Addr.Addr() == netip.MustParseAddr(address(l, false)) })
	}
	return t.SetHealth(fails)
}

// membersOf is web's set of a scope, by letter; "-" if there is none.
func membersOf(t *Table, scope Scope) string {
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

func podVerdict(t *Table) string {
	for _, f := range t.Plan(web).Frontends {
		if f.Kind == ClusterIP {
			return f.Decisions[FromPod].Verdict.String()
		}
	}
	return ""
}

// H1, H2: who fails is neither ready nor serving; who passes is no more than its
// conditions say. H4: what happens if all fail.
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
		if got := fmt.Sprint(membersOf(table, Cluster), " ", membersOf(table, Local), " ", podVerdict(table)); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

// R29, R34: a failing endpoint keeps no UDP flows and is no local ready one.
func TestHealthElsewhere(t *testing.T) {
	table := cluster(testConfig(), service("web", protocol("UDP"), healthChecked("", "tcp", "port", "9000")),
		slice("web-1", []string{"a here", "b terminating", "c terminating"}, udp))
	if got := letters(table.Plan(web).Kept[0].Backends); got != "bc" {
		t.Errorf("flows stay with %s", got)
	}
	if n := table.LocalReadyEndpoints(web, IPv4); n != 1 {
		t.Errorf("%d local ready endpoints, want 1", n)
	}
	fail(table, "a", "c")
	if kept := table.Plan(web).Kept; len(kept) != 0 || membersOf(table, Cluster) != "b" {
		t.Errorf("flows stay with %v, new ones go to %s", kept, membersOf(table, Cluster))
	}
	if n := table.LocalReadyEndpoints(web, IPv4); n != 0 {
		t.Errorf("%d local ready endpoints, want none", n)
	}
}

// A check of UDP needs a port for TCP.
func TestHealthOfUDP(t *testing.T) {
	table := cluster(testConfig(), service("web", protocol("UDP"), healthChecked("", "tcp")), slice("web-1", []string{"a"}, udp))
	want := []string{"port 80/UDP: its endpoints are not checked, for a check uses TCP: name a TCP port of theirs in the annotation beeline.io/health-check-port"}
	if got := table.Plan(web).Problems; !slices.Equal(got, want) || len(slices.Collect(table.Targets())) > 0 {
		t.Errorf("%q", got)
	}
}

// Services that ask the same of an address share a target; who asks something else
// does not. Only those concerned are resolved again.
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
	tcp := Target{netip.MustParseAddrPort("10.1.0.1:8080"), service("x", healthChecked("", "tcp")).Check.Probe}
	if users := table.TargetUsers(tcp); len(users) != 2 || users[0].Name != "same" || users[1] != web {
		t.Errorf("users are %v", users)
	}
	delta := table.SetHealth(map[Target]bool{tcp: true, {Addr: tcp.Addr}: true})
	if len(delta.Plans) != 2 || delta.Resolved != 2 || delta.Targets {
		t.Errorf("altered: %v", slices.Collect(maps.Keys(delta.Plans)))
	}
	if again := table.SetHealth(map[Target]bool{tcp: true}); again.Resolved != 0 {
		t.Errorf("the same again resolves %d", again.Resolved)
	}
	// The target stays as long as somebody uses it, and is forgotten with the last.
	table.Apply([]Change{gone(service("same"))})
	if membersOf(table, Cluster) != "b" {
		t.Errorf("web has %s", membersOf(table, Cluster))
	}
	if delta := table.Apply([]Change{gone(service("web"))}); !delta.Targets || len(slices.Collect(table.Targets())) != 1 {
		t.Errorf("left: %v", slices.Collect(table.Targets()))
	}
	table.Apply(changes(service("web", healthChecked("", "tcp"))))
	if membersOf(table, Cluster) != "ab" {
		t.Errorf("a target that is wanted anew is not known to fail, but web has %s", membersOf(table, Cluster))
	}
}

// H5: the check that was right before stays, until there is another or none.
func TestWrongAnnotationsKeepTheCheck(t *testing.T) {
	table := cluster(testConfig(), service("web", healthChecked("", "tcp")), endpoints("a", "b"))
	fail(table, "a")
	for range 2 {
		table.Apply(changes(service("web", healthChecked("", "http", "port", "x"))))
		if p := table.Plan(web).Problems; membersOf(table, Cluster) != "b" || len(p) != 1 || !strings.HasSuffix(p[0], "; the check that was right before goes on") {
			t.Errorf("%s, %q", membersOf(table, Cluster), p)
		}
	}
	table.Apply(changes(service("web")))
	if membersOf(table, Cluster) != "ab" || len(table.Plan(web).Problems) > 0 {
		t.Errorf("%+v", table.Plan(web))
	}
	table.Apply(changes(service("web", healthChecked("", "http", "port", "x"))))
	if p := table.Plan(web).Problems; membersOf(table, Cluster) != "ab" || len(p) != 1 || !strings.HasSuffix(p[0], "; its endpoints are not checked until then") {
		t.Errorf("%s, %q", membersOf(table, Cluster), p)
	}
}

// What a Table holds depends on the objects and on who fails, not on the way there.
func TestHealthProperty(t *testing.T) {
	withSeeds(t, 60, func(t *testing.T, r random) {
		config := r.config()
		w := world{objects: map[Ref]Object{}, local: r.localAddresses()}
		table := NewTable(config)
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
			if !maps.Equal(fresh.health.down, table.health.down) || len(fresh.health.users) != len(table.health.users) || !maps.EqualFunc(fresh.health.checked, table.health.checked, slices.Equal) {
				t.Fatalf("health is %+v, made anew %+v", table.health, fresh.health)
			}
		}
	})
}
