// SPDX-License-Identifier: Apache-2.0

// Package nodehealth tells load balancers and the kubelet whether this node serves: /healthz, /livez and the
// healthCheckNodePorts of Services, as kube-proxy 1.36 answers them (R34, R35). The agent reports what it does
// to a Tracker, which decides.
package nodehealth

import (
	"maps"
	"slices"
	"sync"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
)

// late is how long a change may wait for the tables, and how long the agent's loop may take for one step:
// kube-proxy's bound, twice its default sync period.
const late = time.Minute

// A Tracker holds the agent's health. Its methods may be called from any goroutine.
type Tracker struct {
	now func() time.Time

	mu       sync.Mutex
	beat     time.Time // the loop began a step
	families map[service.Family]*family
	// ineligible is why the Node must get no new connections; empty if it may.
	ineligible string
	// faults are why the datapath does not serve, by what found them.
	faults map[string]condition.List
}

// family is the state of one address family.
type family struct {
	updated time.Time // when the tables last had every change
	pending time.Time // when the oldest change arrived that they lack; zero: none
}

// NewTracker returns a Tracker that is healthy. Times are those of the clock now.
func NewTracker(now func() time.Time) *Tracker {
	t := &Tracker{now: now, families: map[service.Family]*family{}, faults: map[string]condition.List{}}
	t.beat = now()
	for _, f := range service.Families {
		t.families[f] = &family{updated: t.beat}
	}
	return t
}

// Beat reports that the agent's loop begins a step.
func (t *Tracker) Beat() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.beat = t.now()
}

// Queued reports that a change has arrived that the tables of a family may lack.
func (t *Tracker) Queued(f service.Family) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if state := t.families[f]; state.pending.IsZero() {
		state.pending = t.now()
	}
}

// Updated reports that the tables of a family have every change, except of objects that do not fit.
func (t *Tracker) Updated(f service.Family) {
	t.mu.Lock()
	defer t.mu.Unlock()
	*t.families[f] = family{updated: t.now()}
}

// SetIneligible sets why the Node must get no new connections; empty if it may.
func (t *Tracker) SetIneligible(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ineligible = why
}

// SetFaults replaces the faults of the datapath that one observer has found.
func (t *Tracker) SetFaults(observer string, faults condition.List) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults[observer] = faults
}

// Conditions returns what is wrong with the agent and the datapath.
func (t *Tracker) Conditions() condition.List {
	r := t.Report()
	return slices.Concat(r.Stalled, r.Faults)
}

// Healthy reports whether the agent follows its source and the datapath serves: serviceProxyHealthy of
// healthCheckNodePorts.
func (t *Tracker) Healthy() bool { return len(t.Conditions()) == 0 }

// A Report is the health at one time.
type Report struct {
	Time time.Time
	// Families holds when the tables of a family last had every change, and whether one is late.
	Families map[service.Family]Family
	// Stalled is why the agent makes no progress. A restart of the agent may help.
	Stalled condition.List
	// Faults are why the datapath does not serve. A restart does not help.
	Faults condition.List
	// Ineligible is why the Node must get no new connections; empty if it may.
	Ineligible string
}

// Family is the health of one address family.
type Family struct {
	Updated time.Time
	Late    bool
}

// Report returns the present health.
func (t *Tracker) Report() Report {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	r := Report{Time: now, Ineligible: t.ineligible, Families: map[service.Family]Family{}}
	wedged := now.Sub(t.beat)
	if wedged >= late {
		r.Stalled = append(r.Stalled, condition.AgentStalled.New("the agent's loop has not completed a step for %s: changes of objects take no effect", wedged.Round(time.Second)))
	}
	for _, f := range service.Families {
		state := t.families[f]
		waits := now.Sub(state.pending)
		isLate := !state.pending.IsZero() && waits >= late
		if isLate {
			r.Stalled = append(r.Stalled, condition.ChangesLate.New("the tables of %s lack changes that are %s old; earlier entries keep serving", f, waits.Round(time.Second)).At(f.String()))
		}
		r.Families[f] = Family{state.updated, isLate || wedged >= late}
	}
	for _, observer := range slices.Sorted(maps.Keys(t.faults)) {
		r.Faults = append(r.Faults, t.faults[observer]...)
	}
	return r
}
