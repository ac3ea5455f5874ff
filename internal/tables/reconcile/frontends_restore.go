// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// restore reads the frontends and all that they refer to.
func (f *frontends) restore() error {
	f.epochStale, f.fewerUntracked = true, true // not known: assume so
	if err := f.bumpEpoch(); err != nil {
		return err
	}
	if err := f.tables.WaitForReaders(); err != nil { // those that may use what the earlier agent deferred
		return err
	}
	known, err := f.alloc.restore()
	if err != nil {
		return err
	}
	index, err := f.tables.Frontends.All()
	if err != nil {
		return err
	}
	r := frontendsRestorer{f, known, f.sets.restore(known), map[uint32]bool{}}
	for key, row := range index {
		f.tables.Prefilter.Add(key) // an agent without prefilter may have published it
		r.read(key, row)
	}
	r.knownSets.end()
	f.rowNumbers = poolOf(r.rows, f.tables.FrontendRows.Len()-1, 0)
	return errors.Join(f.startAccepting(f.wantedAccepted()), known.end()) // an earlier agent may not have supported it
}

// frontendsRestorer reads frontends from the tables.
type frontendsRestorer struct {
	*frontends
	known     *allocRestorer
	knownSets *setsRestorer
	rows      map[uint32]bool
}

// read reads one entry of the index. A frontend whose row is invalid gets an empty content, so that it is replaced or
// removed.
func (r *frontendsRestorer) read(key bpf.FrontendKey, row uint32) {
	e := &entry{}
	r.applied[codec.FrontendKeyOf(key)] = e
	if row == 0 || row >= r.tables.FrontendRows.Len() || r.rows[row] {
		return
	}
	e.row, r.rows[row] = row, true
	content, err := codec.LoadFrontend(r.tables, row)
	p := r.known.portByID[content.Port()]
	if err != nil || content.Key() != key || p == nil {
		return
	}
	sets, ok := r.knownSets.read(&content)
	if !ok {
		return
	}
	e.content, e.port, e.sets = content, p, sets
	r.alloc.refer(p)
	r.reserve(e)
	r.sets.refer(&e.sets)
	if id := content.SourceSet(); id != 0 {
		e.source = r.known.sourceOf(id)
		r.alloc.refer(e.source)
	}
}

// audit repairs the tables, and returns the frontends whose rows are damaged: they have to be replaced. It removes
// index entries that the agent did not make.
func (f *frontends) audit(to *auditor) (damaged []service.FrontendKey) {
	f.alloc.audit(to)
	live := map[*set]bool{}
	for _, e := range f.applied {
		for x := range e.sets.each {
			live[x] = true
		}
	}
	for x := range live {
		f.sets.audit(to, x)
	}
	index, err := f.tables.Frontends.All()
	if err != nil {
		to.errs = append(to.errs, err)
		return nil
	}
	for key, e := range f.applied {
		row, ok := index[codec.FrontendKey(key)]
		delete(index, codec.FrontendKey(key))
		if !f.tables.Prefilter.Contains(codec.FrontendKey(key)) {
			f.tables.Prefilter.Add(codec.FrontendKey(key))
			to.repaired(nil)
		}
		if ok && row == e.row {
			if content, err := codec.LoadFrontend(f.tables, row); err == nil && content == e.content {
				continue
			}
		}
		e.content.ForgetKey() // build needs another row; the rest still tells requiredHistory how packets were forwarded
		damaged = append(damaged, key)
		to.repairs++
	}
	for key := range index {
		to.repaired(f.tables.Frontends.Delete(key))
		f.epochStale = true
	}
	f.auditUntracked(to)
	f.auditAccepted(to)
	return damaged
}
