// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/util/wakeup"
)

// state holds the server's objects, reduced to what is used, and which changes the receiver has not received
// yet.
type state struct {
	dirty wakeup.Signal // next has an event to return

	mu    sync.Mutex
	kinds map[service.Kind]*content
	order []service.Kind
	// before holds the receiver's version of each object that changed since the last event; nil for none.
	before map[service.Ref]service.Object
	// last holds the last state of Nodes that were removed since: it counts for this node (R39).
	last     map[service.Ref]service.Object
	synced   bool // an event has had Synced set
	problems source.Problems
	lastSeen time.Time
}

// content holds the objects of one kind.
type content struct {
	objects map[service.Ref]service.Object
	// bad holds the problems of objects with invalid fields.
	bad map[service.Ref]string
	// complete: listed once, or skipped because the rest works without this kind.
	complete bool
	counts   source.Counts   // except Queued
	refused  *source.Problem // why the kind cannot be read
	broken   *source.Problem // why the last watch failed
}

func newState(kinds []kind) *state {
	s := &state{
		dirty:  wakeup.NewSignal(),
		kinds:  map[service.Kind]*content{},
		before: map[service.Ref]service.Object{},
		last:   map[service.Ref]service.Object{},
	}
	for _, k := range kinds {
		s.order = append(s.order, k.name)
		s.kinds[k.name] = &content{objects: map[service.Ref]service.Object{}, bad: map[service.Ref]string{}}
	}
	return s
}

// set stores an object, or removes it if it is nil. The caller holds mu.
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
		s.dirty.Send()
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
		if ref.Kind == service.KindNode {
			s.last[ref] = old
		}
	}
	s.dirty.Send()
}

// seen records that the server sent a valid event.
func (s *state) seen(k *kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastSeen = time.Now()
	if c := s.kinds[k.name]; c.broken != nil {
		c.broken = nil
		s.dirty.Send()
	}
}

// listed stores all objects of a kind.
func (s *state) listed(k *kind, items []*item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastSeen = time.Now()
	c := s.kinds[k.name]
	c.counts.Lists++
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
		s.dirty.Send()
	}
}

// changed stores one object.
func (s *state) changed(k *kind, i *item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(k.ref(&i.ObjectMeta), i.object, i.err)
}

// failed records why a kind cannot be listed. If without is set, the source continues without the kind.
func (s *state) failed(k *kind, p source.Problem, without bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.kinds[k.name]
	c.refused = &p
	c.complete = c.complete || without
	s.dirty.Send()
}

// broke records why a watch ended early.
func (s *state) broke(k *kind, p source.Problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[k.name].broken = &p
	s.kinds[k.name].counts.Errors++
	s.dirty.Send()
}

// failedList counts a list that failed for any reason.
func (s *state) failedList(k *kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[k.name].counts.Errors++
}

// counts returns the counts of each kind.
func (s *state) counts() map[service.Kind]source.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	queued := map[service.Kind]int{}
	for ref := range s.before {
		queued[ref.Kind]++
	}
	all := map[service.Kind]source.Counts{}
	for name, c := range s.kinds {
		all[name] = source.Counts{Lists: c.counts.Lists, Errors: c.counts.Errors, Queued: queued[name]}
	}
	return all
}

func (s *state) progress() (seen time.Time, waiting []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.order {
		if !s.kinds[name].complete {
			waiting = append(waiting, string(name))
		}
	}
	return s.lastSeen, waiting
}

// next returns the event that brings the receiver to the current state, or false if nothing changed. It
// withholds objects until all kinds are complete (R4).
func (s *state) next() (source.Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	problems := s.allProblems()
	changed := !slices.Equal(problems, s.problems)
	s.problems = problems
	ev := source.Event{Problems: slices.Clone(problems), Synced: true}
	for _, c := range s.kinds {
		ev.Synced = ev.Synced && c.complete
	}
	if !ev.Synced {
		return ev, changed
	}
	ev.Changes = make([]service.Change, 0, len(s.before))
	for ref, old := range s.before {
		// An object that changed twice may be back to its old value.
		change := service.Change{Ref: ref, Object: s.kinds[ref.Kind].objects[ref]}
		if last := s.last[ref]; change.Object == nil && !reflect.DeepEqual(old, last) {
			change.Last = last
		}
		if change.Last != nil || !reflect.DeepEqual(old, change.Object) {
			ev.Changes = append(ev.Changes, change)
		}
	}
	s.before, s.last = map[service.Ref]service.Object{}, map[service.Ref]service.Object{}
	slices.SortFunc(ev.Changes, func(a, b service.Change) int { return a.Ref.Compare(b.Ref) })
	changed = changed || !s.synced || len(ev.Changes) > 0
	s.synced = true
	return ev, changed
}

// maxProblems is the maximum number of invalid objects that are reported by name.
const maxProblems = 100

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
	if more := len(bad) - maxProblems; more > 0 {
		bad = append(bad[:maxProblems], source.Problem{Reason: fmt.Sprintf("and %d more objects", more), Warning: true})
	}
	return append(all, bad...)
}
