// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

// State is the health of a target.
type State struct {
	// Up means that the target counts as healthy. Probed means that a probe decided that, since the prober
	// started to probe the target.
	Up, Probed bool
	// Since is when Up last changed, or when the prober started to probe the target.
	Since time.Time
	// Last is when the last probe ended. Why is why it failed; empty if it succeeded.
	Last time.Time
	Why  string
}

// Change is a target whose State.Up has changed.
type Change struct {
	Target service.Target
	State  State
}

// Start is the assumed state of a target before its first probe.
type Start int

const (
	// Unknown counts as up. The first probe decides: a failure takes it down, a success makes it Served.
	// HAProxy treats a new server the same way.
	Unknown Start = iota
	// Served is up, and goes down after Fall consecutive failures.
	Served
	// Unserved is down, and goes up after the first success.
	Unserved
)

// target is a target and its probe state.
type target struct {
	service.Target
	state State
	// first means that the next result decides, regardless of Rise and Fall.
	first bool
	// row counts consecutive results that contradict State.Up.
	row  int
	due  time.Time
	at   int // index in the schedule; -1: a probe is in progress
	gone bool
}

// note records the result of a probe and returns whether Up has changed.
func (t *target) note(why string, now time.Time) (changed bool) {
	up := why == ""
	first := t.first
	t.first = false
	t.state.Last, t.state.Why, t.state.Probed = now, why, true
	if up == t.state.Up {
		t.row = 0
		return false
	}
	t.row++
	needed := t.Probe.Fall
	if up {
		needed = t.Probe.Rise
	}
	if !first && t.row < needed {
		return false
	}
	t.row, t.state.Up, t.state.Since = 0, up, now
	return true
}
