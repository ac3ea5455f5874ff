// SPDX-License-Identifier: Apache-2.0

package assess

import (
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/tables/reconcile"
)

// An API server that has been unreachable for long is a condition; a restarting one is not, and manifests have
// no server.
func TestAway(t *testing.T) {
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for _, test := range []struct {
		name       string
		connection *source.Connection
		want       string
	}{
		{"manifests", nil, ""},
		{"connected", &source.Connection{Connected: true, Since: ago(time.Hour)}, ""},
		{"restarting", &source.Connection{Since: ago(5 * time.Second), Error: "refused"}, ""},
		{"away", &source.Connection{Since: ago(time.Hour), Error: "refused"}, "has not answered for 1h0m0s, and the agent sees no changes: the last state stays in use: refused"},
	} {
		s := api.Status{Running: true, Source: api.Source{Connection: test.connection}}
		Status(&s)
		got := s.Conditions.String()
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: conditions %q, want %q", test.name, got, test.want)
		}
	}
}

// The status counts the contested slots, and says for how long at most they stay so.
func TestUntracked(t *testing.T) {
	for _, test := range []struct {
		untracked int
		settling  reconcile.SlotUsage
		want      string
	}{
		{0, reconcile.SlotUsage{}, ""},
		{2, reconcile.SlotUsage{Slots: 502}, "2 frontends need no conntrack entries for flows to other nodes"},
		{2, reconcile.SlotUsage{Slots: 502, Contested: 251}, "2 frontends need no conntrack entries for flows to other nodes; for now 251 of 502 slots do, until no conntrack entry leads to another backend"},
		{0, reconcile.SlotUsage{Slots: 251, Contested: 251, Seconds: 3661}, "0 frontends need no conntrack entries for flows to other nodes; for now 251 of 251 slots do, for at most 1h1m1s more unless tracked connections to other backends continue"},
	} {
		s := api.Status{Sync: reconcile.Stats{Untracked: test.untracked}, UntrackedSlots: test.settling}
		if got := s.Untracked(); got != test.want {
			t.Errorf("%+v: %q, want %q", test.settling, got, test.want)
		}
	}
}

// R39: a deleted Node is not reported as a wrong node name.
func TestNodeDeleted(t *testing.T) {
	const unknown, deleted = `NodeUnknown: Node n: no Node is named "n"`, "NodeDeleted: Node n: Node n has been deleted"
	for _, test := range []struct {
		status api.Status
		want   string
	}{
		{api.Status{Running: true, Node: "n"}, ""},
		{api.Status{Running: true, Node: "n", NodeUnknown: true}, unknown},
		{api.Status{Running: true, Node: "n", NodeDeleted: true}, deleted},
	} {
		Status(&test.status)
		all := test.status.Conditions
		if got := all.String(); len(all) > 1 || test.want == "" && got != "" || !strings.HasPrefix(got, test.want) {
			t.Errorf("no Node has the agent's name n: %t, its Node was deleted: %t: the conditions are %q, want one that begins with %q (R39)", test.status.NodeUnknown,
				test.status.NodeDeleted, got, test.want)
		}
	}
}

// One object has at most one condition of a kind, and each names the object.
func TestConditionsOfObjects(t *testing.T) {
	taken := func(n int) (all condition.List) {
		for i := range n {
			all = append(all, condition.AddressTaken.New("NodePort %d is taken", i))
		}
		return all
	}
	web := service.Ref{Kind: service.KindService, Namespace: "default", Name: "web"}
	other := service.Ref{Kind: service.KindService, Namespace: "default", Name: "other"}
	s := api.Status{Running: true, ObjectsWithProblems: []reconcile.Status{
		{Owner: web, State: reconcile.LeftOut, Reasons: []string{"no room", "no room there"}, Problems: taken(1000)},
		{Owner: other, State: reconcile.Applied, Problems: taken(1)},
	}}
	Status(&s)
	want := `ObjectLeftOut: Service default/web: left out: no room (and 1 more): raise the limit or the share that the message names, and restart the agent
AddressTaken: Service default/other: NodePort 0 is taken: change one of them
AddressTaken: Service default/web: NodePort 0 is taken (and 999 more): change one of them`
	if got := s.Conditions.String(); got != want {
		t.Errorf("conditions\n%s\nwant\n%s", got, want)
	}
}

// Failures that the reconciler counts are a condition even if no object is known to have them.
func TestConditionsOfCounts(t *testing.T) {
	for _, test := range []struct {
		name   string
		status api.Status
		want   *condition.Kind
	}{
		{"well", api.Status{Running: true}, nil},
		{"failing", api.Status{Running: true, Sync: reconcile.Stats{Failing: 1}}, condition.ObjectNotApplied},
		{"left out", api.Status{Running: true, Sync: reconcile.Stats{LeftOut: 1}}, condition.ObjectLeftOut},
		{"full", api.Status{Running: true, Tables: []reconcile.Usage{{Table: "slots", Used: 91, Limit: 100, Flag: "max-slots"}}}, condition.TableNearlyFull},
		{"not full", api.Status{Running: true, Tables: []reconcile.Usage{{Table: "slots", Used: 90, Limit: 100}}}, nil},
		{"dead", api.Status{}, condition.AgentNotRunning},
		{"some down", withDown(1, 2), condition.BackendsDown},
		{"all down", withDown(2, 2), condition.AllBackendsDown},
	} {
		Status(&test.status)
		all := test.status.Conditions
		if test.want == nil && len(all) > 0 || test.want != nil && (len(all) != 1 || !all.Has(test.want)) {
			want := "none"
			if test.want != nil {
				want = string(test.want.Code) + " alone"
			}
			t.Errorf("an agent that is %q has the conditions %q, want %s", test.name, all, want)
		}
	}
}

// A table that is nearly full has the flag that raises its limit, or says that there is none.
func TestRemedyOfAFullTable(t *testing.T) {
	for flag, want := range map[string]string{"max-slots": "raise --max-slots", "": "remove unneeded objects; the size of this table is fixed"} {
		if c := fullTable(reconcile.Usage{Table: "slots", Used: 91, Limit: 100, Flag: flag}); c.Remedy != want || c.Object != "slots" {
			t.Errorf("the remedy for %q with flag %q is %q, want %q", c.Object, flag, c.Remedy, want)
		}
	}
}

func withDown(down, of int) api.Status {
	h := &api.HealthStatus{Backends: of, Services: map[string]int{"default/web": of}}
	for range down {
		h.Down = append(h.Down, api.BackendHealth{Service: "default/web", Why: "no answer"})
	}
	return api.Status{Running: true, Health: h}
}
