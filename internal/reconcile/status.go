// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"slices"
	"time"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// State says how far an object has come.
type State string

const (
	// Applied: the tables hold all that the object asks for.
	Applied State = "applied"
	// Pending: a change is on its way.
	Pending State = "pending"
	// Failed: some of it could not be brought into the tables; it is retried,
	// and what was there before goes on.
	Failed State = "failed"
	// LeftOut: it does not fit, and nothing of it is in the tables (Shares). It is taken in
	// when there is room.
	LeftOut State = "left out"
)

// Status is the state of one object.
type Status struct {
	Owner service.Ref `json:"owner"`
	State State       `json:"state"`
	// Reasons say what failed, a line for each frontend, at most a few.
	Reasons []string `json:"reasons,omitempty"`
	// Problems say what the object asks for and does not get, though all is
	// well with the tables: an address that belongs to another object.
	Problems condition.List `json:"problems,omitempty"`
	// Refusals say why clients are refused where no endpoint can be used.
	Refusals []string `json:"refusals,omitempty"`
}

// Stats count what the Syncer did.
type Stats struct {
	Synced    bool      `json:"synced"` // the complete state has been applied once
	LastSync  time.Time `json:"lastSync"`
	LastAudit time.Time `json:"lastAudit"`
	Updates   uint64    `json:"updates"`  // frontends changed in the tables
	Failures  uint64    `json:"failures"` // steps that failed
	Retries   uint64    `json:"retries"`
	Repairs   uint64    `json:"repairs"` // differences that Audit found
	Failing   int       `json:"failing"` // frontends that differ from what is wanted now
	Pending   int       `json:"pending"` // frontends whose change is not in the tables yet
	LeftOut   int       `json:"leftOut"` // objects of which not all fits: those left out, and those served in part
	// Untracked are frontends whose flows to other nodes need no records, Remembering
	// those that remember an earlier table: slots that changed need records all the same.
	Untracked   int `json:"untracked"`
	Remembering int `json:"remembering"`
	// Networks says why the ServiceCIDRs and networks of pods in the tables are not
	// those wanted.
	Networks string `json:"networks,omitempty"`
	// Balancers says why those in the tables are not those wanted.
	Balancers string `json:"balancers,omitempty"`
	// BothNetworks are networks of pods that are ServiceCIDRs, too, and count as these.
	BothNetworks []string `json:"bothNetworks,omitempty"`
}

// Usage is how full a table is.
type Usage struct {
	Table string `json:"table"`
	Used  uint32 `json:"used"`
	Limit uint32 `json:"limit"`
	Flag  string `json:"flag,omitempty"` // that raises the limit; none: it is fixed
}

// Stats returns the counts so far.
func (s *Syncer) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Pending = len(s.dirty)
	stats.Failing, stats.LeftOut = len(s.failures), len(s.admission.leftOut)
	for _, e := range s.applied {
		if e.untracked() {
			stats.Untracked++
		}
		if e.slotHistory() != nil {
			stats.Remembering++
		}
	}
	if s.networks.err != nil {
		stats.Networks = s.networks.err.Error()
	}
	if s.balancers.err != nil {
		stats.Balancers = s.balancers.err.Error()
	}
	for _, p := range s.conflict {
		stats.BothNetworks = append(stats.BothNetworks, p.String())
	}
	return stats
}

// Status returns the state of every object that has a plan, and of frontends
// that could not be removed after their object went; sorted by owner.
func (s *Syncer) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for _, a := range s.admission.accounts {
		all = append(all, s.statusOf(a))
	}
	for key, err := range s.failures {
		if e := s.applied[key]; s.wanted[key].frontend == nil && e != nil && e.port != nil && s.admission.accounts[e.port.key.Owner] == nil {
			all = append(all, Status{Owner: e.port.key.Owner, State: Failed,
				Reasons: []string{key.String() + ": cannot be removed: " + err.Error()}})
		}
	}
	slices.SortFunc(all, func(a, b Status) int { return a.Owner.Compare(b.Owner) })
	return all
}

// maxReasons is how many frontends of an object are named that failed.
const maxReasons = 5

// statusOf is the state of an object that has a plan.
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

// Usage returns how full the tables are. Session affinity that does not fit
// any more displaces clients that came only once.
func (s *Syncer) Usage() ([]Usage, error) {
	clients, err := s.tables.Affinity.Live() // may be many: nobody has to wait for that
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables
	usage := []Usage{
		usageOf(datapath.SockMapFrontends, uint32(len(s.applied)), t.Frontends.Max()),
		usageOf(datapath.SockMapSlots, s.slots.used(t.Slots.Len()), t.Slots.Len()),
		usageOf(datapath.SockMapBackends, uint32(len(s.backends)), t.Backends.Len()-1),
		usageOf(datapath.SockMapServices, uint32(len(s.ports)), t.Services.Max()),
		usageOf(datapath.SockMapSourceRanges, s.ranges, t.SourceRanges.Max()),
		usageOf(datapath.SockMapNetworks, uint32(len(s.networks.applied)), t.Networks.Max()),
		usageOf(datapath.SockMapAffinity, clients, t.Affinity.Max()),
		usageOf(datapath.SockMapReservedPorts, uint32(len(s.reserved)), t.ReservedPorts.Max()),
	}
	if t.Balancers != nil {
		usage = append(usage, usageOf(datapath.EdgeTCMapBalancers, uint32(len(s.balancers.applied)), t.Balancers.Max()))
	}
	return usage, err
}

// usageOf is the usage of a table, with the flag that the registry has for it.
func usageOf(table string, used, limit uint32) Usage {
	return Usage{table, used, limit, datapath.LimitFlag(table)}
}
