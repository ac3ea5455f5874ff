// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"
	"slices"
	"strings"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// A port is a service port with its id.
type port struct {
	id uint32
	references
	key service.Port
}

// A backend is an endpoint with its id; each set that contains it holds a reference.
type backend struct {
	id uint32
	references
	key codec.Backend
}

// A sourceList is a list of admitted sources with its id. Equal lists share one.
type sourceList struct {
	id uint32
	references
	prefixes []netip.Prefix
}

// A reservation is a port at which bind() is refused on the host. Each frontend with the port holds a
// reference: from before programs can reach the frontend until none can.
type reservation struct {
	key bpf.ReservedPort
	references
	stored bool // the table has it
}

func (a *alloc) ensurePort(key service.Port) (*port, error) {
	if p := a.ports[key]; p != nil {
		return p, nil
	}
	name, err := codec.ServiceName(key)
	if err != nil {
		return nil, err
	}
	id, ok := a.portIDs.take()
	if !ok {
		return nil, bpf.NewFullError(bpf.SockMapServices, a.tables.Services.Max())
	}
	if err := a.tables.Services.Put(id, name); err != nil {
		a.portIDs.put(id)
		return nil, err
	}
	p := &port{id: id, key: key}
	a.ports[key] = p
	a.unreferenced = append(a.unreferenced, p)
	return p, nil
}

func (p *port) free(a *alloc) error {
	if err := a.tables.Services.Delete(p.id); err != nil {
		return err
	}
	a.portIDs.put(p.id)
	if a.ports[p.key] == p {
		delete(a.ports, p.key)
	}
	return nil
}

// ensureBackend finds or makes a backend. isNew: it is for a frontend that is not in the tables yet.
func (a *alloc) ensureBackend(key codec.Backend, isNew bool) (*backend, error) {
	if b := a.backends[key]; b != nil {
		return b, nil
	}
	if err := checkReserve(isNew, bpf.SockMapBackends, uint32(len(a.backends)), a.tables.Backends.Len()-1); err != nil {
		return nil, err
	}
	id, ok := a.backendIDs.take()
	if !ok {
		return nil, bpf.NewFullError(bpf.SockMapBackends, a.tables.Backends.Len()-1)
	}
	if err := a.tables.Backends.Store(id, key.Row()); err != nil {
		a.backendIDs.put(id)
		return nil, err
	}
	b := &backend{id: id, key: key}
	a.backends[key] = b
	a.unreferenced = append(a.unreferenced, b)
	return b, nil
}

func (b *backend) free(a *alloc) error {
	if err := a.tables.Backends.Store(b.id, bpf.Backend{}); err != nil {
		return err
	}
	a.backendIDs.put(b.id)
	if a.backends[b.key] == b {
		delete(a.backends, b.key)
	}
	return nil
}

// ensureSource finds or makes a source list. isNew is as for ensureBackend.
func (a *alloc) ensureSource(prefixes []netip.Prefix, isNew bool) (*sourceList, error) {
	if known := a.sources[sourceName(prefixes)]; known != nil {
		return known, nil
	}
	if err := checkReserve(isNew, bpf.SockMapSourceRanges, a.ranges+uint32(len(prefixes)), a.tables.SourceRanges.Max()); err != nil {
		return nil, err
	}
	id, ok := a.sourceIDs.take()
	if !ok {
		return nil, bpf.NewFullError(bpf.SockMapSourceRanges, a.tables.SourceRanges.Max())
	}
	made := &sourceList{id: id, prefixes: prefixes}
	a.ranges += uint32(len(prefixes))
	a.unreferenced = append(a.unreferenced, made) // also if only some prefixes are in the table
	for _, p := range prefixes {
		if err := a.tables.SourceRanges.Put(codec.SourceRangeKey(id, p), 1); err != nil {
			return nil, err
		}
	}
	a.sources[sourceName(prefixes)] = made
	return made, nil
}

func (x *sourceList) free(a *alloc) error {
	if name := sourceName(x.prefixes); a.sources[name] == x {
		delete(a.sources, name) // first: a partly deleted list must not be used again
	}
	for _, p := range x.prefixes {
		if err := a.tables.SourceRanges.Delete(codec.SourceRangeKey(x.id, p)); err != nil {
			return err
		}
	}
	a.sourceIDs.put(x.id)
	a.ranges -= uint32(len(x.prefixes))
	return nil
}

// sourceName returns the same name for equal lists, in whatever order.
func sourceName(prefixes []netip.Prefix) string {
	names := make([]string, len(prefixes))
	for i, p := range prefixes {
		names[i] = p.Masked().String()
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

// ensureReservation finds or makes a reservation, which may not be in the table yet.
func (a *alloc) ensureReservation(key bpf.ReservedPort) *reservation {
	if a.reserved[key] == nil {
		a.reserved[key] = &reservation{key: key}
	}
	return a.reserved[key]
}

// storeReservation writes a reservation to the table.
func (a *alloc) storeReservation(x *reservation) error {
	if x.stored {
		return nil
	}
	err := a.tables.ReservedPorts.Put(x.key, 1)
	x.stored = err == nil
	return err
}

func (x *reservation) free(a *alloc) error {
	if err := a.tables.ReservedPorts.Delete(x.key); err != nil {
		return err
	}
	delete(a.reserved, x.key)
	return nil
}
