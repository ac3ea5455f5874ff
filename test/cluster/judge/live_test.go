// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/test/cluster"
)

// How often each client of a load sends. The load on kube-proxy's side is there for comparison.
var (
	pace       = [2]time.Duration{50 * time.Millisecond, 25 * time.Millisecond}
	steadyPace = [2]time.Duration{500 * time.Millisecond, 200 * time.Millisecond} // 36 clients
	// kube-proxy drops silently; Beeline never does.
	livePatience = [2]time.Duration{300 * time.Millisecond, 10 * time.Second}
	// enough reaches each of three backends, on either side, except once in 10^9 times.
	enough = effort{300 * time.Millisecond, 8}
)

// live is a pair whose objects change.
type live struct {
	pair        *Pair
	differences []*Difference
	steady      *Scenario          // of the Service that does not change
	delays      [2][]time.Duration // of all changes: until clients first saw them
}

// story is a Service and its changes.
type story struct {
	what    string
	rules   string // proved by it
	subject Subject
	to      []string // addresses to probe, see Scenario.address
	probes  []Probe  // instead of those of questions
	prepare func(context.Context, *cluster.Cluster) error
	changes []change
}

// change is one change of a Service.
type change struct {
	what string
	edit func(*Subject)
	// order reorders the writes.
	order func([]write)
	// by replaces the writes.
	by func(context.Context, *cluster.Cluster) error
	// between admits what may be seen in between because only several writes together are consistent.
	between func(Observation) bool
	// udp says what happens to connected UDP sockets: lives, ends; empty: depends. With kube-proxy those
	// that end here continue with another backend.
	udp string
}

// Objects change while connections are made. A connection gets the state before or the state after, a Service
// without changes is not affected, and then both nodes do the same again.
func TestLiveChanges(t *testing.T) {
	t.Parallel()
	differences, err := ReadDifferences()
	if err != nil {
		t.Fatal(err)
	}
	l := &live{pair: New(t, beeline, Options{}), differences: differences}
	steady := base(0)
	steady.Type, steady.External, steady.Ingress = "LoadBalancer", "Cluster", "VIP"
	probes := questions("clusterIP", "nodePort", "ingress")
	first, _ := l.begin(t, &steady, probes)
	timeline := Timeline{first}
	for _, outcome := range first.Seen[1] {
		if len(outcome.backends()) != len(steady.Endpoints) || len(outcome) != len(steady.Endpoints) {
			t.Fatalf("the steady Service answers %v", outcome)
		}
	}
	l.steady = &steady.Scenario
	held, _ := l.hold(t, &steady, first, "all changes", false)
	loads := l.load(t.Context(), &steady.Scenario, probes, steadyPace)
	for _, s := range stories {
		t.Run(s.what, func(t *testing.T) { l.run(t, &s) })
	}
	t.Run("random changes (R1 to R30)", l.random)
	check(t, "R30", lives, held)
	for side, delays := range l.delays {
		if slices.Sort(delays); len(delays) == 0 {
			continue // not run because of -run
		}
		t.Logf("%s: clients see a change after %v (median), %v at most, of %d", l.pair.Sides[side].Name,
			delays[len(delays)/2].Round(time.Millisecond), delays[len(delays)-1].Round(time.Millisecond), len(delays))
	}
	for side, seen := range stop(t, loads) {
		failures := timeline.check(side, seen)
		t.Logf("%s: a Service without changes: %d connections, %d not answered", l.pair.Sides[side].Name, len(seen), len(failures))
		if side == 1 && len(failures) > 0 {
			t.Errorf("a Service without changes fails:\n%s", strings.Join(failures[:min(len(failures), shown)], "\n"))
		}
	}
}

// base is a Service with one endpoint on each node.
func base(number int, hosts ...string) Subject {
	if hosts == nil {
		hosts = []string{"a2", "b1"}
	}
	return Subject{Scenario: Scenario{
		Number: number, Type: "ClusterIP", Families: "v4v6", Ports: "tcp+udp", Internal: "Cluster", Slices: "one", Endpoints: ready(hosts...),
	}}
}

func ready(hosts ...string) (all []Endpoint) {
	for _, host := range hosts {
		all = append(all, Endpoint{Host: host, State: "ready"})
	}
	return all
}

// questions are probes by a pod and by the node, in both families.
func questions(to ...string) (all []Probe) {
	for _, address := range to {
		for _, from := range []string{"a1", judged} {
			for _, family := range []string{"v4", "v6"} {
				for _, socket := range [][2]string{{"tcp", "plain"}, {"udp", "plain"}, {"udp", "unconnected"}} {
					all = append(all, Probe{From: from, To: address, Family: family, Protocol: socket[0], Port: "known", Socket: socket[1]})
				}
			}
		}
	}
	return all
}

func (l *live) load(ctx context.Context, s *Scenario, probes []Probe, pace [2]time.Duration) (loads [2]*Load) {
	for i, side := range l.pair.Sides {
		loads[i] = StartLoad(ctx, side, s, probes, pace[i], livePatience[i])
	}
	return loads
}

func stop(t *testing.T, loads [2]*Load) (seen [2][]Sighting) {
	t.Helper()
	for i, load := range loads {
		var err error
		if seen[i], err = load.Stop(); err != nil {
			t.Errorf("the load on the side of %s: %v", load.side.Name, err)
		}
	}
	return seen
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nowhere is a Subject without objects.
func nowhere(s *Subject) *Subject {
	return s.edited(func(s *Subject) { s.Absent, s.Layout = true, [][]int{} })
}

// begin creates a Service, and probes it.
func (l *live) begin(t *testing.T, s *Subject, probes []Probe) (*Epoch, map[Probe]*Verdict) {
	t.Helper()
	e := l.write(t, nowhere(s), s, &change{what: "its creation"})
	l.await(t, e)
	return e, l.look(t, e, s, probes, nil)
}

// write makes a change.
func (l *live) write(t *testing.T, old, new *Subject, c *change) *Epoch {
	t.Helper()
	ctx := t.Context()
	e := &Epoch{Change: c.what, Between: c.between, Begin: time.Now()}
	if c.by != nil {
		must(t, c.by(ctx, l.pair.Cluster))
	} else {
		writes := l.pair.writes(old, new)
		if c.order != nil {
			c.order(writes)
		}
		for _, w := range writes {
			if err := w.do(ctx); err != nil {
				t.Fatalf("%s: %s: %v", c.what, w.what, err)
			}
		}
	}
	if new.Selector != "" && !new.Absent {
		must(t, l.pair.awaitController(ctx, new))
	}
	e.Written = time.Now()
	return e
}

// await waits until both sides have what was written, and calls then when Beeline has.
func (l *live) await(t *testing.T, e *Epoch, then ...func()) {
	t.Helper()
	mark, err := l.pair.Cluster.Mark(t.Context())
	must(t, err)
	must(t, mark.AwaitAgent(l.pair.Agent))
	e.Served[1] = time.Now()
	for _, f := range then {
		f()
	}
	must(t, l.pair.Proxy.Await(t.Context(), mark))
	e.Served[0] = time.Now()
}

// run runs a story.
func (l *live) run(t *testing.T, s *story) {
	ctx := t.Context()
	if s.prepare != nil {
		must(t, s.prepare(ctx, l.pair.Cluster))
	}
	subject, probes := &s.subject, s.probes
	if probes == nil {
		probes = questions(s.to...)
	}
	begin := time.Now()
	first, verdicts := l.begin(t, subject, probes)
	timeline := Timeline{first}
	loads := l.load(ctx, &subject.Scenario, probes, pace)
	var held []*Held
	var failed [2][]Sighting // of the Service and of the steady one
	lookups := 0
	for _, c := range s.changes {
		now := timeline[len(timeline)-1]
		streams, datagrams := l.hold(t, subject, now, c.what, c.udp != "")
		next := subject.edited(c.edit)
		looking := StartLookups(ctx, l.pair.Sides[1], probes, &subject.Scenario, l.steady)
		e := l.write(t, subject, next, &c)
		l.await(t, e, func() {
			count, failures, err := looking.Stop()
			must(t, err)
			lookups += count
			failed[0] = append(failed[0], failures[0]...)
			failed[1] = append(failed[1], slices.DeleteFunc(failures[1], func(s Sighting) bool { return s.Probe.Port != "known" })...)
		})
		timeline = append(timeline, e)
		check(t, "R29", c.udp, datagrams)
		latest := l.look(t, e, next, probes, verdicts)
		if !next.Sticky {
			verdicts = latest
		}
		held, subject = append(held, streams...), next
	}
	check(t, "R30", lives, held)
	seen := stop(t, loads)
	l.write(t, subject, nowhere(subject), &change{what: "its end"})
	if len(failed[1]) > 0 {
		t.Errorf("%d lookups of a Service without changes fail, the first one: %v", len(failed[1]), &failed[1][0])
	}
	if failures := timeline.check(1, slices.Concat(seen[1], failed[0])); len(failures) > 0 {
		t.Errorf("%s: %d of %d connections and %d lookups get neither the state before nor the state after:\n%s", s.rules,
			len(failures), len(seen[1]), lookups, strings.Join(failures[:min(len(failures), shown)], "\n"))
	}
	t.Logf("%s: %d changes in %v, %d connections on the side of kube-proxy, %d and %d lookups on Beeline's, %d connections held",
		s.rules, len(s.changes), time.Since(begin).Round(time.Millisecond), len(seen[0]), len(seen[1]), lookups, len(held))
	l.logDelays(t, timeline, seen)
}

// inSlices reorders the writes of slices by index.
func inSlices(places ...int) func([]write) {
	return func(writes []write) {
		slices.SortStableFunc(writes, func(a, b write) int {
			return slices.Index(places, a.slice) - slices.Index(places, b.slice)
		})
	}
}
