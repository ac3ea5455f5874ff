// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
)

// State is the state of an object.
type State string

const (
	// Applied: the tables hold everything that the object asks for.
	Applied State = "applied"
	// Pending: a change is in progress.
	Pending State = "pending"
	// Failed: a part of it could not be written to the tables. It is retried, and the previous state
	// stays in effect.
	Failed State = "failed"
	// LeftOut: it does not fit (Shares), and nothing of it is in the tables. It is added when there is
	// room.
	LeftOut State = "left out"
)

// Status is the state of one object.
type Status struct {
	Owner service.Ref `json:"object"`
	State State       `json:"state"`
	// Reasons are the errors, one line for each failed frontend, at most maxReasons.
	Reasons []string `json:"reasons,omitempty"`
	// Problems are what the object asks for and does not get for other reasons than the tables: an
	// address that belongs to another object.
	Problems condition.List `json:"problems,omitempty"`
	// Refusals are why clients are refused where no endpoint can be used.
	Refusals []string `json:"refusals,omitempty"`
}

// maxRemedies bounds the remedies of a condition, in bytes.
const maxRemedies = 500

// Conditions returns one condition of each kind, with the remedies of all, so that an object with thousands of
// addresses does not hide other objects.
func (st *Status) Conditions() (all condition.List) {
	kind := condition.ObjectNotApplied
	if st.State == LeftOut {
		kind = condition.ObjectLeftOut
	}
	every := slices.Clone(st.Problems)
	for _, reason := range st.Reasons {
		every = append(every, kind.New("%s: %s", st.State, reason))
	}
	of := map[condition.Code]int{}
	for _, c := range every {
		of[c.Code]++
	}
	for _, c := range every {
		if i := slices.IndexFunc(all, func(first condition.Condition) bool { return first.Code == c.Code }); i >= 0 {
			if first := &all[i]; !strings.Contains(first.Remedy, c.Remedy) && len(first.Remedy)+len(c.Remedy) < maxRemedies {
				first.Remedy = strings.TrimPrefix(first.Remedy+"; "+c.Remedy, "; ")
			}
			continue
		}
		if more := of[c.Code] - 1; more > 0 {
			c.Message += fmt.Sprintf(" (and %d more)", more)
		}
		all = append(all, c.At(st.Owner.String()))
	}
	return all
}

// Stats are the statistics of the Syncer.
type Stats struct {
	Synced   bool      `json:"synced"` // the complete state has been applied once
	LastSync time.Time `json:"lastSync"`
	// LastSuccess is when the tables last held all that was wanted: after a change, or by an audit.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	Applied     uint64    `json:"appliedPlans"` // calls of Apply
	LastAudit   time.Time `json:"lastAudit"`
	Updates     uint64    `json:"frontendUpdates"` // frontends changed in the tables
	Failures    uint64    `json:"failedSteps"`     // steps that failed
	Retries     uint64    `json:"retries"`
	Repairs     uint64    `json:"repairs"`          // differences that Audit repaired
	Failing     int       `json:"failingFrontends"` // frontends that differ from what is wanted
	Pending     int       `json:"pendingFrontends"` // frontends whose change is not in the tables yet
	LeftOut     int       `json:"objectsLeftOut"`   // objects that do not fit completely: left out, or served in part
	// Untracked is the number of frontends whose flows to other nodes need no conntrack entries,
	// Remembering that of frontends with a history: in their contested slots flows need entries anyway.
	Untracked   int `json:"untrackedFrontends"`
	Remembering int `json:"frontendsWithHistory"`
	// Networks is why the ServiceCIDRs and pod networks in the tables are not the wanted ones.
	Networks string `json:"networksError,omitempty"`
	// Balancers is why the balancers in the tables are not the wanted ones.
	Balancers string `json:"balancersError,omitempty"`
	// BothNetworks are pod networks that are also ServiceCIDRs, and count as ServiceCIDRs.
	BothNetworks []string `json:"podNetworksAlsoServiceCIDRs,omitempty"`
}

// Usage is how full a table is.
type Usage struct {
	Table string `json:"table"`
	Used  uint32 `json:"used"`
	Limit uint32 `json:"limit"`
	Flag  string `json:"flag,omitempty"` // raises the limit; empty: it is fixed
}

// Stats returns the current statistics.
func (s *Syncer) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.statsWithoutWalk()
	stats.Untracked, stats.Remembering = s.frontends.countUntracked()
	return stats
}

// StatsWithoutWalk returns the statistics without those that need a walk of the frontends, Untracked and Remembering.
func (s *Syncer) StatsWithoutWalk() Stats { return ask(s, s.statsWithoutWalk) }

func (s *Syncer) statsWithoutWalk() Stats {
	stats := s.stats
	stats.Pending, stats.Failing, stats.LeftOut = len(s.dirty), len(s.failures), len(s.admission.leftOut)
	if err := s.networks.classes.err; err != nil {
		stats.Networks = err.Error()
	}
	if err := s.networks.balancerTable.err; err != nil {
		stats.Balancers = err.Error()
	}
	for _, p := range s.networks.conflict {
		stats.BothNetworks = append(stats.BothNetworks, p.String())
	}
	return stats
}

// Status returns the state of every object that has a plan, and of frontends that could not be removed
// after their object was deleted; sorted by owner.
func (s *Syncer) Status() []Status { return s.statuses(func(*Status) bool { return true }) }

// Unsettled returns what Status does of objects that are not Applied or have problems.
func (s *Syncer) Unsettled() []Status {
	return s.statuses(func(st *Status) bool { return st.State != Applied || len(st.Problems) > 0 })
}

func (s *Syncer) statuses(wanted func(*Status) bool) []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.unremoved()
	for _, a := range s.admission.accounts {
		if st := s.statusOf(a); wanted(&st) {
			all = append(all, st)
		}
	}
	slices.SortFunc(all, func(a, b Status) int { return a.Owner.Compare(b.Owner) })
	return all
}

// unremoved returns the frontends that could not be removed after their object was deleted.
func (s *Syncer) unremoved() (all []Status) {
	for key, err := range s.failures {
		if owner, ok := s.frontends.owner(key); ok && s.admission.wanted[key].frontend == nil && s.admission.accounts[owner] == nil {
			all = append(all, Status{Owner: owner, State: Failed,
				Reasons: []string{key.String() + ": cannot be removed: " + err.Error()}})
		}
	}
	return all
}

// maxReasons is the maximum number of an object's failed frontends that are named.
const maxReasons = 5

// statusOf returns the state of an object that has a plan.
func (s *Syncer) statusOf(a *account) Status {
	st := Status{Owner: a.ref, State: Applied, Problems: a.plan.Problems, Refusals: a.plan.Refusals}
	if a.reason != nil {
		st.Reasons = []string{a.reason.Error()}
		if st.State = Failed; !a.served() {
			st.State = LeftOut
		}
	}
	if a.admitted == nil {
		return st
	}
	failed := 0
	for i := range a.admitted.Frontends {
		key := a.admitted.Frontends[i].Key
		if err := s.failures[key]; err != nil {
			st.State = Failed
			if failed++; failed <= maxReasons {
				st.Reasons = append(st.Reasons, key.String()+": "+err.Error())
			}
		} else if s.dirty[key] && st.State == Applied {
			st.State = Pending
		}
	}
	if failed > maxReasons {
		st.Reasons = append(st.Reasons, fmt.Sprintf("and %d more of its frontends", failed-maxReasons))
	}
	return st
}

// Usage returns how full the tables are. When the affinity table is full, new clients evict clients that
// came only once.
func (s *Syncer) Usage() ([]Usage, error) {
	clients, err := s.tables.Affinity.Live() // may be many: do not make others wait
	return s.UsageWith(clients), err
}

// UsageWith is Usage with a known number of affinity entries.
func (s *Syncer) UsageWith(clients uint32) []Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, a := s.tables, s.alloc
	usage := []Usage{
		usageOf(bpf.SockMapFrontends, s.frontends.count(), t.Frontends.Max()),
		usageOf(bpf.SockMapSlots, a.slots.used(), t.Slots.Len()),
		usageOf(bpf.SockMapBackends, uint32(len(a.backends)), t.Backends.Len()-1),
		usageOf(bpf.SockMapServices, uint32(len(a.ports)), t.Services.Max()),
		usageOf(bpf.SockMapSourceRanges, a.ranges, t.SourceRanges.Max()),
		usageOf(bpf.SockMapNetworks, uint32(len(s.networks.classes.applied)), t.Networks.Max()),
		usageOf(bpf.SockMapAffinity, clients, t.Affinity.Max()),
		usageOf(bpf.SockMapReservedPorts, uint32(len(a.reserved)), t.ReservedPorts.Max()),
	}
	if t.Balancers != nil {
		usage = append(usage, usageOf(bpf.EdgeTCMapBalancers, uint32(len(s.networks.balancerTable.applied)), t.Balancers.Max()))
	}
	return usage
}

// usageOf returns the usage of a table, with its flag from the registry.
func usageOf(table string, used, limit uint32) Usage {
	return Usage{table, used, limit, bpf.LimitFlag(table)}
}

// Stuck reports whether changes of a family's frontends, or of networks, cannot be written to the tables
// although there is room. What does not fit is the problem of the object alone.
func (s *Syncer) Stuck(family service.Family) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.networks.errors(), broken) {
		return true
	}
	for key, err := range s.failures {
		if service.FamilyOf(key.Addr) == family && broken(err) {
			return true
		}
	}
	return false
}

func broken(err error) bool {
	var full *bpf.FullError
	return err != nil && !errors.As(err, &full)
}

// StateOf returns the state of an object; false if it has no plan.
func (s *Syncer) StateOf(ref service.Ref) (State, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.admission.accounts[ref]; a != nil {
		return s.statusOf(a).State, true
	}
	return "", false
}
