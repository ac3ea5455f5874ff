// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/jet"
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

// readSlotHistory reads the history in front of a list of retained backends, and reports whether it is
// valid. Unknown backends count as none.
func (r *restorer) readSlotHistory(x *set, l layout) bool {
	if codec.End(l.history) != l.members.First || !codec.Valid(l.history, r.tables.Slots.Len()) || l.historyDSR > bpf.DSROpt {
		return false
	}
	n := l.history.Count
	h := &jet.History{Stable: make([]uint32, n), Contested: make([]bool, n), Since: make([]jet.Seconds, n)}
	x.slotHistory = &slotHistory{history: h, dsr: l.historyDSR, words: codec.Slots(r.tables, l.history)}
	of := map[*backend]bool{}
	for slot, word := range x.slotHistory.words {
		stable, contested := codec.ParseHistoryWord(word)
		if h.Contested[slot] = contested; !contested {
			continue
		}
		h.Since[slot] = r.nextSecond()
		if b := r.alloc.backendByID[stable]; b != nil {
			h.Stable[slot] = b.id
			if !of[b] {
				of[b] = true
				x.slotHistory.backends = append(x.slotHistory.backends, b)
			}
		}
	}
	x.extent = extent{l.history.First, n + x.extent.count}
	return true
}
