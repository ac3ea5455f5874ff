// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
)

// restorer reads the state of a Syncer from the tables.
type restorer struct {
	*Syncer
	alloc *allocRestorer
	sets  *setsRestorer
	rows  map[uint32]bool
}

func (s *Syncer) restore() error {
	s.epochStale, s.fewerUntracked = true, true // not known: assume so
	if err := s.bumpEpoch(); err != nil {
		return err
	}
	if err := s.tables.WaitForReaders(); err != nil { // those that may use what the earlier agent deferred
		return err
	}
	known, err := s.alloc.restore()
	if err != nil {
		return err
	}
	r := restorer{s, known, s.sets.restore(known), map[uint32]bool{}}
	index, err := s.tables.Frontends.All()
	if err != nil {
		return err
	}
	for key, row := range index {
		s.tables.Prefilter.Add(key) // an agent without prefilter may have published it
		r.readFrontend(key, row)
	}
	r.sets.end()
	if err := s.startAccepting(s.wantedAccepted()); err != nil { // an earlier agent may not have supported it
		return err
	}
	if err := known.end(); err != nil {
		return err
	}
	if err := errors.Join(s.networks.restore(), s.balancers.restore()); err != nil {
		return err
	}
	s.rowNumbers = poolOf(r.rows, s.tables.FrontendRows.Len()-1, 0)
	return nil
}

// readFrontend reads one entry of the index. A frontend whose row is invalid gets an empty content, so that
// it is replaced or removed.
func (r *restorer) readFrontend(key bpf.FrontendKey, row uint32) {
	e := &entry{}
	r.applied[codec.FrontendKeyOf(key)] = e
	if row == 0 || row >= r.tables.FrontendRows.Len() || r.rows[row] {
		return
	}
	e.row, r.rows[row] = row, true
	content, err := codec.LoadFrontend(r.tables, row)
	p := r.alloc.portByID[content.Port()]
	if err != nil || content.Key() != key || p == nil {
		return
	}
	sets, ok := r.sets.read(&content)
	if !ok {
		return
	}
	e.content, e.port, e.sets = content, p, sets
	r.alloc.refer(p)
	r.reserve(e)
	r.sets.refer(&e.sets)
	if id := content.SourceSet(); id != 0 {
		e.source = r.alloc.sourceOf(id)
		r.alloc.refer(e.source)
	}
}
