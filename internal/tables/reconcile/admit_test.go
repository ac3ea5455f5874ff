// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// in returns the Ref of a Service.
func in(namespace, name string) service.Ref {
	return service.Ref{Kind: service.KindService, Namespace: namespace, Name: name}
}

var day = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// wide returns a plan with many external IPs, created on a day of January.
func wide(owner service.Ref, number, frontends, created int) *service.Plan {
	plan := simplePlan(owner, number, 1)
	for i := 1; i < frontends; i++ {
		f := plan.Frontends[0]
		f.Kind, f.Key.Addr = service.ExternalIP, netip.AddrFrom4([4]byte{198, byte(number), byte(i / 250), byte(i%250 + 1)})
		plan.Frontends = append(plan.Frontends, f)
	}
	plan.Created = day.AddDate(0, 0, created)
	return plan
}

// tabled returns a plan with a Maglev table.
func tabled(owner service.Ref, number, backends, created int) *service.Plan {
	plan := maglevPlan(owner, number, backends, 251)
	plan.Created = day.AddDate(0, 0, created)
	return plan
}

// states returns the states and reasons of all objects that are not applied.
func states(s *Syncer) map[string]string {
	all := map[string]string{}
	for _, st := range s.Status() {
		if st.State != Applied {
			all[st.Owner.Namespace+"/"+st.Owner.Name] = string(st.State) + ": " + strings.Join(st.Reasons, "; ")
		}
	}
	return all
}

// wantStates fails unless exactly these objects are not applied, each with a reason that contains a text.
func wantStates(t *testing.T, s *Syncer, want map[string]string) {
	t.Helper()
	got := states(s)
	for name, text := range want {
		if !strings.Contains(got[name], text) {
			t.Errorf("%s is %q, want %q in it", name, got[name], text)
		}
	}
	for name, text := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is %s", name, text)
		}
	}
}

type plans = map[service.Ref]*service.Plan

// TestAdmission: what fits is served; objects that are served already precede new ones, and older ones
// precede newer ones. No object takes more than its share, and what does not fit is added as soon as there
// is room.
func TestAdmission(t *testing.T) {
	a, b, c, hostile := in("a", "web"), in("b", "web"), in("c", "web"), in("h", "hostile")
	type step struct {
		plans plans
		want  map[string]string // the others are applied
	}
	for name, test := range map[string]struct {
		limits  bpf.Limits
		shares  Shares
		steps   []step
		restart bool // between any two steps
	}{
		"fresh node, one object is larger than the table": {bpf.Limits{Frontends: 64}, Shares{}, []step{
			{plans{a: wide(a, 1, 4, 2), hostile: wide(hostile, 9, 100, 1), b: wide(b, 2, 4, 3)}, map[string]string{"h/hostile": "left out: it needs 100 entries of table frontends"}},
		}, false},
		"fresh node, the oldest first": {bpf.Limits{Frontends: 64}, Shares{}, []step{
			{plans{a: wide(a, 1, 30, 3), b: wide(b, 2, 30, 2), c: wide(c, 3, 30, 1)}, map[string]string{"a/web": "left out: it needs 30 entries of table frontends, and 2 of 64"}},
		}, false},
		"what is served goes before what is older, after a restart too": {bpf.Limits{Frontends: 64}, Shares{}, []step{
			{plans{a: wide(a, 1, 30, 3), b: wide(b, 2, 20, 3)}, nil},
			{plans{a: wide(a, 1, 30, 3), b: wide(b, 2, 20, 3), c: wide(c, 3, 30, 1)}, map[string]string{"c/web": "left out"}},
			{plans{b: wide(b, 2, 20, 3), c: wide(c, 3, 30, 1)}, nil},
		}, true},
		"one Service's share": {bpf.Limits{Frontends: 100}, Shares{Service: 25}, []step{
			{plans{a: wide(a, 1, 25, 2), hostile: wide(hostile, 9, 26, 1)}, map[string]string{"h/hostile": "one Service may have 25: make it smaller, or raise --service-share or --max-frontends"}},
		}, false},
		"one namespace's share": {bpf.Limits{Frontends: 100}, Shares{Namespace: 50}, []step{
			{plans{a: wide(a, 1, 30, 2), in("a", "x"): wide(in("a", "x"), 2, 30, 1), b: wide(b, 3, 30, 3)},
				map[string]string{"a/web": "all of namespace a may have 50: make it smaller, or raise --namespace-share"}},
		}, false},
		"served, and new addresses are too many: the others stay, with their new endpoints": {bpf.Limits{Frontends: 100}, Shares{Service: 25}, []step{
			{plans{a: wide(a, 1, 20, 1)}, nil},
			{plans{a: func() *service.Plan {
				p := wide(a, 1, 30, 1)
				p.Sets[0].Backends = []service.Backend{backendOf(77)}
				return p
			}()}, map[string]string{"a/web": "failed: its additions are left out: it needs 30"}},
			{plans{a: wide(a, 1, 20, 1)}, nil},
		}, true},
		"a share that is smaller than what is served takes nothing away": {bpf.Limits{Frontends: 100}, Shares{}, []step{
			{plans{a: wide(a, 1, 60, 1)}, nil},
			{plans{a: wide(a, 1, 60, 1), b: wide(b, 2, 20, 1)}, nil},
		}, true},
		"Maglev tables leave room for changes": {bpf.Limits{Slots: 1080}, Shares{}, []step{
			{plans{a: tabled(a, 1, 2, 1), b: tabled(b, 2, 2, 2), c: tabled(c, 3, 2, 3), hostile: tabled(hostile, 4, 2, 4)},
				map[string]string{"h/hostile": "left out: it needs 260 entries of table slots, and 40 of 1080 are free for it: raise --max-slots"}},
			{plans{a: tabled(a, 1, 3, 1), b: tabled(b, 2, 3, 2), c: tabled(c, 3, 3, 3)}, nil},
		}, false},
		"a Service that is served cannot take a share of slots": {bpf.Limits{Slots: 1024}, Shares{Service: 25}, []step{
			{plans{hostile: simplePlan(hostile, 1, 3)}, nil},
			{plans{hostile: func() *service.Plan {
				p := simplePlan(hostile, 1, 3)
				p.Sets[0].Backends[0].Weight, p.Sets[0].Backends[1].Weight = 255, 254
				return p
			}()}, map[string]string{"h/hostile": "failed: its changes are left out, and its previous state stays in effect: it needs 520 entries of table slots, and one Service may have 256"}},
		}, true},
		"endpoints": {bpf.Limits{Backends: 100}, Shares{Service: 25}, []step{
			{plans{hostile: simplePlan(hostile, 1, 26), a: simplePlan(a, 2, 25)}, map[string]string{"h/hostile": "needs 26 entries of table backends"}},
		}, false},
	} {
		for _, restart := range []bool{false, true} {
			if restart && !test.restart {
				continue
			}
			t.Run(fmt.Sprintf("%s/restart=%v", name, restart), func(t *testing.T) {
				k := newFakeKernel(t, test.limits)
				k.trusts = true
				s := newSyncer(t, k)
				s.SetShares(test.shares)
				before := plans{}
				for i, step := range test.steps {
					if restart && i > 0 {
						s = newSyncer(t, k)
						s.SetShares(test.shares)
						if name == "a share that is smaller than what is served takes nothing away" {
							s.SetShares(Shares{Service: 25})
						}
						before = nil
					}
					s.Apply(difference(before, step.plans))
					before = step.plans
					mustConverge(t, s)
					mustCollect(t, s)
					wantStates(t, s, step.want)
					if n := s.Stats().LeftOut; n != len(step.want) {
						t.Errorf("%d objects are left out, want %d", n, len(step.want))
					}
					wantServed(t, k, step.plans, step.want)
					if n, err := s.Audit(); n != 0 || err != nil {
						t.Errorf("an audit repairs %d, %v", n, err)
					}
				}
			})
		}
	}
}

// wantServed fails unless the tables have all frontends of applied objects, none of those that are left
// out, and the previous ones of objects that are served in part.
func wantServed(t *testing.T, k *fakeKernel, all plans, not map[string]string) {
	t.Helper()
	for ref, plan := range all {
		served := 0
		for _, f := range plan.Frontends {
			if _, ok := k.index.entries[codec.FrontendKey(f.Key)]; ok {
				served++
			}
		}
		text := not[ref.Namespace+"/"+ref.Name]
		switch {
		case text == "" && served != len(plan.Frontends), strings.HasPrefix(text, "failed") && served == 0,
			strings.HasPrefix(text, "left out") && served != 0:
			t.Errorf("%s: %d of %d frontends are in the tables, and it is to be %q", ref, served, len(plan.Frontends), text)
		}
	}
}

// TestUpdatesAreNotFrozen: whatever tenants have that leaves the tables full, endpoints of everybody can
// change, also in Maglev tables and weighted sets: the new ones are served after each change.
func TestUpdatesAreNotFrozen(t *testing.T) {
	const slots = 64 * 1024
	k := newFakeKernel(t, bpf.Limits{Slots: slots, Frontends: 4096})
	k.trusts = true
	s := newSyncer(t, k)
	r := rand.New(rand.NewPCG(1, 2))
	all := plans{}
	maglev := func(ref service.Ref, n int) *service.Plan {
		p := maglevPlan(ref, n, 1+r.IntN(10), 1021)
		p.Created = day.AddDate(0, 0, n)
		return p
	}
	for n := range 146 {
		ref := in(fmt.Sprint("tenant", n%10), fmt.Sprint("web", n))
		all[ref] = maglev(ref, n)
	}
	first := in("default", "first")
	all[first] = simplePlan(first, 200, 3)
	small := map[service.Ref]int{}
	for n := range 50 {
		ref := in("default", fmt.Sprint("small", n))
		small[ref], all[ref] = n, simplePlan(ref, 201+n, 1+r.IntN(30))
	}
	if err := s.Apply(difference(nil, all)); err == nil {
		t.Fatal("all tables fit: the test is void")
	}
	served := map[service.Ref]int{}
	for n := range 146 {
		ref := in(fmt.Sprint("tenant", n%10), fmt.Sprint("web", n))
		if s.admission.accounts[ref].admitted != nil {
			served[ref] = n
		}
	}
	if len(served) < 50 || len(served) == 146 {
		t.Fatalf("%d tables are served", len(served))
	}
	for i := range 300 {
		change := plans{first: simplePlan(first, 200, 1+i%7)}
		for ref, n := range small {
			if r.IntN(10) == 0 {
				change[ref] = simplePlan(ref, 201+n, 1+r.IntN(30))
			}
		}
		for ref, n := range served {
			if r.IntN(len(served)) < 3 {
				change[ref] = maglev(ref, n)
			}
		}
		if err := s.Apply(service.Delta{Plans: change}); err != nil {
			t.Fatalf("change %d: %v", i, err)
		}
		for ref, plan := range change {
			row := k.index.entries[codec.FrontendKey(plan.Frontends[0].Key)]
			d := k.rows.rows[row].Decisions[0]
			if plan.TableSize == 0 {
				if int(d.Count) != len(plan.Sets[0].Backends) {
					t.Fatalf("change %d: %s has %d backends, want %d", i, ref, d.Count, len(plan.Sets[0].Backends))
				}
			} else if n := k.listsOf(row).Members[0].Count; int(n) != len(plan.Sets[0].Backends) {
				t.Fatalf("change %d: %s has %d backends, want %d", i, ref, n, len(plan.Sets[0].Backends))
			}
		}
	}
}

// TestLeftOutInFewWords: the error of a change names ten objects that are left out and counts the others.
// It is reported once.
func TestLeftOutInFewWords(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{Frontends: 64})
	s := newSyncer(t, k)
	all := plans{}
	for n := range 100 {
		ref := in("h", fmt.Sprintf("hostile%02d", n))
		all[ref] = wide(ref, n, 65, n)
	}
	err := s.Apply(difference(nil, all))
	if err == nil || strings.Count(err.Error(), "\n") != maxNamed || !strings.Contains(err.Error(), "Service h/hostile00") ||
		!strings.Contains(err.Error(), "and 90 more objects") {
		t.Errorf("the error is %v", err)
	}
	other := in("a", "web")
	mustApply(t, s, service.Delta{Plans: plans{other: simplePlan(other, 200, 1)}})
	if next, err := s.Retry(time.Now().Add(time.Hour)); !next.IsZero() || err != nil {
		t.Errorf("what does not fit is retried at %v, %v, though nothing has changed", next, err)
	}
}
