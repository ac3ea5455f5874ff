// SPDX-License-Identifier: Apache-2.0

package reconcile

import "time"

// CollectGarbage frees what was deferred, after a grace period, and what has no references. Call it
// periodically: once a second is plenty. It reports whether anything is left to free.
//
// Changes can be made during the grace period: what they defer waits for the next one.
func (s *Syncer) CollectGarbage() (more bool, err error) {
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	s.mu.Lock()
	deferred, unreferenced := s.frontends.garbage()
	s.released = 0
	err = s.frontends.bumpEpoch()
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
	s.lock()
	defer s.unlock()
	// A writer that was short of space has released all of these meanwhile, or none.
	err = s.frontends.releaseDeferred(max(0, deferred-s.released))
	if s.freed && err == nil {
		s.freed = false
		s.retryAt = time.Now() // what failed may fit now
	}
	deferred, unreferenced = s.frontends.garbage()
	return deferred+unreferenced > 0, err
}

// collectGarbage is CollectGarbage for a writer, and reports whether it has released anything. It unlocks mu during the
// grace period, so that readers need not wait for it.
func (s *Syncer) collectGarbage() bool {
	n, _ := s.frontends.garbage()
	if n == 0 || s.frontends.bumpEpoch() != nil {
		return false
	}
	s.mu.Unlock()
	err := s.tables.WaitForReaders()
	s.mu.Lock()
	if err != nil {
		return false
	}
	s.released += n
	return s.frontends.releaseDeferred(n) == nil
}
