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
	"beeline.io/beeline/internal/cluster/service"
)

// reconcile brings everything that is dirty into the tables. While a table is full it frees what is
// deferred and tries again, as long as that leaves fewer frontends without room.
func (s *Syncer) reconcile() error {
	full := s.pass()
	for len(full) > 0 && s.collectGarbage() {
		s.mark(full...)
		again := s.pass()
		if len(again) >= len(full) {
			break
		}
		full = again
	}
	s.networks.reconcile()
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
	errs := s.networks.errors()
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
	s.frontends.beginPass()
	defer s.frontends.forgetUntracked() // if it fails, it is repeated with the next change
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
	items := make([]workItem, 0, len(s.dirty))
	for key := range s.dirty {
		t := workItem{key: key}
		if w, ok := s.admission.wanted[key]; ok {
			t.class = 1
			if !s.frontends.has(key) {
				t.class, t.created = 2, w.plan.Created
			}
		}
		items = append(items, t)
	}
	slices.SortFunc(items, func(a, b workItem) int {
		if (a.key.Port == 0) != (b.key.Port == 0) {
			return cmp.Compare(b.key.Port, a.key.Port)
		}
		return cmp.Or(cmp.Compare(a.class, b.class), a.created.Compare(b.created), a.key.Compare(b.key))
	})
	keys := make([]service.FrontendKey, len(items))
	for i := range items {
		keys[i] = items[i].key
	}
	return keys
}

// reconcileFrontend makes one frontend what is wanted.
func (s *Syncer) reconcileFrontend(key service.FrontendKey) error {
	w, ok := s.admission.wanted[key]
	var c change
	var err error
	switch {
	case ok:
		c, err = s.frontends.put(w)
	case !s.admission.kept(key):
		c, err = s.frontends.remove(key)
	}
	if c != (change{}) {
		s.removals.note(key, c)
		s.stats.Updates++
		s.freed = s.freed || c.before != nil
	}
	return err
}
