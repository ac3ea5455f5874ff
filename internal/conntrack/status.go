// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"time"

	"beeline.io/beeline/internal/report/condition"
)

// Status is the fill of the conntrack tables, and the results of garbage collection. A flow has two
// entries.
type Status struct {
	Entries       int       `json:"entries"`   // of assured flows
	Evictable     int       `json:"evictable"` // of these, entries of closed connections, which give way to any other
	Limit         uint32    `json:"limit"`
	HalfOpen      int       `json:"halfOpen"` // entries of all other flows
	HalfOpenLimit uint32    `json:"halfOpenLimit"`
	LastGC        time.Time `json:"lastGC,omitzero"`
	LastGCSeconds float64   `json:"lastGCSeconds,omitempty"`
	ExpiredFlows  uint64    `json:"expiredFlows"`  // flows, since the agent started
	EndedUDPFlows uint64    `json:"endedUDPFlows"` // UDP flows whose backend no longer serves, since the agent started
}

// Count counts the entries of the tables.
func Count(tables *Tables) (s Status, err error) {
	s.Limit, s.HalfOpenLimit = tables.Assured.Max(), tables.Unreplied.Max()
	if err := tables.Assured.Walk(func(_ Tuple, e *Entry) bool {
		s.Entries++
		if isSpare(e) {
			s.Evictable++
		}
		return true
	}); err != nil {
		return s, err
	}
	return s, tables.Unreplied.Walk(func(Tuple, *Entry) bool { s.HalfOpen++; return true })
}

// CompleteStatus adds to s what only the agent knows, and returns the conditions of the collector and
// of SNAT ports. counters are the edge's (datapath.ReadEdgeCounters); nil if they could not be read.
func (c *Collector) CompleteStatus(s *Status, counters map[string]uint64) (all condition.List) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.LastGC, s.LastGCSeconds = c.passes.Last, c.passes.Took.Seconds()
	s.ExpiredFlows, s.EndedUDPFlows = c.passes.Expired, c.stale
	if err := errors.Join(c.passErr, c.staleErr); err != nil {
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
	if used := s.Entries - s.Evictable; float64(used) > nearlyFull*float64(s.Limit) && s.Limit > 0 {
		all = append(all, condition.FlowsNearlyFull.New("the conntrack table is nearly full (%d entries of open connections in %d places): where there is no room, half-closed connections are evicted, and then flows of the Service that has most", used, s.Limit))
	}
	return all
}
