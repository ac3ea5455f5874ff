// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"time"

	"beeline.io/beeline/internal/condition"
)

// portExhaustionShown is how long status reports flows without a SNAT port, after the last one.
const portExhaustionShown = 10 * time.Minute

// noPort is the counter of packets of new flows for which no SNAT port was free (enum edge_reason).
const noPort = "drop_no_port"

// portExhaustion detects new flows for which no SNAT port is free.
type portExhaustion struct {
	known bool
	count uint64    // packets, since the counters began
	last  time.Time // when count was last seen to grow
}

// note handles a reading of the counters. The first one includes the time before this agent.
func (p *portExhaustion) note(counters map[string]uint64, now time.Time) {
	count := counters[noPort]
	if p.known && count > p.count {
		p.last = now
	}
	p.known, p.count = true, count
}

// condition returns the condition of exhausted SNAT ports, and whether it holds.
func (p *portExhaustion) condition(now time.Time) (condition.Condition, bool) {
	return condition.SNATPortsExhausted.New("new flows to backends on other nodes found no free SNAT port (%d packets so far, the last at %s)",
		p.count, p.last.Format(time.TimeOnly)), !p.last.IsZero() && now.Sub(p.last) < portExhaustionShown
}

// countPortExhaustion reads the counters between calls of status.
func (c *Collector) countPortExhaustion() {
	if c.config.Counters == nil {
		return
	}
	counters, err := c.config.Counters()
	if err != nil {
		return // status reads them, too, and reports the error
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.portExhaustion.note(counters, time.Now())
}
