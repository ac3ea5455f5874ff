// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// alloc allocates what sets and frontends refer to: ports, backends, source lists, reserved ports, and slots. It counts
// the references to each, and frees what has none. It is the only writer of their tables, except for the content of
// slots.
type alloc struct {
	tables   *bpf.Tables
	ports    map[service.Port]*port
	backends map[codec.Backend]*backend
	sources  map[string]*sourceList
	reserved map[bpf.ReservedPort]*reservation
	ranges   uint32 // source ranges of all source lists

	portIDs, backendIDs, sourceIDs pool
	slots                          *extents // sets takes and frees them

	unreferenced []resource // without a reference when appended; freeUnreferenced looks again
}

func newAlloc(tables *bpf.Tables) *alloc {
	return &alloc{
		tables:   tables,
		ports:    map[service.Port]*port{},
		backends: map[codec.Backend]*backend{},
		sources:  map[string]*sourceList{},
		reserved: map[bpf.ReservedPort]*reservation{},
		slots:    newExtents(tables.Slots.Len()),
	}
}

// resource has an id that others refer to.
type resource interface {
	count() *references
	// free frees the id and removes the resource's entries from the tables.
	free(*alloc) error
}

// references is the number of references to a resource.
type references int32

func (r *references) count() *references { return r }

// refer adds a reference.
func (a *alloc) refer(x resource) { *x.count()++ }

// unrefer drops a reference.
func (a *alloc) unrefer(x resource) {
	if *x.count()--; *x.count() == 0 {
		a.unreferenced = append(a.unreferenced, x)
	}
}

// garbage returns the number of resources that had no reference.
func (a *alloc) garbage() int { return len(a.unreferenced) }

// freeUnreferenced frees what still has no reference, after the affinity entries that name it.
func (a *alloc) freeUnreferenced() error {
	dead := map[resource]bool{}
	for _, x := range a.unreferenced {
		if *x.count() == 0 {
			dead[x] = true
		}
	}
	a.unreferenced = nil
	errs := []error{a.freeAffinity(dead)}
	for x := range dead {
		if errs[0] == nil {
			err := x.free(a)
			if err == nil {
				continue
			}
			errs = append(errs, err)
		}
		a.unreferenced = append(a.unreferenced, x)
	}
	return errors.Join(errs...)
}

// freeAffinity deletes the affinity entries that name a service port or backend whose id is about to be freed.
func (a *alloc) freeAffinity(dead map[resource]bool) error {
	ports, backends := map[uint32]bool{}, map[uint32]bool{}
	for x := range dead {
		switch x := x.(type) {
		case *port:
			ports[x.id] = true
		case *backend:
			backends[x.id] = true
		}
	}
	if len(ports) == 0 && len(backends) == 0 {
		return nil
	}
	var named []bpf.AffinityKey
	err := a.tables.Affinity.Walk(func(e *bpf.AffinityEntry) bool {
		if ports[e.Key.Service] || backends[e.Backend] {
			named = append(named, e.Key)
		}
		return true
	})
	for _, key := range named {
		if err == nil {
			err = a.tables.Affinity.Delete(key)
		}
	}
	return err
}

// checkReserve returns an error if a new frontend may not take another entry of a table whose entries plans share.
func checkReserve(isNew bool, table string, used, limit uint32) error {
	if isNew && used+limit/updateReserve >= limit {
		return bpf.NewFullError(table, limit)
	}
	return nil
}

// remoteBackends returns the addresses of backends on other nodes, and of those nodes where they matter, unsorted and
// with duplicates.
func (a *alloc) remoteBackends() []netip.Addr {
	all := make([]netip.Addr, 0, len(a.backends))
	nodes := map[netip.Addr]struct{}{}
	for key := range a.backends {
		if key.Local() {
			continue
		}
		all = append(all, key.Addr())
		if key.KnowsNode() {
			nodes[key.Node()] = struct{}{}
		}
	}
	return slices.AppendSeq(all, maps.Keys(nodes))
}

// remotePorts returns the ports of backends on other nodes.
func (a *alloc) remotePorts() map[uint16]bool {
	all := map[uint16]bool{}
	for key := range a.backends {
		if !key.Local() {
			all[key.AddrPort().Port()] = true
		}
	}
	return all
}
