// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	"beeline.io/beeline/internal/util/wakeup"
)

// When packet filters are searched. A search takes milliseconds, with many rules tenths of a second.
const (
	// filtersSettle: a program that changes filters often does so in several steps.
	filtersSettle = 5 * time.Millisecond
	// filtersShare and podsShare: between two searches pass as many times the length of the first one, if filters
	// have changed or if pods have, but at most longestGap. Pods may cause the latter.
	filtersShare = 3
	podsShare    = 10
	longestGap   = auditInterval
	// lateAfter is how long the shortcut bypasses a filter at most: if a search has not ended by then, all pods are
	// withheld.
	lateAfter = 700 * time.Millisecond
	// Pods that were withheld because a search was late stay so until one has ended; if that happens again within
	// longestHold, for nextHold at least, and then twice as long each time, up to longestHold.
	nextHold    = time.Second
	longestHold = 8 * time.Second
)

// A schedule decides when filters are searched, and when pods are withheld because they are not known. It has no clock.
type schedule struct {
	// filters and pods are when these changed first after the last search began; zero: they have not.
	filters, pods time.Time
	// covers is when the filters changed whose change the running search sees; zero: they have not.
	covers  time.Time
	running bool
	began   time.Time
	ended   time.Time     // of the last search
	took    time.Duration // the last search
	// held: pods are withheld because a search was late, at least until heldUntil.
	held      bool
	heldUntil time.Time
	hold      wakeup.Backoff
}

func newSchedule() schedule {
	return schedule{hold: wakeup.Backoff{First: nextHold, Most: longestHold}}
}

func (s *schedule) filtersChanged(now time.Time) {
	if s.filters.IsZero() {
		s.filters = now
	}
}

func (s *schedule) podsChanged(now time.Time) {
	if s.pods.IsZero() {
		s.pods = now
	}
}

// begin: a search begins, which sees all changes so far.
func (s *schedule) begin(now time.Time) {
	s.covers, s.filters, s.pods = s.filters, time.Time{}, time.Time{}
	s.running, s.began = true, now
}

func (s *schedule) end(now time.Time) {
	s.running, s.covers = false, time.Time{}
	s.took, s.ended = now.Sub(s.began), now
}

// next returns when the next search is due and when update has to be called again; zero: at the next change, and when a
// search has ended. No search is due before a running one ends.
func (s *schedule) next(now time.Time) (search, update time.Time) {
	if !s.running {
		if !s.filters.IsZero() {
			search = latest(s.filters.Add(filtersSettle), s.ended.Add(s.filtersGap()))
			if s.held {
				search = latest(search, s.heldUntil)
			}
		}
		if !s.pods.IsZero() {
			search = earliest(search, latest(s.pods, s.ended.Add(min(podsShare*s.took, longestGap))))
		}
	}
	if s.held {
		if now.Before(s.heldUntil) {
			update = s.heldUntil
		}
		return search, update
	}
	if oldest := earliest(s.covers, s.filters); !oldest.IsZero() {
		update = oldest.Add(lateAfter)
	}
	return search, update
}

// filtersGap is how long after the last search the next one of filters begins: soon enough for the change that came
// just after the last search began, if a search is so short that this is possible.
func (s *schedule) filtersGap() time.Duration {
	return min(max(s.took, min(filtersShare*s.took, lateAfter-2*s.took)), longestGap)
}

// update withholds pods, or ends that, and reports whether it has done either.
func (s *schedule) update(now time.Time) (changed bool) {
	oldest := earliest(s.covers, s.filters)
	late := !oldest.IsZero() && now.Sub(oldest) >= lateAfter
	switch {
	case s.held && !late && !now.Before(s.heldUntil):
		s.held = false
		return true
	case !s.held && late:
		if now.Sub(s.heldUntil) > longestHold {
			s.hold.Reset()
			s.heldUntil = now
		} else {
			s.heldUntil = now.Add(s.hold.Next())
		}
		s.held = true
		return true
	}
	return false
}

// earliest ignores zero times.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
