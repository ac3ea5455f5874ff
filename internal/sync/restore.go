// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"errors"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// restorer builds a Syncer's picture of the tables. Ids that only affinity
// entries still name are taken too: they become free when the entries are gone.
type restorer struct {
	*Syncer
	portByID    map[uint32]*port
	backendByID map[uint32]*backend
	sourceByID  map[uint32]*source
	setAt       map[layout]*set
	rows        map[uint32]bool
}

func (s *Syncer) restore() error {
	s.turned, s.fewerUntracked = true, true // as far as is known
	if err := s.turn(); err != nil {
		return err
	}
	if err := s.tables.WaitForReaders(); err != nil { // of what the earlier agent retired
		return err
	}
	r := restorer{s, map[uint32]*port{}, map[uint32]*backend{}, map[uint32]*source{}, map[layout]*set{}, map[uint32]bool{}}
	s.slots = newExtents(s.tables.Slots.Len())
	if err := r.readPorts(); err != nil {
		return err
	}
	if err := r.readSources(); err != nil {
		return err
	}
	if err := r.readBackends(); err != nil {
		return err
	}
	if err := r.readReservedPorts(); err != nil {
		return err
	}
	index, err := s.tables.Frontends.All()
	if err != nil {
		return err
	}
	for key, row := range index {
		r.readFrontend(key, row)
	}
	r.takeSpare()
	if err := s.accept(s.wantedAccepted()); err != nil { // an earlier agent may not have known of it
		return err
	}
	if err := r.readAffinity(); err != nil {
		return err
	}
	if err := errors.Join(s.networks.restore(), s.balancers.restore()); err != nil {
		return err
	}
	s.rowNumbers = poolOf(r.rows, s.tables.FrontendRows.Len()-1, 0)
	s.portIDs = poolOf(r.portByID, s.tables.Services.Max(), idRest)
	s.backendIDs = poolOf(r.backendByID, s.tables.Backends.Len()-1, idRest)
	s.sourceIDs = poolOf(r.sourceByID, s.tables.SourceRanges.Max(), idRest)
	return nil
}

func (r *restorer) readPorts() error {
	names, err := r.tables.Services.All()
	if err != nil {
		return err
	}
	for id, name := range names {
		p := &port{id: id, key: PortOf(name)}
		r.portByID[id] = p
		r.unused = append(r.unused, p)
		if other := r.ports[p.key]; other == nil || other.id > id {
			r.ports[p.key] = p
		}
	}
	return nil
}

func (r *restorer) readSources() error {
	ranges, err := r.tables.SourceRanges.All()
	if err != nil {
		return err
	}
	for key := range ranges {
		found := r.sourceOf(key.SourceSet)
		found.prefixes = append(found.prefixes, key.Prefix())
	}
	r.ranges = uint32(len(ranges))
	for _, found := range r.sourceByID {
		r.sources[sourceName(found.prefixes)] = found
	}
	return nil
}

func (r *restorer) sourceOf(id uint32) *source {
	found := r.sourceByID[id]
	if found == nil {
		found = &source{id: id}
		r.sourceByID[id] = found
		r.unused = append(r.unused, found)
	}
	return found
}

// readFrontend takes one entry of the index in. One that does not make sense
// keeps an empty content, so that it is written anew or removed.
func (r *restorer) readFrontend(key datapath.FrontendKey, row uint32) {
	name := service.FrontendKey{
		Addr:     key.Address.Addr(),
		Port:     datapath.NetworkOrder(key.Port),
		Protocol: service.Protocol(key.Protocol),
	}
	e := &entry{}
	r.applied[name] = e
	if row == 0 || row >= r.tables.FrontendRows.Len() || r.rows[row] {
		return
	}
	e.row, r.rows[row] = row, true
	content := r.tables.FrontendRows.Load(row)
	p := r.portByID[content.Service]
	if content.Key != key || p == nil {
		return
	}
	maglev := content.Flags&uint16(datapath.FlagMaglev) != 0
	remembers := content.Flags&uint16(datapath.FlagHistory) != 0
	var sets [keptSet + 1]*set
	for i, d := range content.Decisions {
		if d.Count == 0 {
			continue
		}
		if sets[i] = r.readSet(layout{decision: d, maglev: maglev}); sets[i] == nil {
			return
		}
	}
	if content.KeptFirst != 0 || remembers {
		kept := r.kept(content)
		if kept.First == 0 || kept.Count == 0 && !remembers {
			return
		}
		if sets[keptSet] = r.readSet(layout{decision: kept, counted: true, past: remembers}); sets[keptSet] == nil {
			return
		}
	}
	e.content, e.port, e.sets = content, p, sets
	p.refs++
	r.refer(e)
	for _, set := range sets {
		if set != nil {
			set.refs++
		}
	}
	if content.SourceSet != 0 {
		e.source = r.sourceOf(content.SourceSet)
		e.source.refs++
	}
}

// kept is where the list stands of what a frontend keeps.
func (r *restorer) kept(content datapath.Frontend) datapath.Decision {
	if content.KeptFirst == 0 || content.KeptFirst > r.tables.Slots.Len() {
		return datapath.Decision{}
	}
	return datapath.Decision{First: content.KeptFirst, Count: r.tables.Slots.Load(content.KeptFirst - 1)}
}

// layout is where a set is, and what stands before what a row names.
type layout struct {
	decision              datapath.Decision
	maglev, counted, past bool
}

// readSet reads the slots of a set, nil if they are not a set.
func (r *restorer) readSet(l layout) *set {
	if known := r.setAt[l]; known != nil {
		return known
	}
	var found *set
	if l.maglev {
		found = r.readTable(l.decision)
	} else {
		found = r.readMembers(l.decision, l.counted)
	}
	if found == nil || l.past && !r.readPast(found) || !r.slots.reserve(found.extent) {
		return nil
	}
	for _, b := range found.backends() {
		b.refs++
	}
	r.setAt[l] = found
	r.unused = append(r.unused, found)
	return found
}

// takeSpare takes what sets were given beyond what they need, where nothing else is: an earlier agent may
// not have done so.
func (r *restorer) takeSpare() {
	for _, x := range r.setAt {
		if x == nil {
			continue
		}
		if n := roundSlots(x.extent.count) - x.extent.count; n > 0 && r.slots.reserve(extent{x.extent.end(), n}) {
			x.spare = n
		}
	}
}

// readMembers reads a set without a table.
func (r *restorer) readMembers(d datapath.Decision, counted bool) *set {
	end := d.First + d.Count
	if end < d.First || end > r.tables.Slots.Len() {
		return nil
	}
	found := &set{extent: extent{d.First, d.Count}, counted: counted}
	if counted {
		found.extent = extent{d.First - 1, d.Count + 1}
	}
	for n := d.First; n < end; n++ {
		b := r.backendByID[r.tables.Slots.Load(n)]
		if b == nil {
			return nil
		}
		found.members = append(found.members, b)
	}
	return found
}

func (r *restorer) readBackends() error {
	rows, err := r.tables.Backends.All()
	if err != nil {
		return err
	}
	for id, row := range rows {
		b := &backend{id: id, key: keyOfRow(row)}
		r.backendByID[id] = b
		r.unused = append(r.unused, b)
		if other := r.backends[b.key]; other == nil || other.id > id {
			r.backends[b.key] = b
		}
	}
	return nil
}

func (r *restorer) readAffinity() error {
	return r.tables.Affinity.Walk(func(e *datapath.AffinityEntry) bool {
		if r.portByID[e.Key.Service] == nil {
			p := &port{id: e.Key.Service}
			r.portByID[p.id] = p
			r.unused = append(r.unused, p)
		}
		if r.backendByID[e.Backend] == nil && e.Backend != 0 && e.Backend < r.tables.Backends.Len() {
			b := &backend{id: e.Backend}
			r.backendByID[b.id] = b
			r.unused = append(r.unused, b)
		}
		return true
	})
}
