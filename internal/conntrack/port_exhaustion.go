// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"time"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
)

// noPort is the counter of packets of new flows for which no SNAT port was free (enum edge_reason).
const noPort = "drop_no_port"

// portsExhausted returns the condition of exhausted SNAT ports.
func portsExhausted(packets *condition.Growth) condition.Condition {
	return condition.SNATPortsExhausted.New("new flows to backends on other nodes found no free SNAT port (%s so far, the last at %s)",
		plural.Of(packets.Count, "packet"), packets.Last.Format(time.TimeOnly))
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
	c.withoutPort.Note(counters[noPort], time.Now())
}
