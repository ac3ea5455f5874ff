// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
)

// lossShown is how long status reports packets that a driver has dropped, after the last one.
const lossShown = 10 * time.Minute

// losses counts packets sent by XDP that a device's driver has dropped.
type losses struct {
	before uint64 // the driver's count when the edge was attached
	count  uint64 // since then
	last   time.Time
}

func (l *losses) note(count uint64, now time.Time) {
	if count < l.before+l.count { // the driver's count was reset
		l.before, l.count = 0, 0
	}
	if count > l.before+l.count {
		l.count, l.last = count-l.before, now
	}
}

// shown returns the count if it has grown recently.
func (l *losses) shown(now time.Time) uint64 {
	if l.last.IsZero() || now.Sub(l.last) >= lossShown {
		return 0
	}
	return l.count
}

// countLosses reads the drivers' counts. The caller holds the lock.
func (e *Edge) countLosses(now time.Time) {
	for _, a := range e.devices {
		if a.failed == nil && a.entry.mode != "tc" {
			a.losses.note(e.lost(a.Name), now)
		}
	}
}

// lost returns the condition of a device that drops packets.
func lost(d *api.EdgeDevice) (condition.Condition, bool) {
	return condition.DeviceLosesPackets.New("device %s has lost %s that XDP sent: its driver drops such packets, or for a veth the peer, which needs GRO or an XDP program",
		d.Name, plural.Of(d.DroppedByDriver, "packet")).At(d.Name), d.DroppedByDriver > 0
}
