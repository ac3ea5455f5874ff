// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"fmt"
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
	// tracked says why every flow of an untracked frontend is recorded all the same.
	tracked error
}

const keptSet = service.SourceClasses

// A port is a service port and its id.
type port struct {
	id   uint32
	key  service.Port
	refs int
}

// A set is one filling of a range of slots. It never changes. One that an earlier
// agent left has no key until a frontend that uses it asks for the same members.
type set struct {
	key     service.SetKey
	extent  extent
	members []*backend // as often as in the slots; with a table each once
	table   *table     // Maglev; nil: the slots hold the members
	counted bool       // the slot before the members says how many they are
	past    *past      // what stands before that; only where counted
	spare   uint32     // slots behind the extent that are taken, too (roundSlots)
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
		Dsr:             uint8(dsrs[f.DSR]),
	}
	if f.Untracked {
		e.content.Flags |= uint16(datapath.FlagUntracked)
	}
	if f.OneAddress {
		e.content.Flags |= uint16(datapath.FlagOneAddress)
	}
	if f.OwnAddress {
		e.content.Flags |= uint16(datapath.FlagOwnAddress)
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
			e.content.Flags |= uint16(datapath.FlagMasquerade) << class
		}
		if d.Verdict != service.Balance {
			e.content.Decisions[class] = datapath.Decision{First: uint32(verdicts[d.Verdict])}
			continue
		}
		set, err := s.useSet(e, class, f.Set(d), w.plan.Sets, w.plan.TableSize, old)
		if err != nil {
			return e, err
		}
		e.content.Decisions[class] = set.decision()
		if set.table != nil {
			e.content.Flags |= uint16(datapath.FlagMaglev)
		}
	}
	return e, s.buildKept(e, w, old)
}

// buildKept makes what the frontend keeps (service.Plan.Kept), and what it remembers of
// earlier tables.
func (s *Syncer) buildKept(e *entry, w want, old *entry) error {
	key := service.SetKey{Port: w.frontend.Port, Family: service.FamilyOf(w.frontend.Key.Addr), Scope: service.Kept}
	if remembered := s.remember(e, old); remembered != nil {
		err := s.buildPast(e, key, w.plan.Kept, remembered, old)
		if !e.mayBeTracked(remembered, err) {
			return err
		}
	}
	if _, ok := findSet(w.plan.Kept, key); !ok {
		return nil
	}
	set, err := s.useSet(e, keptSet, key, w.plan.Kept, 0, old)
	if err != nil {
		return err
	}
	e.content.KeptFirst = set.decision().First
	return nil
}

// useSet finds or makes a set and lets an entry refer to it.
func (s *Syncer) useSet(e *entry, at int, key service.SetKey, plan []service.BackendSet, tableSize uint32, old *entry) (*set, error) {
	var inUse *set
	if old != nil {
		inUse = old.sets[at]
	}
	set, err := s.ensureSet(key, plan, tableSize, inUse)
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
	service.Answer: datapath.Answer,
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

// ensureSet finds the set as it is in the tables, or writes it beside the one
// that the frontend uses now, nil for none.
func (s *Syncer) ensureSet(key service.SetKey, plan []service.BackendSet, tableSize uint32, inUse *set) (*set, error) {
	at, ok := findSet(plan, key)
	if !ok {
		return nil, fmt.Errorf("the plan has no set %s", key)
	}
	members, table, err := s.layOut(plan[at], tableSize)
	if err != nil {
		return nil, err
	}
	counted := key.Scope == service.Kept
	if current := s.sets[key]; current != nil && current.holds(members, table) {
		return current, nil
	}
	if inUse != nil && inUse.key == (service.SetKey{}) && inUse.counted == counted && inUse.past == nil && inUse.holds(members, table) {
		inUse.key = key // found in the tables, where sets have no names
		s.sets[key] = inUse
		return inUse, nil
	}
	return s.writeSet(&set{key: key, members: members, table: table, counted: counted})
}

func (s *Syncer) writeSet(x *set) (*set, error) {
	content, err := x.content()
	if err != nil {
		return nil, err
	}
	n, length := roundSlots(uint32(len(content))), s.tables.Slots.Len()
	// Histories leave what changes need.
	full := x.past != nil && s.slots.used(length)+n+length/updateReserve > length
	at, ok := extent{}, false
	if !full {
		at, ok = s.slots.take(n)
	}
	if !ok {
		return nil, datapath.NewFullError(datapath.SockMapSlots, length)
	}
	for i, id := range content {
		if err := s.tables.Slots.Store(at.first+uint32(i), id); err != nil {
			s.slots.put(at)
			return nil, err
		}
	}
	x.extent, x.spare = extent{at.first, uint32(len(content))}, n-uint32(len(content))
	if x.table != nil {
		x.table.sum = sumOf(x.table.size, func(slot uint32) uint32 { return content[x.head()+slot] })
	}
	for _, b := range x.backends() {
		b.refs++
	}
	if x.past != nil {
		s.pasts[x.key] = append(s.pasts[x.key], x)
	} else {
		s.sets[x.key] = x
	}
	s.unused = append(s.unused, x)
	return x, nil
}

// members are the backends of a set, and their weights divided by the greatest common
// divisor of all.
func (s *Syncer) members(bs service.BackendSet) (members []*backend, weights []uint8, err error) {
	divisor := uint8(0)
	for _, b := range bs.Backends {
		divisor = gcd(divisor, max(b.Weight, 1))
	}
	for _, b := range bs.Backends {
		known, err := s.ensureBackend(backendKeyOf(b, bs.Key.Port.Protocol))
		if err != nil {
			return nil, nil, err
		}
		members = append(members, known)
		weights = append(weights, max(b.Weight, 1)/divisor)
	}
	return members, weights, nil
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
	if err := s.spare(datapath.SockMapSourceRanges, s.ranges+uint32(len(prefixes)), s.tables.SourceRanges.Max()); err != nil {
		return nil, err
	}
	id, ok := s.sourceIDs.take()
	if !ok {
		return nil, datapath.NewFullError(datapath.SockMapSourceRanges, s.tables.SourceRanges.Max())
	}
	made := &source{id: id, prefixes: prefixes}
	s.ranges += uint32(len(prefixes))
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
