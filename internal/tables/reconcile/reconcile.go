// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// reconcile brings everything that is dirty into the tables. While a table is full it frees what is
// deferred and tries again, as long as that leaves fewer frontends without room.
func (s *Syncer) reconcile() error {
	full := s.pass()
	for len(full) > 0 && len(s.deferred) > 0 && s.collectGarbage() == nil {
		for _, key := range full {
			s.dirty[key] = true
		}
		again := s.pass()
		if len(again) >= len(full) {
			break
		}
		full = again
	}
	s.reconcileNetworks()
	s.stats.LastSync = time.Now()
	s.noteProgrammed()
	if s.inSync() {
		s.stats.LastSuccess = s.stats.LastSync
		s.backoff.Reset()
		return nil
	}
	return s.failed()
}

// failed returns an error that describes the first failures.
func (s *Syncer) failed() error {
	errs := []error{s.networks.err, s.balancers.err}
	for _, key := range slices.SortedFunc(maps.Keys(s.failures), service.FrontendKey.Compare) {
		errs = append(errs, fmt.Errorf("%s: %w", key, s.failures[key]))
		if len(errs) > 10 {
			errs = append(errs, fmt.Errorf("and %d more", len(s.failures)-10))
			break
		}
	}
	return errors.Join(errs...)
}

// pass reconciles the dirty frontends once, in order, and returns those for which a table was full. Frontends
// for all other ports of an address come last: the ports of a new Service are published before its other
// ports are refused, and those of a removed Service are refused until its address is removed.
func (s *Syncer) pass() (full []service.FrontendKey) {
	s.sets.beginPass()
	s.bumpEpoch()             // what failed before; collectGarbage fails if it still does
	defer s.forgetUntracked() // if it fails, it is repeated with the next change
	for i, key := range s.inOrder() {
		if i%64 == 63 {
			s.mu.Unlock() // lets readers in
			s.mu.Lock()
		}
		err := s.reconcileFrontend(key)
		delete(s.dirty, key)
		if err == nil {
			delete(s.failures, key)
			continue
		}
		s.failures[key] = err
		s.stats.Failures++
		var fullErr *bpf.FullError
		if errors.As(err, &fullErr) {
			full = append(full, key)
		}
	}
	return full
}

// workItem is a frontend to reconcile, with what determines its place in the order.
type workItem struct {
	key     service.FrontendKey
	class   int // within a port: 0 removed, 1 changed, 2 new
	created time.Time
}

// inOrder returns the dirty frontends in the order in which they are reconciled. Changes precede new
// frontends, and of new ones those of the oldest object come first, so that they find room.
func (s *Syncer) inOrder() []service.FrontendKey {
	turns := make([]workItem, 0, len(s.dirty))
	for key := range s.dirty {
		t := workItem{key: key}
		if w, ok := s.wanted[key]; ok {
			t.class = 1
			if s.applied[key] == nil {
				t.class, t.created = 2, w.plan.Created
			}
		}
		turns = append(turns, t)
	}
	slices.SortFunc(turns, func(a, b workItem) int {
		if (a.key.Port == 0) != (b.key.Port == 0) {
			return cmp.Compare(b.key.Port, a.key.Port)
		}
		return cmp.Or(cmp.Compare(a.class, b.class), a.created.Compare(b.created), a.key.Compare(b.key))
	})
	keys := make([]service.FrontendKey, len(turns))
	for i := range turns {
		keys[i] = turns[i].key
	}
	return keys
}

// reconcileFrontend makes one frontend what is wanted. Only its last step is visible to programs.
func (s *Syncer) reconcileFrontend(key service.FrontendKey) error {
	old := s.applied[key]
	w, ok := s.wanted[key]
	if !ok {
		if old == nil || s.kept(key, old) {
			return nil
		}
		if err := s.tables.Frontends.Delete(codec.FrontendKey(key)); err != nil {
			return err
		}
		s.epochStale = true
		s.fewerUntracked = s.fewerUntracked || old.concernsUntracked()
		s.noteRemoved(key, old, nil)
		s.deferRelease(old)
		s.freed = true
		delete(s.applied, key)
		s.stats.Updates++
		return s.bumpEpoch()
	}
	e, err := s.build(w, old)
	if err == nil && old != nil && old.content == e.content {
		s.release(e) // the old one has the same content
		return e.tracked
	}
	if err == nil {
		err = s.publish(key, e)
	}
	if err != nil {
		s.deferRelease(e)
		return err
	}
	s.noteRemoved(key, old, e)
	if old != nil {
		s.fewerUntracked = s.fewerUntracked || old.concernsUntracked()
		s.deferRelease(old)
		s.freed = true
	}
	s.applied[key] = e
	s.stats.Updates++
	return errors.Join(e.tracked, s.bumpEpoch())
}

// publish fills a free row and makes the index lead to it.
func (s *Syncer) publish(key service.FrontendKey, e *entry) error {
	row, ok := s.rowNumbers.take()
	if !ok {
		return bpf.NewFullError(bpf.SockMapFrontendRows, s.tables.FrontendRows.Len())
	}
	e.row = row
	if err := e.content.Store(s.tables, row); err != nil {
		return err
	}
	if err := s.noteUntracked(key, e); err != nil {
		return err
	}
	if err := s.startAccepting(e.accepts()); err != nil {
		return err
	}
	s.tables.Prefilter.Add(codec.FrontendKey(key))
	if err := s.tables.Frontends.Put(codec.FrontendKey(key), row); err != nil {
		return err
	}
	s.epochStale = true
	return nil
}
