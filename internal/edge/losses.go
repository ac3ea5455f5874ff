// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"time"

	"beeline.io/beeline/internal/condition"
)

// lossShown is how long status speaks of packets that a driver has lost after the last one.
const lossShown = 10 * time.Minute

// losses are packets that a device's driver has lost of those that XDP sent.
type losses struct {
	before uint64 // the count when the edge came
	count  uint64 // since then
	last   time.Time
}

func (l *losses) note(count uint64, now time.Time) {
	if count < l.before+l.count { // the driver has begun anew
		l.before, l.count = 0, 0
	}
	if count > l.before+l.count {
		l.count, l.last = count-l.before, now
	}
}

// shown is the count if it has grown of late.
func (l *losses) shown(now time.Time) uint64 {
	if l.last.IsZero() || now.Sub(l.last) >= lossShown {
		return 0
	}
	return l.count
}

// countLosses looks at the drivers' counts. The caller holds the lock.
func (e *Edge) countLosses(now time.Time) {
	for _, a := range e.devices {
		if a.failed == nil && a.entry.mode != "tc" {
			a.losses.note(e.lost(a.Name), now)
		}
	}
}

// lost says what to do about a device that loses packets.
func (d *DeviceStatus) lost() (condition.Condition, bool) {
	return condition.DeviceLosesPackets.New("device %s has lost %d packets that XDP sent: its driver, or of a veth the other end (which needs GRO or an XDP program), does not take them",
		d.Name, d.Lost).At(d.Name), d.Lost > 0
}
