// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"time"

	"beeline.io/beeline/internal/condition"
)

// Status is the fill of the conntrack tables, and the results of garbage collection. A flow has two
// entries.
type Status struct {
	Entries       int       `json:"entries"` // of assured flows
	Limit         uint32    `json:"limit"`
	HalfOpen      int       `json:"halfOpen"` // entries of all other flows
	HalfOpenLimit uint32    `json:"halfOpenLimit"`
	LastGC        time.Time `json:"lastGC,omitzero"`
	GCSeconds     float64   `json:"gcSeconds,omitempty"`
	Expired       uint64    `json:"expired"` // flows, since the agent started
	Ended         uint64    `json:"ended"`   // UDP flows whose backend no longer serves, since the agent started
}

// Count counts the entries of the tables.
func Count(tables *Tables) (s Status, err error) {
	s.Limit, s.HalfOpenLimit = tables.Assured.Max(), tables.Unreplied.Max()
	count := func(n *int) func(Tuple, *Entry) bool {
		return func(Tuple, *Entry) bool { *n++; return true }
	}
	if err := tables.Assured.Walk(count(&s.Entries)); err != nil {
		return s, err
	}
	return s, tables.Unreplied.Walk(count(&s.HalfOpen))
}

// CompleteStatus adds to s what only the agent knows, and returns the conditions of the collector and
// of SNAT ports. counters are the edge's (datapath.ReadEdgeCounters); nil if they could not be read.
func (c *Collector) CompleteStatus(s *Status, counters map[string]uint64) (all condition.List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.LastGC, s.GCSeconds = c.stats.last, c.stats.took.Seconds()
	s.Expired, s.Ended = c.stats.expired, c.stats.stale
	if err := errors.Join(c.stats.passErr, c.stats.staleErr); err != nil {
		all = append(all, condition.ConntrackGCFailed.New("conntrack garbage collection failed, and expired flows may be kept for longer: %v", err))
	}
	now := time.Now()
	if counters != nil {
		c.withoutPort.Note(counters[noPort], now)
	}
	if c.withoutPort.Recent(now) {
		all = append(all, portsExhausted(&c.withoutPort))
	}
	return all
}

// nearlyFull is the part of the table above which flows in use may soon be evicted.
const nearlyFull = 0.9

// Conditions returns the conditions of the fill of the tables.
func (s *Status) Conditions() (all condition.List) {
	if float64(s.Entries) > nearlyFull*float64(s.Limit) && s.Limit > 0 {
		all = append(all, condition.FlowsNearlyFull.New("the conntrack table is nearly full (%d entries in %d places): where there is no room, flows of the Service that has most are evicted", s.Entries, s.Limit))
	}
	return all
}
