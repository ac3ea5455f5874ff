// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// restorer reads the state of a Syncer from the tables.
type restorer struct {
	*Syncer
	alloc *allocRestorer
	setAt map[layout]*set
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
	r := restorer{s, known, map[layout]*set{}, map[uint32]bool{}}
	index, err := s.tables.Frontends.All()
	if err != nil {
		return err
	}
	for key, row := range index {
		s.tables.Prefilter.Add(key) // an agent without prefilter may have published it
		r.readFrontend(key, row)
	}
	r.takeSpare()
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
	sets, ok := r.readSets(&content)
	if !ok {
		return
	}
	e.content, e.port, e.sets = content, p, sets
	r.alloc.refer(p)
	r.reserve(e)
	for _, set := range sets {
		if set != nil {
			set.refs++
		}
	}
	if id := content.SourceSet(); id != 0 {
		e.source = r.alloc.sourceOf(id)
		r.alloc.refer(e.source)
	}
}

// readSets reads the sets of a frontend, and reports whether they are valid.
func (r *restorer) readSets(content *codec.Frontend) (sets [retainedSet + 1]*set, ok bool) {
	lists := content.Lists()
	if content.HasHistory() != (lists.History.Count > 0) {
		return sets, false
	}
	for class := range service.SourceClasses {
		chosenFrom := content.Slots(service.SourceClass(class))
		if chosenFrom.Count == 0 {
			continue
		}
		l := layout{members: lists.Members[class]}
		if content.Maglev() {
			l.table = chosenFrom
		} else if l.members != chosenFrom {
			return sets, false
		}
		if sets[class] = r.readSet(l); sets[class] == nil {
			return sets, false
		}
	}
	if lists.Retained.Count > 0 || lists.History.Count > 0 {
		sets[retainedSet] = r.readSet(layout{members: lists.Retained, history: lists.History, historyDSR: lists.HistoryDSR})
		return sets, sets[retainedSet] != nil
	}
	return sets, true
}

// layout is the location of the parts of a set.
type layout struct {
	members, table, history codec.Range
	historyDSR              bpf.DSR
}

// readSet reads a set; nil if it is invalid.
func (r *restorer) readSet(l layout) *set {
	if known := r.setAt[l]; known != nil {
		return known
	}
	var found *set
	if l.table.Count > 0 {
		found = r.readTable(l.members, l.table)
	} else {
		found = r.readMembers(l.members)
	}
	if found == nil || l.history.Count > 0 && !r.readSlotHistory(found, l) || !r.alloc.reserveSlots(found.extent) {
		return nil
	}
	for _, b := range found.backends() {
		r.alloc.refer(b)
	}
	r.setAt[l] = found
	r.unreferencedSets = append(r.unreferencedSets, found)
	return found
}

// takeSpare reserves the slots behind each set's extent that roundSlots adds, unless something else uses
// them: an earlier agent may not have rounded.
func (r *restorer) takeSpare() {
	for _, x := range r.setAt {
		if x == nil {
			continue
		}
		if n := roundSlots(x.extent.count) - x.extent.count; n > 0 && r.alloc.reserveSlots(extent{x.extent.end(), n}) {
			x.spare = n
		}
	}
}

// readMembers reads a set without a table.
func (r *restorer) readMembers(at codec.Range) *set {
	if !codec.Valid(at, r.tables.Slots.Len()) {
		return nil
	}
	found := &set{extent: extent{at.First, at.Count}}
	for _, id := range codec.Slots(r.tables, at) {
		b := r.alloc.backendByID[id]
		if b == nil {
			return nil
		}
		found.members = append(found.members, b)
	}
	return found
}
