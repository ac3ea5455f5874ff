// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"
)

// at is a time in milliseconds after some moment.
func at(ms int) time.Time { return time.UnixMilli(1_000_000 + int64(ms)) }

// searchIn lets a search of a schedule run that takes as many milliseconds.
func (s *schedule) searchIn(from, ms int) {
	s.begin(at(from))
	s.end(at(from + ms))
	s.update(at(from + ms))
}

// A change of filters is searched at once, and then as often as a fourth of the time allows, but in time for lateAfter;
// changes of pods, which a pod may cause, at most an eleventh of the time.
func TestScheduleOfSearches(t *testing.T) {
	for _, test := range []struct {
		name          string
		took          int
		filters, pods int // when they change, in milliseconds after the end of the last search; -1: they do not
		want          int
	}{
		{"filters", 20, 1000, -1, 1005},
		{"filters soon after a search", 20, 10, -1, 60},
		{"pods", 20, -1, 1000, 1000},
		{"pods soon after a search", 20, -1, 10, 200},
		{"filters do not wait for pods", 20, 30, 10, 60},
		{"filters after a search of a fifth of a second", 200, 10, -1, 300},
		{"filters after a search of a second", 1000, 10, -1, 1000},
		{"filters after a long search", 6000, 10, -1, 5000},
		{"pods after a long search", 4000, -1, 10, 5000},
	} {
		s := newSchedule()
		s.searchIn(-test.took, test.took)
		if test.pods >= 0 {
			s.podsChanged(at(test.pods))
		}
		if test.filters >= 0 {
			s.filtersChanged(at(test.filters))
			s.filtersChanged(at(test.filters + 1)) // does not put it off
		}
		if search, _ := s.next(at(1)); !search.Equal(at(test.want)) {
			t.Errorf("%s: the search is due at %d ms, want %d", test.name, search.Sub(at(0)).Milliseconds(), test.want)
		}
		s.begin(at(test.want))
		if search, _ := s.next(at(test.want)); !search.IsZero() {
			t.Errorf("%s: another search is due while one runs", test.name)
		}
	}
}

// A change of filters that no search has seen after lateAfter withholds all pods, until a search has ended in time; if
// that happens again, for a second at least, and longer each time. Changes of pods withhold nobody else.
func TestScheduleWithholds(t *testing.T) {
	s := newSchedule()
	want := func(when string, ms int, changed, held bool) {
		t.Helper()
		if got := s.update(at(ms)); got != changed || s.held != held {
			t.Fatalf("%d ms, %s: pods are withheld: %t, a change: %t; want %t, %t (withheld from %v after a change of filters that no search has seen)", ms, when,
				s.held, got, held, changed, lateAfter)
		}
	}
	s.podsChanged(at(0))
	s.begin(at(0))
	want("a long search for pods", 10_000, false, false)
	s.filtersChanged(at(10_000))
	if _, update := s.next(at(10_000)); !update.Equal(at(10_700)) {
		t.Errorf("the filters changed at 10 s: update is due at %v, want %v later", update.Sub(at(0)), lateAfter)
	}
	want("before it is late", 10_699, false, false)
	want("a change during a search that does not see it", 10_700, true, true)
	if _, update := s.next(at(10_700)); !update.IsZero() {
		t.Errorf("update is due at %v although only the end of a search changes anything", update.Sub(at(0)))
	}
	s.end(at(10_800))
	want("the search ended that does not see it", 10_800, false, true)
	if search, _ := s.next(at(10_800)); !search.Equal(at(15_800)) {
		t.Errorf("the search is due at %v", search.Sub(at(0)))
	}
	s.begin(at(15_800))
	want("the search runs", 15_900, false, true)
	s.filtersChanged(at(15_950))
	s.end(at(16_000))
	want("the search has seen it, and the next change is not late", 16_000, true, false)
	s.searchIn(16_100, 10)

	s.filtersChanged(at(17_000))
	s.begin(at(17_100))
	want("again late soon after", 17_700, true, true)
	if _, update := s.next(at(17_700)); !update.Equal(at(18_700)) {
		t.Errorf("the hold ends at %v, want a second after its begin", update.Sub(at(0)))
	}
	s.end(at(17_900))
	want("the search has seen it, but the hold lasts", 17_900, false, true)
	s.filtersChanged(at(18_000))
	if search, _ := s.next(at(18_000)); !search.Equal(at(18_700)) {
		t.Errorf("the search is due at %v, want the end of the hold", search.Sub(at(0)))
	}
	s.searchIn(18_700, 10)
	if s.held {
		t.Error("the search has ended in time, but pods are withheld")
	}
	s.filtersChanged(at(20_000))
	want("a third time", 20_700, true, true)
	if s.heldUntil != at(22_700) {
		t.Errorf("the hold ends at %v, want 2 s after its begin", s.heldUntil.Sub(at(0)))
	}
	s.searchIn(22_700, 10)
	s.filtersChanged(at(100_000))
	want("late again after a long time", 100_700, true, true)
	s.searchIn(100_700, 10)
	if s.held {
		t.Error("the search has ended in time, but pods are withheld")
	}
}
