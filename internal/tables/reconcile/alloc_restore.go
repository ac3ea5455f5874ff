// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// allocRestorer reads the state of an alloc from the tables. Ids that only affinity entries name are taken, too, until
// the entries are deleted.
type allocRestorer struct {
	*alloc
	portByID    map[uint32]*port
	backendByID map[uint32]*backend
	sourceByID  map[uint32]*sourceList
}

// restore reads all tables. Nothing that it finds has a reference yet.
func (a *alloc) restore() (*allocRestorer, error) {
	r := &allocRestorer{a, map[uint32]*port{}, map[uint32]*backend{}, map[uint32]*sourceList{}}
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
func (r *allocRestorer) sourceOf(id uint32) *sourceList {
	found := r.sourceByID[id]
	if found == nil {
		found = &sourceList{id: id}
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

// audit repairs the tables. Rows of backends are repaired in place: a repair only restores what they should have held
// all along.
func (a *alloc) audit(to *auditor) {
	a.auditNames(to)
	a.auditSourceRanges(to)
	for key, b := range a.backends {
		if row := key.Row(); a.tables.Backends.Load(b.id) != row {
			to.repaired(a.tables.Backends.Store(b.id, row))
		}
	}
	reserved := map[bpf.ReservedPort]uint32{}
	for key, x := range a.reserved {
		if x.stored {
			reserved[key] = 1
		}
	}
	auditHash(to, a.tables.ReservedPorts, reserved)
}

// auditNames audits service names. Ports that wait to be freed keep their names; ports of which only the id is
// known have none.
func (a *alloc) auditNames(to *auditor) {
	want := map[uint32]bpf.ServiceName{}
	for key, p := range a.ports {
		name, err := codec.ServiceName(key)
		if err != nil {
			to.errs = append(to.errs, err)
			continue
		}
		want[p.id] = name
	}
	for _, x := range a.unreferenced {
		if p, ok := x.(*port); ok && p.key != (service.Port{}) && a.ports[p.key] != p {
			want[p.id], _ = codec.ServiceName(p.key)
		}
	}
	auditHash(to, a.tables.Services, want)
}

func (a *alloc) auditSourceRanges(to *auditor) {
	want := map[bpf.SourceRangeKey]uint32{}
	add := func(x *sourceList) {
		for _, p := range x.prefixes {
			want[codec.SourceRangeKey(x.id, p)] = 1
		}
	}
	for _, x := range a.sources {
		add(x)
	}
	for _, x := range a.unreferenced {
		if x, ok := x.(*sourceList); ok {
			add(x)
		}
	}
	auditHash(to, a.tables.SourceRanges, want)
}
