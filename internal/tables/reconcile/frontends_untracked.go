// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// noteUntracked makes the edge look up an untracked frontend, before it is published.
func (f *frontends) noteUntracked(key service.FrontendKey, e *entry) error {
	ends := f.tables.UntrackedFrontends.Load(0)
	if !e.concernsUntracked() || ends.Has(codec.FrontendKey(key)) {
		return nil
	}
	ends.Add(codec.FrontendKey(key))
	return f.tables.UntrackedFrontends.Store(0, ends)
}

func (e *entry) concernsUntracked() bool {
	return e.content.Untracked() || e.content.HasHistory()
}

// forgetUntracked stops the edge from looking up frontends that are no longer untracked.
func (f *frontends) forgetUntracked() error {
	if !f.fewerUntracked {
		return nil
	}
	had := f.tables.UntrackedFrontends.Load(0)
	ends := bpf.UntrackedEnds{}
	ends.Epoch, ends.Accepted = had.Epoch, had.Accepted
	for key, e := range f.applied {
		if e.concernsUntracked() {
			ends.Add(codec.FrontendKey(key))
		}
	}
	if ends != had {
		if err := f.tables.UntrackedFrontends.Store(0, ends); err != nil {
			return err
		}
	}
	f.fewerUntracked = false
	return nil
}

// beginPass begins a series of changes.
func (f *frontends) beginPass() {
	f.sets.beginPass()
	f.bumpEpoch() // what failed before; collectGarbage fails if it still does
}

// bumpEpoch makes programs discard cached rows if the index has changed. Rows are reused only after that,
// and after all programs have ended that were running then.
func (f *frontends) bumpEpoch() error {
	if !f.epochStale {
		return nil
	}
	ends := f.tables.UntrackedFrontends.Load(0)
	ends.Epoch++
	if err := f.tables.UntrackedFrontends.Store(0, ends); err != nil {
		return err
	}
	f.epochStale = false
	return nil
}

// auditUntracked repairs the untracked frontends if another program has changed them.
func (f *frontends) auditUntracked(to *auditor) {
	for key, e := range f.applied {
		if e.concernsUntracked() && !f.tables.UntrackedFrontends.Load(0).Has(codec.FrontendKey(key)) {
			to.repaired(f.noteUntracked(key, e))
		}
	}
}
