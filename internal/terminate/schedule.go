// SPDX-License-Identifier: Apache-2.0

package terminate

import "time"

// A sweep that failed is done again after firstRetry, and then after twice as
// long each time.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// A schedule is when sweeps for one protocol are wanted; zero: not.
type schedule struct {
	change   time.Time // the first change that no sweep has followed, or when to try again
	followUp time.Time // a while after the last change
	drained  time.Time // the first backend's time is over

	err   error // of the last sweep
	retry time.Duration
}

// changed wants a sweep now and one later.
func (s *schedule) changed(now time.Time) {
	s.change, s.followUp = earlier(s.change, now), now.Add(followUp)
}

// next is the first time of all; zero: none is wanted.
func (s *schedule) next() time.Time {
	return earlier(s.change, earlier(s.followUp, s.drained))
}

// take strikes off all that a sweep at this time does.
func (s *schedule) take(now time.Time) {
	for _, t := range []*time.Time{&s.change, &s.followUp, &s.drained} {
		if !t.After(now) {
			*t = time.Time{}
		}
	}
}

// ended takes in how a sweep went.
func (s *schedule) ended(err error) {
	s.err = err
	if err == nil {
		s.retry = 0
		return
	}
	s.retry = min(max(2*s.retry, firstRetry), lastRetry)
	s.change = earlier(s.change, time.Now().Add(s.retry))
}

// earlier is the earlier of two times of which zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
