// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// noteUntracked makes the edge look up an untracked frontend, before it is published.
func (s *Syncer) noteUntracked(key service.FrontendKey, e *entry) error {
	ends := s.tables.UntrackedFrontends.Load(0)
	if !e.concernsUntracked() || ends.Has(codec.FrontendKey(key)) {
		return nil
	}
	ends.Add(codec.FrontendKey(key))
	return s.tables.UntrackedFrontends.Store(0, ends)
}

func (e *entry) concernsUntracked() bool {
	return e.content.Untracked() || e.content.HasHistory()
}

// forgetUntracked stops the edge from looking up frontends that are no longer untracked.
func (s *Syncer) forgetUntracked() error {
	if !s.fewerUntracked {
		return nil
	}
	had := s.tables.UntrackedFrontends.Load(0)
	ends := bpf.UntrackedEnds{}
	ends.Epoch, ends.Accepted = had.Epoch, had.Accepted
	for key, e := range s.applied {
		if e.concernsUntracked() {
			ends.Add(codec.FrontendKey(key))
		}
	}
	if ends != had {
		if err := s.tables.UntrackedFrontends.Store(0, ends); err != nil {
			return err
		}
	}
	s.fewerUntracked = false
	return nil
}

// bumpEpoch makes programs discard cached rows if the index has changed. Rows are reused only after that,
// and after all programs have ended that were running then.
func (s *Syncer) bumpEpoch() error {
	if !s.epochStale {
		return nil
	}
	ends := s.tables.UntrackedFrontends.Load(0)
	ends.Epoch++
	if err := s.tables.UntrackedFrontends.Store(0, ends); err != nil {
		return err
	}
	s.epochStale = false
	return nil
}

// untrackedFrontends repairs the untracked frontends if another program has changed them.
func (a *auditor) untrackedFrontends() {
	for key, e := range a.applied {
		if e.concernsUntracked() && !a.tables.UntrackedFrontends.Load(0).Has(codec.FrontendKey(key)) {
			a.repaired(a.noteUntracked(key, e))
		}
	}
}
