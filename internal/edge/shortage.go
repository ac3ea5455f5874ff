// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"time"
)

// shortageShown is how long status speaks of new flows that found no port after the
// last one.
const shortageShown = 10 * time.Minute

// noPort is the name of the packets of new flows that found no port (enum
// edge_reason).
const noPort = "drop_no_port"

// shortage is what is known of new flows that found no port of this node's.
type shortage struct {
	known bool
	count uint64    // of packets, since the tables began
	last  time.Time // when it was seen to have grown
}

// note takes over what has been counted. What was counted before the first time is of
// another agent's time.
func (s *shortage) note(counters map[string]uint64, now time.Time) {
	count := counters[noPort]
	if s.known && count > s.count {
		s.last = now
	}
	s.known, s.count = true, count
}

// problem says what to do; empty: there is no shortage.
func (s *shortage) problem(now time.Time) string {
	if s.last.IsZero() || now.Sub(s.last) >= shortageShown {
		return ""
	}
	return fmt.Sprintf("new flows of clients to backends on other nodes found no port of this node that no open connection has (%d packets so far, the last at %s): "+
		"give --snat-ports wider ranges, or the Service more backends", s.count, s.last.Format(time.TimeOnly))
}

// countShortage looks at the counters between two calls of status.
func (e *Edge) countShortage() {
	if e.config.Counters == nil {
		return
	}
	counters, err := e.config.Counters()
	if err != nil {
		return // status reads them as well, and says so
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shortage.note(counters, time.Now())
	e.countLosses(time.Now())
}
