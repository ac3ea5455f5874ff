// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// An entry is a frontend in the tables, with a reference to all that its row
// names. row is 0 while it has none. sets are those of the decisions, and last
// what the frontend keeps.
type entry struct {
	row     uint32
	content datapath.Frontend
	port    *port
	source  *source
	taken   *reservation // NodePort and HostPort
	sets    [keptSet + 1]*set
}

const keptSet = service.SourceClasses

// A port is a service port and its id.
type port struct {
	id   uint32
	key  service.Port
	refs int
}

type backendKey struct {
	addr     netip.AddrPort
	protocol service.Protocol
	local    bool
}

// A backend is an endpoint and its id; each set that holds it has a reference.
type backend struct {
	id   uint32
	key  backendKey
	refs int
}

// A set is one filling of a range of slots. It never changes. One that an earlier
// agent left has no key until a frontend that uses it asks for the same members.
type set struct {
	key     service.SetKey
	extent  extent
	members []*backend // as often as in the slots
	refs    int
}

// A source is a list of admitted sources and its id. Equal lists share one.
type source struct {
	id       uint32
	prefixes []netip.Prefix
	refs     int
}

// build makes what a frontend's row will name and fills the row's content. On
// error the entry holds what had been made by then: retire it.
func (s *Syncer) build(w want, old *entry) (*entry, error) {
	f, e := w.frontend, &entry{}
	var err error
	if e.port, err = s.ensurePort(f.Port); err != nil {
		return e, err
	}
	e.port.refs++
	e.content = datapath.Frontend{
		Key:             tableKey(f.Key),
		Service:         e.port.id,
		AffinitySeconds: uint32(f.Affinity / time.Second),
		Kind:            uint8(f.Kind),
	}
	if f.OneAddress {
		e.content.Flags |= uint8(datapath.FlagOneAddress)
	}
	if err := s.reserve(e); err != nil {
		return e, err
	}
	if f.SourceRanges != nil {
		if e.source, err = s.ensureSource(f.SourceRanges); err != nil {
			return e, err
		}
		e.source.refs++
		e.content.SourceSet = e.source.id
	}
	for class, d := range f.Decisions {
		if d.Masquerade {
			e.content.Flags |= uint8(datapath.FlagMasquerade) << class
		}
		if d.Verdict != service.Balance {
			e.content.Decisions[class] = datapath.Decision{First: uint32(verdicts[d.Verdict])}
			continue
		}
		set, err := s.useSet(e, class, d.Set, w.plan.Sets, old)
		if err != nil {
			return e, err
		}
		e.content.Decisions[class] = datapath.Decision{First: set.extent.first, Count: set.extent.count}
	}
	return e, s.buildKept(e, w, old)
}

// buildKept makes what the frontend keeps (service.Plan.Kept).
func (s *Syncer) buildKept(e *entry, w want, old *entry) error {
	key := service.SetKey{Port: w.frontend.Port, Family: service.FamilyOf(w.frontend.Key.Addr), Scope: service.Kept}
	if _, ok := findSet(w.plan.Kept, key); !ok {
		return nil
	}
	set, err := s.useSet(e, keptSet, key, w.plan.Kept, old)
	if err != nil {
		return err
	}
	// Of more, flows to the rest choose anew.
	e.content.KeptFirst, e.content.KeptCount = set.extent.first, uint16(min(set.extent.count, math.MaxUint16))
	return nil
}

// useSet finds or makes a set and lets an entry refer to it.
func (s *Syncer) useSet(e *entry, at int, key service.SetKey, plan []service.BackendSet, old *entry) (*set, error) {
	var inUse *set
	if old != nil {
		inUse = old.sets[at]
	}
	set, err := s.ensureSet(key, plan, inUse)
	if err != nil {
		return nil, err
	}
	set.refs++
	e.sets[at] = set
	return set, nil
}

func findSet(sets []service.BackendSet, key service.SetKey) (int, bool) {
	return slices.BinarySearchFunc(sets, key, func(set service.BackendSet, key service.SetKey) int {
		return set.Key.Compare(key)
	})
}

var verdicts = map[service.Verdict]datapath.Verdict{
	service.Pass:   datapath.Pass,
	service.Reject: datapath.Reject,
	service.Drop:   datapath.Drop,
}

func (s *Syncer) ensurePort(key service.Port) (*port, error) {
	if p := s.ports[key]; p != nil {
		return p, nil
	}
	name, err := serviceName(key)
	if err != nil {
		return nil, err
	}
	id, ok := s.portIDs.take()
	if !ok {
		return nil, datapath.NewFullError(datapath.SockMapServices, s.tables.Services.Max())
	}
	if err := s.tables.Services.Put(id, name); err != nil {
		s.portIDs.put(id)
		return nil, err
	}
	p := &port{id: id, key: key}
	s.ports[key] = p
	s.unused = append(s.unused, p)
	return p, nil
}

func (s *Syncer) ensureBackend(key backendKey) (*backend, error) {
	if b := s.backends[key]; b != nil {
		return b, nil
	}
	id, ok := s.backendIDs.take()
	if !ok {
		return nil, datapath.NewFullError(datapath.SockMapBackends, s.tables.Backends.Len()-1)
	}
	if err := s.tables.Backends.Store(id, backendRow(key)); err != nil {
		s.backendIDs.put(id)
		return nil, err
	}
	b := &backend{id: id, key: key}
	s.backends[key] = b
	s.unused = append(s.unused, b)
	return b, nil
}

func backendRow(key backendKey) datapath.Backend {
	b := datapath.Backend{
		Address:  datapath.AddressFrom(key.addr.Addr()),
		Port:     datapath.NetworkOrder(key.addr.Port()),
		Protocol: uint8(key.protocol),
	}
	if key.local {
		b.Local = 1
	}
	return b
}

// ensureSet finds the set as it is in the tables, or writes it beside the one
// that the frontend uses now, nil for none.
func (s *Syncer) ensureSet(key service.SetKey, plan []service.BackendSet, inUse *set) (*set, error) {
	at, ok := findSet(plan, key)
	if !ok {
		return nil, fmt.Errorf("the plan has no set %s", key)
	}
	members, err := s.members(plan[at])
	if err != nil {
		return nil, err
	}
	if current := s.sets[key]; current != nil && slices.Equal(current.members, members) {
		return current, nil
	}
	if inUse != nil && inUse.key == (service.SetKey{}) && slices.Equal(inUse.members, members) {
		inUse.key = key // found in the tables, where sets have no names
		s.sets[key] = inUse
		return inUse, nil
	}
	return s.writeSet(key, members)
}

func (s *Syncer) writeSet(key service.SetKey, members []*backend) (*set, error) {
	at, ok := s.slots.take(uint32(len(members)))
	if !ok {
		return nil, datapath.NewFullError(datapath.SockMapSlots, s.tables.Slots.Len())
	}
	for i, b := range members {
		if err := s.tables.Slots.Store(at.first+uint32(i), b.id); err != nil {
			s.slots.put(at)
			return nil, err
		}
	}
	set := &set{key: key, extent: at, members: members}
	for _, b := range members {
		b.refs++
	}
	s.sets[key] = set
	s.unused = append(s.unused, set)
	return set, nil
}

// members lays a set out in slots: each backend as often as its weight divided
// by the greatest common divisor of all weights, so that an even choice of
// slots is the weighted choice of backends.
func (s *Syncer) members(bs service.BackendSet) ([]*backend, error) {
	divisor := uint8(0)
	for _, b := range bs.Backends {
		divisor = gcd(divisor, max(b.Weight, 1))
	}
	members := make([]*backend, 0, len(bs.Backends))
	for _, b := range bs.Backends {
		known, err := s.ensureBackend(backendKey{b.Addr, bs.Key.Port.Protocol, b.Local})
		if err != nil {
			return nil, err
		}
		for range max(b.Weight, 1) / divisor {
			members = append(members, known)
		}
	}
	return members, nil
}

func gcd(a, b uint8) uint8 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func (s *Syncer) ensureSource(prefixes []netip.Prefix) (*source, error) {
	if known := s.sources[sourceName(prefixes)]; known != nil {
		return known, nil
	}
	id, ok := s.sourceIDs.take()
	if !ok {
		return nil, datapath.NewFullError(datapath.SockMapSourceRanges, s.tables.SourceRanges.Max())
	}
	made := &source{id: id, prefixes: prefixes}
	for _, p := range prefixes {
		if err := s.tables.SourceRanges.Put(sourceKey(id, p), 1); err != nil {
			s.unused = append(s.unused, made) // some of it may be there
			return nil, err
		}
	}
	s.sources[sourceName(prefixes)] = made
	s.unused = append(s.unused, made)
	return made, nil
}

func sourceKey(id uint32, p netip.Prefix) datapath.SourceRangeKey {
	return datapath.SourceRangeKey{
		Prefixlen: 32 + datapath.PrefixLen(p),
		SourceSet: id,
		Address:   datapath.AddressFrom(p.Masked().Addr()),
	}
}

// sourceName is the same for equal lists, whatever their order.
func sourceName(prefixes []netip.Prefix) string {
	names := make([]string, len(prefixes))
	for i, p := range prefixes {
		names[i] = p.Masked().String()
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

// serviceName is a port's row in the services table.
func serviceName(key service.Port) (datapath.ServiceName, error) {
	name := datapath.ServiceName{Protocol: uint8(key.Protocol)}
	if key.Owner.Kind == service.KindPod {
		name.OwnerKind = datapath.OwnerPod
	}
	for _, f := range []struct {
		what, text string
		field      []byte
	}{
		{"namespace", key.Owner.Namespace, name.Namespace[:]},
		{"name", key.Owner.Name, name.Name[:]},
		{"port name", key.Name, name.Port[:]},
	} {
		if len(f.text) >= len(f.field) {
			return name, fmt.Errorf("%s: the %s has %d characters, more than %d", key.Owner, f.what, len(f.text), len(f.field)-1)
		}
		copy(f.field, f.text)
	}
	return name, nil
}

// PortOf is the inverse of serviceName.
func PortOf(name datapath.ServiceName) service.Port {
	kind := service.KindService
	if name.OwnerKind == datapath.OwnerPod {
		kind = service.KindPod
	}
	return service.Port{
		Owner:    service.Ref{Kind: kind, Namespace: text(name.Namespace[:]), Name: text(name.Name[:])},
		Name:     text(name.Port[:]),
		Protocol: service.Protocol(name.Protocol),
	}
}

func text(field []byte) string {
	s, _, _ := strings.Cut(string(field), "\x00")
	return s
}
