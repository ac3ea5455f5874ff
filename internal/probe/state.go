// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"time"

	"beeline.io/beeline/internal/service"
)

// State is how a target is.
type State struct {
	// Up: it counts as well. Heard: a probe has said so, or the contrary, since the
	// prober began with it.
	Up, Heard bool
	// Since is when Up became what it is, or when the prober began with the target.
	Since time.Time
	// Last is when the last probe ended, Why what was wrong with it; empty: nothing.
	Last time.Time
	Why  string
}

// Change is a target whose State.Up is another now.
type Change struct {
	Target service.Target
	State  State
}

// Start is what a target is believed to be before it is asked.
type Start int

const (
	// Unknown counts as up, but the first failure takes it down, and before that
	// the first success makes it Served: what HAProxy does with a new server.
	Unknown Start = iota
	// Served is up, and goes down after Fall failures in a row.
	Served
	// Unserved is down, and the first success brings it up.
	Unserved
)

// target is one that is asked, and how far it has come.
type target struct {
	service.Target
	state State
	// first: one result decides, whatever Rise and Fall are.
	first bool
	// row counts the results in a row that speak against State.Up.
	row  int
	due  time.Time
	at   int // place in the schedule, -1: a probe is under way
	gone bool
}

// note takes the result of a probe in and says whether Up is another now.
func (t *target) note(why string, now time.Time) (changed bool) {
	up := why == ""
	first := t.first
	t.first = false
	t.state.Last, t.state.Why, t.state.Heard = now, why, true
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
