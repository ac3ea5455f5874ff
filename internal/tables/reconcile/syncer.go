// SPDX-License-Identifier: Apache-2.0

// Package reconcile writes the plans of package service to the datapath's tables.
//
// It is level-triggered: it knows what is wanted and what the tables hold, and works on the difference
// until there is none. It never changes anything that a program can reach; an update fills free rows, slots
// and ids, changes one index entry, and frees the old ones after a grace period. An agent that is killed
// between any two steps leaves every frontend either as it was or as it should be, and the next agent
// restores ids and sets from the tables.
package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/util/wakeup"
)

// Failures are retried after these times.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Syncer keeps the tables in agreement with the plans. It is the only writer of the Service tables. All
// methods may be called from any goroutine.
//
// It has three parts, each of which uses those before it: alloc has the ids, sets the slots, and frontends the rows and
// the index. The Syncer itself decides what they are to hold and when, and repeats what failed.
type Syncer struct {
	tables    *bpf.Tables
	alloc     *alloc
	sets      *sets
	frontends *frontends
	networks  networks
	// writer is held throughout any change, mu while a field is accessed. A long change unlocks mu now
	// and then, so that Status shows its progress.
	writer sync.Mutex
	mu     sync.Mutex

	admission *admission

	// What may differ from the tables, and what does so because a step failed.
	dirty    map[service.FrontendKey]bool
	failures map[service.FrontendKey]error
	backoff  wakeup.Backoff
	retryAt  time.Time // valid only after a failure

	removals removals
	freed    bool // entries that had been in use wait to be released
	// gcMu is held by CollectGarbage; released counts what writers released while it waited.
	gcMu     sync.Mutex
	released int

	stats Stats
	// triggers are those of Services whose change is not completely in the tables yet; programmed is told
	// when it is, and is nil if nobody asks.
	triggers   map[service.Ref][]service.Trigger
	programmed func(service.Trigger)
}

// New restores the state of the tables. It does not change what they mean.
func New(tables *bpf.Tables) (*Syncer, error) { return NewAt(tables, bpf.Now) }

// NewAt is New with a clock for the age of flows: in seconds, like last_seen of conntrack entries.
func NewAt(tables *bpf.Tables, seconds func() uint32) (*Syncer, error) {
	s := &Syncer{
		tables:   tables,
		alloc:    newAlloc(tables),
		dirty:    map[service.FrontendKey]bool{},
		failures: map[service.FrontendKey]error{},
		backoff:  wakeup.Backoff{First: firstRetry, Most: lastRetry},
		removals: removals{map[service.Protocol]bool{}, map[netip.AddrPort]bool{}},
		triggers: map[service.Ref][]service.Trigger{},
	}
	s.sets = newSets(tables, s.alloc, seconds)
	s.frontends = &frontends{tables: tables, alloc: s.alloc, sets: s.sets, applied: map[service.FrontendKey]*entry{}}
	s.admission = newAdmission(limitsOf(tables), s.frontends, func(key service.FrontendKey) { s.dirty[key] = true })
	if err := errors.Join(s.frontends.restore(), s.networks.restore(tables)); err != nil {
		return nil, fmt.Errorf("read the tables of the earlier agent: %w", err)
	}
	return s, nil
}

// lock begins a change.
func (s *Syncer) lock() {
	s.writer.Lock()
	s.mu.Lock()
}

func (s *Syncer) unlock() {
	s.mu.Unlock()
	s.writer.Unlock()
}

// mark notes that frontends may differ from the tables.
func (s *Syncer) mark(keys ...service.FrontendKey) {
	for _, key := range keys {
		s.dirty[key] = true
	}
}

// SetShares sets the shares. It must be called before the first Apply.
func (s *Syncer) SetShares(shares Shares) { s.admission.shares = shares }

// Apply writes a delta to the tables. The first delta must be the complete state (R4): everything from an
// earlier agent that it lacks is removed.
//
// An error means that a part of it is not in the tables; Status names it, and Retry tries again. Objects
// that are left out (admission) are added by the change that makes room for them, and are reported as an
// error once.
func (s *Syncer) Apply(delta service.Delta) error {
	s.lock()
	defer s.unlock()
	leftOut := s.take(delta)
	s.stats.Applied++
	err := s.reconcile()
	s.stats.Synced = true // not before: reconcile lets others read the status in between
	s.retryAfter(err)
	return errors.Join(leftOut, err)
}

// retryAfter schedules Retry after a first failure.
func (s *Syncer) retryAfter(err error) {
	if s.backoff.Delay() == 0 && err != nil {
		s.retryAt = time.Now().Add(s.backoff.Next())
	}
}

// Retry tries failed changes again if they are due: after 100 ms first, then after twice the previous
// delay, at most 30 s; at once when CollectGarbage has freed table space. It returns when to call it again,
// the zero time if there is nothing to retry.
func (s *Syncer) Retry(now time.Time) (next time.Time, err error) {
	s.lock()
	defer s.unlock()
	if s.backoff.Delay() > 0 && !now.Before(s.retryAt) {
		s.stats.Retries++
		s.mark(slices.Collect(maps.Keys(s.failures))...)
		if err = s.reconcile(); err != nil {
			s.retryAt = now.Add(s.backoff.Next())
		}
	}
	if s.backoff.Delay() == 0 {
		return time.Time{}, nil
	}
	return s.retryAt, err
}

// take turns a delta into wanted and dirty frontends, and returns which objects are left out. A frontend
// that moves from one owner to another within a delta is only changed, never removed.
func (s *Syncer) take(delta service.Delta) (leftOut error) {
	if !s.stats.Synced {
		s.mark(s.frontends.keys()...) // of an earlier agent
		s.admission.countApplied(delta)
	}
	leftOut = s.admission.admit(delta)
	for _, t := range delta.Triggers {
		s.triggers[t.Service] = append(s.triggers[t.Service], t)
	}
	s.networks.take(delta)
	return leftOut
}

// SetProgrammed sets the function that is told when the tables hold what the change of an EndpointSlice led to. It must
// be called before the first Apply. The function must not call the Syncer.
func (s *Syncer) SetProgrammed(programmed func(service.Trigger)) { s.programmed = programmed }

// noteProgrammed reports the triggers of Services without failures. Triggers of Services without a plan lead to
// nothing, and are forgotten; those of Services that are left out wait.
func (s *Syncer) noteProgrammed() {
	for ref, triggers := range s.triggers {
		a := s.admission.accounts[ref]
		if a != nil && (a.reason != nil || s.fails(a)) {
			s.triggers[ref] = triggers[max(0, len(triggers)-maxTriggers):]
			continue
		}
		delete(s.triggers, ref)
		if a == nil || s.programmed == nil {
			continue
		}
		for _, t := range triggers {
			s.programmed(t)
		}
	}
}

// maxTriggers bounds the triggers of a Service that wait.
const maxTriggers = 64

// fails reports whether a frontend of an object could not be written.
func (s *Syncer) fails(a *account) bool {
	return a.admitted != nil && len(s.failures) > 0 && slices.ContainsFunc(a.admitted.Frontends, func(f service.Frontend) bool {
		return s.failures[f.Key] != nil
	})
}

// inSync reports whether the tables hold all that is admitted.
func (s *Syncer) inSync() bool {
	return len(s.failures) == 0 && errors.Join(s.networks.errors()...) == nil
}
