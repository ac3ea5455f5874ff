// SPDX-License-Identifier: Apache-2.0

// Package reconcile brings what package service planned into the datapath's tables.
//
// It is level-triggered: it knows what is wanted and what the tables hold, and
// works on the difference until there is none. Whatever a program can reach
// never changes under it; an update fills free rows, slots and ids, turns one
// index entry, and gives the old ones back after a grace period. An agent that
// is killed between any two steps leaves every frontend as it was or as it
// should be, and the next agent finds ids and sets again from the tables.
package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/datapath/codec"
	"beeline.io/beeline/internal/jet"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/wakeup"
)

// What failed is tried again after these times.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Syncer keeps the tables in agreement with the plans. All methods may be
// called from any goroutine; the tables have no other writer.
type Syncer struct {
	tables *datapath.Tables
	// writer is held by whoever changes anything, from beginning to end; mu by
	// whoever looks at a field. A long change lets go of mu now and then, so that
	// Status shows how far it is.
	writer sync.Mutex
	mu     sync.Mutex

	// What is wanted.
	admission admission
	wanted    map[service.FrontendKey]want // of what is admitted
	cidrs     []netip.Prefix               // ServiceCIDRs
	pods      []netip.Prefix               // networks of pods
	// wantedBalancers are networks whose encapsulated packets are for this node's backends.
	wantedBalancers []netip.Prefix
	own             []netip.Addr // of the node
	acceptTunnels   bool         // also while no Service has DSR

	// What may differ from the tables, and what does because a step failed.
	dirty    map[service.FrontendKey]bool
	failures map[service.FrontendKey]error
	conflict []netip.Prefix // networks of pods that are ServiceCIDRs, too
	backoff  wakeup.Backoff
	retryAt  time.Time // meant only after a failure

	// What the tables hold.
	applied       map[service.FrontendKey]*entry
	networks      networkTable[datapath.Network]
	balancers     networkTable[datapath.Balancer]
	ports         map[service.Port]*port
	sets          map[service.SetKey]*set
	slotHistories map[service.SetKey][]*set // those with a past
	backends      map[codec.Backend]*backend
	sources       map[string]*source
	reserved      map[datapath.ReservedPort]*reservation
	ranges        uint32 // source ranges of all sources

	// What GC passes have found out of histories that are in use, while it is brought into
	// the tables; and the histories that frontends of one port share, of one pass.
	stable  map[*jet.History]*jet.History
	next    map[step]*jet.History
	seconds func() uint32 // now: CLOCK_MONOTONIC

	// addsFrontend: the frontend that is being made is not in the tables yet.
	addsFrontend bool

	// Protocols of which backends have left since TakeRemoved was asked.
	removed map[service.Protocol]bool

	// The index leads elsewhere, and programs have not been told; and what was untracked is not
	// any more, or is gone.
	epochStale, fewerUntracked bool

	// What is free.
	rowNumbers, portIDs, backendIDs, sourceIDs pool
	slots                                      extents

	// What is given back once no program can be using it.
	deferred     []*entry
	unreferenced []releasable // what had no reference when it was put here
	freed        bool         // some of what was retired had been in use
	// gcMu is held by CollectGarbage; released counts what others gave back while it waited.
	gcMu     sync.Mutex
	released int

	stats Stats
}

// want is a frontend and the plan that it is of.
type want struct {
	frontend *service.Frontend
	plan     *service.Plan
}

// New finds out what the tables hold. It changes nothing that they say.
func New(tables *datapath.Tables) (*Syncer, error) { return NewAt(tables, datapath.Now) }

// NewAt is New with a clock of its own for what becomes of flows: in seconds, and as that
// of their last_seen.
func NewAt(tables *datapath.Tables, seconds func() uint32) (*Syncer, error) {
	s := &Syncer{
		tables:        tables,
		admission:     newAdmission(),
		wanted:        map[service.FrontendKey]want{},
		dirty:         map[service.FrontendKey]bool{},
		backoff:       wakeup.Backoff{First: firstRetry, Most: lastRetry},
		failures:      map[service.FrontendKey]error{},
		applied:       map[service.FrontendKey]*entry{},
		ports:         map[service.Port]*port{},
		sets:          map[service.SetKey]*set{},
		slotHistories: map[service.SetKey][]*set{},
		backends:      map[codec.Backend]*backend{},
		sources:       map[string]*source{},
		reserved:      map[datapath.ReservedPort]*reservation{},
		removed:       map[service.Protocol]bool{},
		seconds:       seconds,
	}
	s.networks.table, s.balancers.table = tables.Networks, tables.Balancers
	if err := s.restore(); err != nil {
		return nil, fmt.Errorf("read the tables of the earlier agent: %w", err)
	}
	return s, nil
}

// Apply takes in what changed and brings it into the tables. The first delta
// has to be the complete state (R4): what is left over from an earlier agent
// and is not in it is removed.
//
// An error says that some of it is not in the tables; Status says which, and
// Retry tries again. What has been left out (admission) is taken in with the change that
// makes room, and is an error once.
func (s *Syncer) Apply(delta service.Delta) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	leftOut := s.take(delta)
	err := s.reconcile()
	s.stats.Synced = true // not before: reconcile lets others read the status in between
	s.retryAfter(err)
	return errors.Join(leftOut, err)
}

// retryAfter has Retry try again what has failed for the first time.
func (s *Syncer) retryAfter(err error) {
	if s.backoff.Delay() == 0 && err != nil {
		s.retryAt = time.Now().Add(s.backoff.Next())
	}
}

// Retry tries again what failed, if its time has come: after 100 ms first, then
// after twice the time before, at most 30 s; at once when CollectGarbage has given
// table space back. It returns when to call again, the zero time if there is
// nothing to retry.
func (s *Syncer) Retry(now time.Time) (next time.Time, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.backoff.Delay() > 0 && !now.Before(s.retryAt) {
		s.stats.Retries++
		for key := range s.failures {
			s.dirty[key] = true
		}
		if err = s.reconcile(); err != nil {
			s.retryAt = now.Add(s.backoff.Next())
		}
	}
	if s.backoff.Delay() == 0 {
		return time.Time{}, nil
	}
	return s.retryAt, err
}

// take turns a delta into wanted and dirty frontends, and says what has been left out of it. A frontend
// that goes from one owner to another within a delta is only changed, never taken away.
func (s *Syncer) take(delta service.Delta) (leftOut error) {
	leftOut = s.admit(delta)
	if delta.ServiceCIDRs != nil {
		s.cidrs = *delta.ServiceCIDRs
	}
	if delta.PodNetworks != nil {
		s.pods = *delta.PodNetworks
	}
	if delta.Balancers != nil {
		s.wantedBalancers = *delta.Balancers
	}
	if !s.stats.Synced {
		for key := range s.applied { // left over from an earlier agent
			s.dirty[key] = true
		}
	}
	return leftOut
}
