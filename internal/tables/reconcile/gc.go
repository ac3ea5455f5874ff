// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"time"

	"beeline.io/beeline/internal/bpf/codec"
)

// deferRelease queues an entry that the index does not (or no longer) lead to, for release after a grace
// period.
func (s *Syncer) deferRelease(e *entry) { s.deferred = append(s.deferred, e) }

// release drops an entry's references. Resources without further references become unreferenced.
func (s *Syncer) release(e *entry) {
	if e.row != 0 {
		// A row that looks used would keep the table from being made smaller.
		codec.EraseFrontend(s.tables, e.row)
		s.rowNumbers.put(e.row)
	}
	if e.port != nil {
		s.alloc.unrefer(e.port)
	}
	if e.source != nil {
		s.alloc.unrefer(e.source)
	}
	if e.reserved != nil {
		s.alloc.unrefer(e.reserved)
	}
	s.sets.unrefer(&e.sets)
}

// CollectGarbage frees what was deferred, after a grace period, and what has no references. Call it
// periodically: once a second is plenty. It reports whether anything is left to free.
//
// Changes can be made during the grace period: what they defer waits for the next one.
func (s *Syncer) CollectGarbage() (more bool, err error) {
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	s.mu.Lock()
	deferred, unreferenced := len(s.deferred), s.sets.garbage()+s.alloc.garbage()
	s.released = 0
	err = s.bumpEpoch()
	s.mu.Unlock()
	if err != nil {
		return true, err
	}
	if deferred == 0 && unreferenced == 0 {
		return false, nil
	}
	if err := s.tables.WaitForReaders(); err != nil {
		return true, err
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	// A writer that was short of space has released all of these meanwhile, or none.
	err = s.releaseDeferred(max(0, deferred-s.released))
	if s.freed && err == nil {
		s.freed = false
		s.retryAt = time.Now() // what failed may fit now
	}
	return len(s.deferred)+s.sets.garbage()+s.alloc.garbage() > 0, err
}

// collectGarbage is CollectGarbage for a writer. It unlocks mu during the grace period, so that readers
// need not wait for it.
func (s *Syncer) collectGarbage() error {
	if err := s.bumpEpoch(); err != nil {
		return err
	}
	s.mu.Unlock()
	err := s.tables.WaitForReaders()
	s.mu.Lock()
	if err != nil {
		return err
	}
	n := len(s.deferred)
	err = s.releaseDeferred(n)
	s.released += n
	return err
}

// releaseDeferred releases the n oldest deferred entries, which no program uses, and frees what has no
// references then: a resource of an entry that was deferred later still has one.
func (s *Syncer) releaseDeferred(n int) error {
	for _, e := range s.deferred[:n] {
		s.release(e)
	}
	s.deferred = append([]*entry(nil), s.deferred[n:]...)
	s.sets.freeUnreferenced()
	return s.alloc.freeUnreferenced()
}
