// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/history"
	"beeline.io/beeline/internal/service"
)

// noteUntracked has the edge look for an untracked frontend, before there is one.
func (s *Syncer) noteUntracked(key service.FrontendKey, e *entry) error {
	ends := s.tables.UntrackedFrontends.Load(0)
	if !e.concernsUntracked() || ends.Has(tableKey(key)) {
		return nil
	}
	ends.Add(tableKey(key))
	return s.tables.UntrackedFrontends.Store(0, ends)
}

func (e *entry) concernsUntracked() bool {
	return e.content.Flags&uint16(datapath.FlagUntracked|datapath.FlagHistory) != 0
}

// forgetUntracked has it look for none any more that is none.
func (s *Syncer) forgetUntracked() error {
	if !s.fewerUntracked {
		return nil
	}
	had := s.tables.UntrackedFrontends.Load(0)
	ends := datapath.UntrackedEnds{}
	ends.Turned, ends.Accepted = had.Turned, had.Accepted
	for key, e := range s.applied {
		if e.concernsUntracked() {
			ends.Add(tableKey(key))
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

// turn has programs forget which rows the index has led to, if it leads elsewhere by now. What it
// led to is used again only after that, and when those have ended that were running.
func (s *Syncer) turn() error {
	if !s.turned {
		return nil
	}
	ends := s.tables.UntrackedFrontends.Load(0)
	ends.Turned++
	if err := s.tables.UntrackedFrontends.Store(0, ends); err != nil {
		return err
	}
	s.turned = false
	return nil
}

// untrackedFrontends mends what somebody else has written.
func (a *auditor) untrackedFrontends() {
	for key, e := range a.applied {
		if e.concernsUntracked() && !a.tables.UntrackedFrontends.Load(0).Has(tableKey(key)) {
			a.repaired(a.noteUntracked(key, e))
		}
	}
}

// readPast reads what stands before a list of what a frontend keeps. Backends that it names
// and nobody knows are as good as none. It returns whether it makes sense.
func (r *restorer) readPast(x *set) bool {
	slots, end := r.tables.Slots, x.extent.first
	if end < pastHead {
		return false
	}
	n, dsr := slots.Load(end-2), slots.Load(end-1)
	if n == 0 || n > end-pastHead || dsr > uint32(datapath.DSROpt) {
		return false
	}
	first := end - pastHead - n
	h := &history.History{Stable: make([]uint32, n), Contested: make([]bool, n), Since: make([]history.Seconds, n)}
	x.past = &past{history: h, dsr: uint8(dsr), words: make([]uint32, n)}
	of := map[*backend]bool{}
	for slot := range h.Stable {
		word := slots.Load(first + uint32(slot))
		x.past.words[slot] = word
		if h.Contested[slot] = word&uint32(datapath.HistoryContested) != 0; !h.Contested[slot] {
			continue
		}
		h.Since[slot] = r.nextSecond()
		if b := r.backendByID[word&uint32(datapath.HistoryBackend)]; b != nil {
			h.Stable[slot] = b.id
			if !of[b] {
				of[b] = true
				x.past.of = append(x.past.of, b)
			}
		}
	}
	x.extent = extent{first, x.extent.end() - first}
	return true
}
