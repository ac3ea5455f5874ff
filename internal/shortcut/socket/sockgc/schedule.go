// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"time"

	"beeline.io/beeline/internal/util/wakeup"
)

// A failed GC pass is retried after firstRetry; the delay doubles with each further failure, up to lastRetry.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// A schedule holds when GC passes for one protocol are due; the zero time means never.
type schedule struct {
	change   time.Time // the first change without a GC pass since, or the time of a retry
	followUp time.Time // a while after the last change
	drained  time.Time // when the first drain timeout passes

	err   error // of the last GC pass
	retry wakeup.Backoff
}

func newSchedule() schedule {
	return schedule{retry: wakeup.Backoff{First: firstRetry, Most: lastRetry}}
}

// changed schedules a GC pass now and a second one after followUp.
func (s *schedule) changed(now time.Time) {
	s.change, s.followUp = earlier(s.change, now), now.Add(followUp)
}

// next returns the earliest time; zero if no pass is due.
func (s *schedule) next() time.Time {
	return earlier(s.change, earlier(s.followUp, s.drained))
}

// take clears all times up to now for the GC pass that starts.
func (s *schedule) take(now time.Time) {
	for _, t := range []*time.Time{&s.change, &s.followUp, &s.drained} {
		if !t.After(now) {
			*t = time.Time{}
		}
	}
}

// ended records the result of a GC pass.
func (s *schedule) ended(err error) {
	s.err = err
	if err == nil {
		s.retry.Reset()
		return
	}
	s.change = earlier(s.change, time.Now().Add(s.retry.Next()))
}

// earlier returns the earlier of two times; zero means none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
