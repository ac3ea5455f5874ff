// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"time"

	"beeline.io/beeline/internal/condition"
)

// portExhaustionShown is how long status reports that flows found no SNAT port, after the last one.
const portExhaustionShown = 10 * time.Minute

// noPort is the counter of packets of new flows that found no free SNAT port (enum edge_reason).
const noPort = "drop_no_port"

// portExhaustion notices new flows that find no free SNAT port.
type portExhaustion struct {
	known bool
	count uint64    // of packets, since the counters began
	last  time.Time // when count was seen to have grown
}

// note takes the counters. The first count is of the time before this agent.
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

// countPortExhaustion reads the counters between two calls of status.
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
