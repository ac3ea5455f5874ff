// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// noteUntracked makes the edge look up an untracked frontend, before it is published.
func (f *frontends) noteUntracked(key service.FrontendKey, e *entry) error {
	if !e.concernsUntracked() {
		return nil
	}
	return f.changeEnds(func(ends *bpf.UntrackedEnds) { ends.Add(codec.FrontendKey(key)) })
}

// changeEnds changes what the edge knows of untracked frontends.
func (f *frontends) changeEnds(change func(*bpf.UntrackedEnds)) error {
	had := f.tables.UntrackedFrontends.Load(0)
	ends := had
	if change(&ends); ends == had {
		return nil
	}
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
	err := f.changeEnds(func(ends *bpf.UntrackedEnds) {
		ends.Bits = bpf.UntrackedEnds{}.Bits
		for key, e := range f.applied {
			if e.concernsUntracked() {
				ends.Add(codec.FrontendKey(key))
			}
		}
	})
	f.fewerUntracked = err != nil
	return err
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
	err := f.changeEnds(func(ends *bpf.UntrackedEnds) { ends.Epoch++ })
	f.epochStale = err != nil
	return err
}

// auditUntracked repairs the untracked frontends if another program has changed them.
func (f *frontends) auditUntracked(to *auditor) {
	for key, e := range f.applied {
		if e.concernsUntracked() && !f.tables.UntrackedFrontends.Load(0).Has(codec.FrontendKey(key)) {
			to.repaired(f.noteUntracked(key, e))
		}
	}
}

// Programs decapsulate packets of balancers for this node's backends only while something uses DSR (enum
// dsr_accepted in bpf/lb/types.h). A kind is accepted before the first frontend that uses it is published.
// It is no longer accepted after a GC pass that finds no conntrack entry of a flow that a balancer sends
// here: flows keep their encapsulation when their Service stops using DSR.

// alwaysAccept is Syncer.AcceptTunnels.
func (f *frontends) alwaysAccept(always bool) error {
	f.acceptTunnels = always
	return f.startAccepting(f.wantedAccepted())
}

// accepts returns the kinds that a frontend needs, including those of flows from before its last change.
func (e *entry) accepts() (kinds bpf.Accepted) {
	p := e.sets.history()
	if e.content.DSR() != bpf.DSRNone || p != nil && p.dsr != bpf.DSRNone {
		kinds = bpf.AcceptTunnels
	}
	if e.content.DSR() == bpf.DSROpt {
		kinds |= bpf.AcceptOption
	}
	return kinds
}

// accepted returns the kinds that programs decapsulate.
func (f *frontends) accepted() bpf.Accepted { return f.tables.UntrackedFrontends.Load(0).Accepted }

// wantedAccepted returns the kinds that are in use.
func (f *frontends) wantedAccepted() (kinds bpf.Accepted) {
	if f.acceptTunnels {
		kinds = bpf.AcceptTunnels
	}
	for _, e := range f.applied {
		kinds |= e.accepts()
	}
	return kinds
}

// startAccepting makes programs accept more kinds.
func (f *frontends) startAccepting(kinds bpf.Accepted) error {
	return f.changeEnds(func(ends *bpf.UntrackedEnds) { ends.Accepted |= kinds })
}

// unusedAccepted returns the kinds that are accepted and not in use.
func (f *frontends) unusedAccepted() bpf.Accepted {
	accepted := f.accepted()
	if accepted == 0 {
		return 0
	}
	return accepted &^ f.wantedAccepted()
}

// stopAccepting makes programs reject those of the kinds that are not in use.
func (f *frontends) stopAccepting(kinds bpf.Accepted) error {
	return f.changeEnds(func(ends *bpf.UntrackedEnds) { ends.Accepted &^= kinds & f.unusedAccepted() })
}

// auditAccepted repairs the kinds if another program has changed them.
func (f *frontends) auditAccepted(to *auditor) {
	want := f.wantedAccepted()
	if f.accepted()&want != want {
		to.repaired(f.startAccepting(want))
	}
}
