// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// frontends keeps the index and the rows of frontends, and what the edge has to know of them: which are untracked, and
// which packets of balancers are for them. It is the only writer of these tables.
type frontends struct {
	tables *bpf.Tables
	alloc  *alloc
	sets   *sets

	applied    map[service.FrontendKey]*entry // in the tables
	rowNumbers pool
	deferred   []*entry // released when no program can use them any more

	// epochStale: the index has changed, and programs still cache the old rows. fewerUntracked: an
	// untracked frontend became tracked, or was removed.
	epochStale, fewerUntracked bool
	acceptTunnels              bool // even while no Service uses DSR
}

// want is a frontend and the plan that it is part of.
type want struct {
	frontend *service.Frontend
	plan     *service.Plan
}

// A change is the entry of a frontend that programs could use before, and that which they use now; nil for none.
type change struct{ before, now *entry }

// put makes a frontend what is wanted. Only its last step is visible to programs. The change is zero if the tables have
// not changed.
func (f *frontends) put(w want) (change, error) {
	key := w.frontend.Key
	old := f.applied[key]
	e, err := f.build(w, old)
	if err == nil && old != nil && old.content == e.content {
		f.release(e) // the old one has the same content
		return change{}, e.tracked
	}
	if err == nil {
		err = f.publish(key, e)
	}
	if err != nil {
		f.deferred = append(f.deferred, e)
		return change{}, err
	}
	f.applied[key] = e
	f.retire(old)
	return change{old, e}, errors.Join(e.tracked, f.bumpEpoch())
}

// remove removes a frontend, if the tables have it.
func (f *frontends) remove(key service.FrontendKey) (change, error) {
	old := f.applied[key]
	if old == nil {
		return change{}, nil
	}
	if err := f.tables.Frontends.Delete(codec.FrontendKey(key)); err != nil {
		return change{}, err
	}
	f.epochStale = true
	delete(f.applied, key)
	f.retire(old)
	return change{old, nil}, f.bumpEpoch()
}

// publish fills a free row and makes the index lead to it.
func (f *frontends) publish(key service.FrontendKey, e *entry) error {
	row, ok := f.rowNumbers.take()
	if !ok {
		return bpf.NewFullError(bpf.SockMapFrontendRows, f.tables.FrontendRows.Len())
	}
	e.row = row
	if err := e.content.Store(f.tables, row); err != nil {
		return err
	}
	if err := f.noteUntracked(key, e); err != nil {
		return err
	}
	if err := f.startAccepting(e.accepts()); err != nil {
		return err
	}
	f.tables.Prefilter.Add(codec.FrontendKey(key))
	if err := f.tables.Frontends.Put(codec.FrontendKey(key), row); err != nil {
		return err
	}
	f.epochStale = true
	return nil
}

// retire defers the release of an entry that the index no longer leads to.
func (f *frontends) retire(e *entry) {
	if e != nil {
		f.fewerUntracked = f.fewerUntracked || e.concernsUntracked()
		f.deferred = append(f.deferred, e)
	}
}

// release drops an entry's references.
func (f *frontends) release(e *entry) {
	if e.row != 0 {
		// A row that looks used would keep the table from being made smaller.
		codec.EraseFrontend(f.tables, e.row)
		f.rowNumbers.put(e.row)
	}
	if e.port != nil {
		f.alloc.unrefer(e.port)
	}
	if e.source != nil {
		f.alloc.unrefer(e.source)
	}
	if e.reserved != nil {
		f.alloc.unrefer(e.reserved)
	}
	f.sets.unrefer(&e.sets)
}

// garbage returns how many entries are deferred, and how many resources had no reference.
func (f *frontends) garbage() (deferred, unreferenced int) {
	return len(f.deferred), f.sets.garbage() + f.alloc.garbage()
}

// releaseDeferred releases the n oldest deferred entries, which no program uses, and frees what has no
// references then: a resource of an entry that was deferred later still has one. Sets are what refers to backends.
func (f *frontends) releaseDeferred(n int) error {
	for _, e := range f.deferred[:n] {
		f.release(e)
	}
	f.deferred = slices.Clone(f.deferred[n:])
	f.sets.freeUnreferenced()
	return f.alloc.freeUnreferenced()
}

// fillPrefilter adds all frontends to the prefilter.
func (f *frontends) fillPrefilter() {
	for key := range f.applied {
		f.tables.Prefilter.Add(codec.FrontendKey(key))
	}
}
