// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
)

// allocRestorer reads the state of an alloc from the tables. Ids that only affinity entries name are taken, too, until
// the entries are deleted.
type allocRestorer struct {
	*alloc
	portByID    map[uint32]*port
	backendByID map[uint32]*backend
	sourceByID  map[uint32]*source
}

// restore reads all tables. Nothing that it finds has a reference yet.
func (a *alloc) restore() (*allocRestorer, error) {
	r := &allocRestorer{a, map[uint32]*port{}, map[uint32]*backend{}, map[uint32]*source{}}
	for _, read := range []func() error{r.readPorts, r.readSources, r.readBackends, r.readReservedPorts} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// end takes the ids that affinity entries name, once the frontends have been read: what has no name is none of theirs.
func (r *allocRestorer) end() error {
	err := r.readAffinity()
	r.portIDs = poolOf(r.portByID, r.tables.Services.Max(), idRest)
	r.backendIDs = poolOf(r.backendByID, r.tables.Backends.Len()-1, idRest)
	r.sourceIDs = poolOf(r.sourceByID, r.tables.SourceRanges.Max(), idRest)
	return err
}

func (r *allocRestorer) readPorts() error {
	names, err := r.tables.Services.All()
	if err != nil {
		return err
	}
	for id, name := range names {
		p := &port{id: id, key: codec.PortOf(name)}
		r.portByID[id] = p
		r.unreferenced = append(r.unreferenced, p)
		if other := r.ports[p.key]; other == nil || other.id > id {
			r.ports[p.key] = p
		}
	}
	return nil
}

func (r *allocRestorer) readSources() error {
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

// sourceOf returns the source list with an id; it may be empty.
func (r *allocRestorer) sourceOf(id uint32) *source {
	found := r.sourceByID[id]
	if found == nil {
		found = &source{id: id}
		r.sourceByID[id] = found
		r.unreferenced = append(r.unreferenced, found)
	}
	return found
}

func (r *allocRestorer) readBackends() error {
	rows, err := r.tables.Backends.All()
	if err != nil {
		return err
	}
	for id, row := range rows {
		b := &backend{id: id, key: codec.BackendOf(row)}
		r.backendByID[id] = b
		r.unreferenced = append(r.unreferenced, b)
		if other := r.backends[b.key]; other == nil || other.id > id {
			r.backends[b.key] = b
		}
	}
	return nil
}

func (r *allocRestorer) readReservedPorts() error {
	all, err := r.tables.ReservedPorts.All()
	for key := range all {
		x := &reservation{key: key, stored: true}
		r.reserved[key] = x
		r.unreferenced = append(r.unreferenced, x)
	}
	return err
}

func (r *allocRestorer) readAffinity() error {
	return r.tables.Affinity.Walk(func(e *bpf.AffinityEntry) bool {
		if r.portByID[e.Key.Service] == nil {
			p := &port{id: e.Key.Service}
			r.portByID[p.id] = p
			r.unreferenced = append(r.unreferenced, p)
		}
		if r.backendByID[e.Backend] == nil && e.Backend != 0 && e.Backend < r.tables.Backends.Len() {
			b := &backend{id: e.Backend}
			r.backendByID[b.id] = b
			r.unreferenced = append(r.unreferenced, b)
		}
		return true
	})
}
