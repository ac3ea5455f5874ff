// SPDX-License-Identifier: Apache-2.0

package sync

import (
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
	setAt       map[extent]*set
	rows        map[uint32]bool
}

func (s *Syncer) restore() error {
	if err := s.tables.WaitForReaders(); err != nil { // of what the earlier agent retired
		return err
	}
	r := restorer{s, map[uint32]*port{}, map[uint32]*backend{}, map[uint32]*source{}, map[extent]*set{}, map[uint32]bool{}}
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
	if err := r.readAffinity(); err != nil {
		return err
	}
	networks, err := s.tables.Networks.All()
	if err != nil {
		return err
	}
	for key := range networks {
		s.networks.applied[key.Prefix()] = true
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
	extents := [keptSet + 1]extent{keptSet: {content.KeptFirst, uint32(content.KeptCount)}}
	for class, d := range content.Decisions {
		extents[class] = extent{d.First, d.Count}
	}
	var sets [keptSet + 1]*set
	for i, at := range extents {
		if at.count == 0 {
			continue
		}
		if sets[i] = r.readSet(at); sets[i] == nil {
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

// readSet reads the slots of a set, nil if they are not a set.
func (r *restorer) readSet(at extent) *set {
	if known := r.setAt[at]; known != nil {
		return known
	}
	if at.end() < at.first || at.end() > r.tables.Slots.Len() {
		return nil
	}
	found := &set{extent: at}
	for n := at.first; n < at.end(); n++ {
		b := r.backendByID[r.tables.Slots.Load(n)]
		if b == nil {
			return nil
		}
		found.members = append(found.members, b)
	}
	if !r.slots.reserve(at) {
		return nil
	}
	for _, b := range found.members {
		b.refs++
	}
	r.setAt[at] = found
	r.unused = append(r.unused, found)
	return found
}

func (r *restorer) readBackends() error {
	rows, err := r.tables.Backends.All()
	if err != nil {
		return err
	}
	for id, row := range rows {
		b := &backend{id: id, key: backendKey{row.AddrPort(), service.Protocol(row.Protocol), row.Local != 0}}
		r.backendByID[id] = b
		r.unused = append(r.unused, b)
		if other := r.backends[b.key]; other == nil || other.id > id {
			r.backends[b.key] = b
		}
	}
	return nil
}

func (r *restorer) readAffinity() error {
	all, err := r.tables.Affinity.All()
	if err != nil {
		return err
	}
	for key, e := range all {
		if r.portByID[key.Service] == nil {
			p := &port{id: key.Service}
			r.portByID[p.id] = p
			r.unused = append(r.unused, p)
		}
		if r.backendByID[e.Backend] == nil && e.Backend != 0 && e.Backend < r.tables.Backends.Len() {
			b := &backend{id: e.Backend}
			r.backendByID[b.id] = b
			r.unused = append(r.unused, b)
		}
	}
	return nil
}
