// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
)

// state is what the server holds, as far as it counts, and what of it the
// receiver has not been told yet.
type state struct {
	news chan struct{} // holds one: next has something to say

	mu    sync.Mutex
	kinds map[service.Kind]*content
	order []service.Kind
	// before has, for each object that has changed since the last event, what the
	// receiver holds: nil for nothing.
	before   map[service.Ref]service.Object
	synced   bool // an event has said so
	problems source.Problems
	heardAt  time.Time
}

// content is what there is of one kind.
type content struct {
	objects map[service.Ref]service.Object
	// bad says of objects what in them could not be taken.
	bad map[service.Ref]string
	// complete: listed once, or given up because the rest works without.
	complete bool
	refused  *source.Problem // why the kind cannot be read
	broken   *source.Problem // what was wrong with the last watch
}

func newState(kinds []kind) *state {
	s := &state{
		news:   make(chan struct{}, 1),
		kinds:  map[service.Kind]*content{},
		before: map[service.Ref]service.Object{},
	}
	for _, k := range kinds {
		s.order = append(s.order, k.name)
		s.kinds[k.name] = &content{objects: map[service.Ref]service.Object{}, bad: map[service.Ref]string{}}
	}
	return s
}

func (s *state) wake() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// set takes an object over, nil if it is gone. The caller holds mu.
func (s *state) set(ref service.Ref, object service.Object, err error) {
	c := s.kinds[ref.Kind]
	bad := ""
	if err != nil {
		bad = err.Error()
	}
	if bad != c.bad[ref] {
		if c.bad[ref] = bad; bad == "" {
			delete(c.bad, ref)
		}
		s.wake()
	}
	old := c.objects[ref]
	if reflect.DeepEqual(old, object) {
		return
	}
	if _, changed := s.before[ref]; !changed {
		s.before[ref] = old
	}
	if c.objects[ref] = object; object == nil {
		delete(c.objects, ref)
	}
	s.wake()
}

// heard notes that something came from the server, and made sense.
func (s *state) heard(k *kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heardAt = time.Now()
	if c := s.kinds[k.name]; c.broken != nil {
		c.broken = nil
		s.wake()
	}
}

// listed takes over all objects of a kind.
func (s *state) listed(k *kind, items []*item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heardAt = time.Now()
	c := s.kinds[k.name]
	there := make(map[service.Ref]bool, len(items))
	for _, i := range items {
		ref := k.ref(&i.ObjectMeta)
		there[ref] = true
		s.set(ref, i.object, i.err)
	}
	for ref := range c.objects {
		if !there[ref] {
			s.set(ref, nil, nil)
		}
	}
	for ref := range c.bad {
		if !there[ref] {
			s.set(ref, nil, nil)
		}
	}
	if !c.complete || c.refused != nil {
		c.complete, c.refused = true, nil
		s.wake()
	}
}

// changed takes over one object.
func (s *state) changed(k *kind, i *item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(k.ref(&i.ObjectMeta), i.object, i.err)
}

// failed notes why a kind cannot be listed. If without says so, the rest goes on
// without it.
func (s *state) failed(k *kind, p source.Problem, without bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.kinds[k.name]
	c.refused = &p
	c.complete = c.complete || without
	s.wake()
}

// broke notes why a watch ended before its time.
func (s *state) broke(k *kind, p source.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[k.name].broken = &p
	s.wake()
}

func (s *state) progress() (heard time.Time, waiting []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.order {
		if !s.kinds[name].complete {
			waiting = append(waiting, string(name))
		}
	}
	return s.heardAt, waiting
}

// next returns the event that leads the receiver to the present state, or false
// if there is nothing to say. Objects are held back until all are there (R4).
func (s *state) next() (source.Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	problems := s.allProblems()
	news := !slices.Equal(problems, s.problems)
	s.problems = problems
	ev := source.Event{Problems: slices.Clone(problems), Synced: true}
	for _, c := range s.kinds {
		ev.Synced = ev.Synced && c.complete
	}
	if !ev.Synced {
		return ev, news
	}
	ev.Changes = make([]service.Change, 0, len(s.before))
	for ref, old := range s.before {
		// What has changed twice may be what it was.
		if object := s.kinds[ref.Kind].objects[ref]; !reflect.DeepEqual(old, object) {
			ev.Changes = append(ev.Changes, service.Change{Ref: ref, Object: object})
		}
	}
	s.before = map[service.Ref]service.Object{}
	slices.SortFunc(ev.Changes, func(a, b service.Change) int { return a.Ref.Compare(b.Ref) })
	news = news || !s.synced || len(ev.Changes) > 0
	s.synced = true
	return ev, news
}

// mostProblems is how many bad objects are named, so that a flood of them does
// not cost more than they do.
const mostProblems = 100

func (s *state) allProblems() (all source.Problems) {
	add := func(p *source.Problem) {
		if p != nil && !slices.Contains(all, *p) {
			all = append(all, *p)
		}
	}
	var bad source.Problems
	for _, name := range s.order {
		c := s.kinds[name]
		add(c.refused)
		add(c.broken)
		for ref, reason := range c.bad {
			bad = append(bad, source.Problem{Object: ref.String(), Reason: reason, Warning: true})
		}
	}
	slices.SortFunc(bad, func(a, b source.Problem) int { return strings.Compare(a.Object, b.Object) })
	if more := len(bad) - mostProblems; more > 0 {
		bad = append(bad[:mostProblems], source.Problem{Reason: fmt.Sprintf("and %d more objects", more), Warning: true})
	}
	return append(all, bad...)
}
