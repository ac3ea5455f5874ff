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
	"net/netip"
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

// Syncer keeps the tables in agreement with the plans. It is the only writer of the tables. All methods may
// be called from any goroutine.
type Syncer struct {
	tables *bpf.Tables
	alloc  *alloc
	sets   *sets
	// writer is held throughout any change, mu while a field is accessed. A long change unlocks mu now
	// and then, so that Status shows its progress.
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
	acceptTunnels   bool         // even while no Service uses DSR

	// What may differ from the tables, and what does so because a step failed.
	dirty    map[service.FrontendKey]bool
	failures map[service.FrontendKey]error
	conflict []netip.Prefix // pod networks that are also ServiceCIDRs
	backoff  wakeup.Backoff
	retryAt  time.Time // valid only after a failure

	// What the tables hold.
	applied   map[service.FrontendKey]*entry
	networks  networkTable[bpf.Network]
	balancers networkTable[bpf.Balancer]

	// Protocols with backends that were removed since the last call of TakeRemoved.
	removed map[service.Protocol]bool
	// UDP frontends that were removed since the last call of TakeRemovedUDP.
	removedUDP map[netip.AddrPort]bool

	// epochStale: the index has changed, and programs still cache the old rows. fewerUntracked: an
	// untracked frontend became tracked, or was removed.
	epochStale, fewerUntracked bool

	rowNumbers pool

	// What is freed when no program can use it any more.
	deferred []*entry
	freed    bool // some of what was deferred had been in use
	// gcMu is held by CollectGarbage; released counts what writers released while it waited.
	gcMu     sync.Mutex
	released int

	stats Stats
	// triggers are those of Services whose change is not completely in the tables yet; programmed is told
	// when it is, and is nil if nobody asks.
	triggers   map[service.Ref][]service.Trigger
	programmed func(service.Trigger)
}

// want is a frontend and the plan that it is part of.
type want struct {
	frontend *service.Frontend
	plan     *service.Plan
}

// New restores the state of the tables. It does not change what they mean.
func New(tables *bpf.Tables) (*Syncer, error) { return NewAt(tables, bpf.Now) }

// NewAt is New with a clock for the age of flows: in seconds, like last_seen of conntrack entries.
func NewAt(tables *bpf.Tables, seconds func() uint32) (*Syncer, error) {
	s := &Syncer{
		tables:     tables,
		alloc:      newAlloc(tables),
		admission:  newAdmission(),
		wanted:     map[service.FrontendKey]want{},
		dirty:      map[service.FrontendKey]bool{},
		backoff:    wakeup.Backoff{First: firstRetry, Most: lastRetry},
		failures:   map[service.FrontendKey]error{},
		applied:    map[service.FrontendKey]*entry{},
		removed:    map[service.Protocol]bool{},
		removedUDP: map[netip.AddrPort]bool{},
		triggers:   map[service.Ref][]service.Trigger{},
	}
	s.sets = newSets(tables, s.alloc, seconds)
	s.networks.table, s.balancers.table = tables.Networks, tables.Balancers
	if err := s.restore(); err != nil {
		return nil, fmt.Errorf("read the tables of the earlier agent: %w", err)
	}
	return s, nil
}

// Apply writes a delta to the tables. The first delta must be the complete state (R4): everything from an
// earlier agent that it lacks is removed.
//
// An error means that a part of it is not in the tables; Status names it, and Retry tries again. Objects
// that are left out (admission) are added by the change that makes room for them, and are reported as an
// error once.
func (s *Syncer) Apply(delta service.Delta) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
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

// take turns a delta into wanted and dirty frontends, and returns which objects are left out. A frontend
// that moves from one owner to another within a delta is only changed, never removed.
func (s *Syncer) take(delta service.Delta) (leftOut error) {
	leftOut = s.admit(delta)
	for _, t := range delta.Triggers {
		s.triggers[t.Service] = append(s.triggers[t.Service], t)
	}
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
