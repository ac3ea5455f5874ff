// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// fakeKernel holds tables in memory. Each operation that would change one asks
// before first, so that a test can make it fail, count it, or look at the
// tables between two operations.
type fakeKernel struct {
	t       *testing.T
	tables  *datapath.Tables
	before  func(operation string) error
	after   func()
	reading []use // what programs may still be reading: reachable since the last grace period

	index    *fakeHash[datapath.FrontendKey, uint32]
	rows     *fakeArray[datapath.Frontend]
	slots    *fakeArray[uint32]
	backends *fakeArray[datapath.Backend]
	services *fakeHash[uint32, datapath.ServiceName]
	ranges   *fakeHash[datapath.SourceRangeKey, uint32]
	networks *fakeHash[datapath.NetworkKey, datapath.Network]
	affinity *fakeHash[datapath.AffinityKey, datapath.AffinityEntry]
	reserved *fakeHash[datapath.ReservedPort, uint32]
}

// use is one thing that a program can reach: a row, a slot or a backend.
type use struct {
	table  string
	number uint32
}

func newFakeKernel(t *testing.T, limits datapath.Limits) *fakeKernel {
	l := limits.WithDefaults()
	k := &fakeKernel{t: t}
	k.index = newFakeHash[datapath.FrontendKey, uint32](k, datapath.SockMapFrontends, l.Frontends)
	k.rows = newFakeArray[datapath.Frontend](k, datapath.SockMapFrontendRows, l.Frontends+l.Frontends/8+64)
	k.slots = newFakeArray[uint32](k, datapath.SockMapSlots, l.Slots)
	k.backends = newFakeArray[datapath.Backend](k, datapath.SockMapBackends, l.Backends+1)
	k.services = newFakeHash[uint32, datapath.ServiceName](k, datapath.SockMapServices, l.Services)
	k.ranges = newFakeHash[datapath.SourceRangeKey, uint32](k, datapath.SockMapSourceRanges, l.SourceRanges)
	k.networks = newFakeHash[datapath.NetworkKey, datapath.Network](k, datapath.SockMapNetworks, 64)
	k.affinity = newFakeHash[datapath.AffinityKey, datapath.AffinityEntry](k, datapath.SockMapAffinity, l.Affinity)
	k.reserved = newFakeHash[datapath.ReservedPort, uint32](k, datapath.SockMapReservedPorts, 64)
	k.tables = &datapath.Tables{
		Frontends: k.index, FrontendRows: k.rows, Slots: k.slots, Backends: k.backends,
		Services: k.services, SourceRanges: k.ranges, Networks: k.networks, Affinity: k.affinity,
		ReservedPorts: k.reserved,
		WaitForReaders: func() error {
			return k.do("wait for readers", func() { k.reading = nil })
		},
	}
	return k
}

// do runs one operation, or makes it fail without effect.
func (k *fakeKernel) do(operation string, change func()) error {
	if k.before != nil {
		if err := k.before(operation); err != nil {
			return err
		}
	}
	change()
	if k.after != nil {
		k.after()
	}
	return nil
}

// reachable lists what a program gets to by way of one index entry.
func (k *fakeKernel) reachable(key datapath.FrontendKey) (uses []use) {
	row, ok := k.index.entries[key]
	if !ok || row >= k.rows.Len() {
		return nil
	}
	uses = append(uses, use{k.rows.name, row})
	content := k.rows.rows[row]
	ranges := append(content.Decisions[:], datapath.Decision{First: content.KeptFirst, Count: uint32(content.KeptCount)})
	for _, d := range ranges {
		for n := range d.Count {
			if uint64(d.First)+uint64(n) >= uint64(k.slots.Len()) {
				break
			}
			uses = append(uses, use{k.slots.name, d.First + n}, use{k.backends.name, k.slots.rows[d.First+n]})
		}
	}
	return uses
}

// mustBeFree fails the test if a program could be reading what is overwritten.
func (k *fakeKernel) mustBeFree(table string, number uint32) {
	u := use{table, number}
	taken := slices.Contains(k.reading, u)
	for key := range k.index.entries {
		taken = taken || slices.Contains(k.reachable(key), u)
	}
	if taken {
		k.t.Errorf("%s %d is overwritten while a program may be reading it", table, number)
	}
}

type fakeHash[K comparable, V any] struct {
	kernel  *fakeKernel
	name    string
	max     uint32
	entries map[K]V
}

func newFakeHash[K comparable, V any](k *fakeKernel, name string, limit uint32) *fakeHash[K, V] {
	return &fakeHash[K, V]{k, name, limit, map[K]V{}}
}

func (h *fakeHash[K, V]) Max() uint32 { return h.max }

func (h *fakeHash[K, V]) Put(key K, v V) error {
	if _, ok := h.entries[key]; !ok && len(h.entries) >= int(h.max) {
		return datapath.NewFullError(h.name, h.max)
	}
	return h.kernel.do(fmt.Sprintf("put %s %v", h.name, key), func() { h.left(key); h.entries[key] = v })
}

func (h *fakeHash[K, V]) Delete(key K) error {
	return h.kernel.do(fmt.Sprintf("delete %s %v", h.name, key), func() { h.left(key); delete(h.entries, key) })
}

// left notes what programs may be reading that came through an index entry.
func (h *fakeHash[K, V]) left(key K) {
	if key, ok := any(key).(datapath.FrontendKey); ok {
		h.kernel.reading = append(h.kernel.reading, h.kernel.reachable(key)...)
	}
}

func (h *fakeHash[K, V]) All() (map[K]V, error) { return maps.Clone(h.entries), nil }

type fakeArray[V comparable] struct {
	kernel *fakeKernel
	name   string
	rows   []V
}

func newFakeArray[V comparable](k *fakeKernel, name string, length uint32) *fakeArray[V] {
	return &fakeArray[V]{k, name, make([]V, length)}
}

func (a *fakeArray[V]) Len() uint32     { return uint32(len(a.rows)) }
func (a *fakeArray[V]) Load(i uint32) V { return a.rows[i] }

func (a *fakeArray[V]) All() (map[uint32]V, error) {
	all := map[uint32]V{}
	var zero V
	for i, v := range a.rows {
		if v != zero {
			all[uint32(i)] = v
		}
	}
	return all, nil
}

func (a *fakeArray[V]) Store(i uint32, v V) error {
	return a.kernel.do(fmt.Sprintf("store %s %d", a.name, i), func() {
		if a.rows[i] != v {
			a.kernel.mustBeFree(a.name, i)
		}
		a.rows[i] = v
	})
}

var errFault = errors.New("planted fault")

// behaviour is what a client of one class meets at a frontend: a verdict, or
// the backends with their shares; and all else that the row says.
type behaviour struct {
	decisions [service.SourceClasses]string
	kept      string
	kind      service.FrontendKind
	service   service.Port
	affinity  uint32
	sources   string
}

// meets looks a frontend up as the programs do.
func (k *fakeKernel) meets(key service.FrontendKey) (b behaviour, ok bool) {
	row, ok := k.index.entries[tableKey(key)]
	if !ok {
		return b, false
	}
	content := k.rows.rows[row]
	if content.Key != tableKey(key) {
		k.t.Errorf("the index leads from %s to another frontend's row", key)
	}
	for class, d := range content.Decisions {
		if d.Count == 0 {
			b.decisions[class] = fmt.Sprint(service.Verdict(d.First))
			continue
		}
		b.decisions[class] = k.members(d.First, d.Count)
	}
	if content.KeptCount > 0 {
		b.kept = k.members(content.KeptFirst, uint32(content.KeptCount))
	}
	name, known := k.services.entries[content.Service]
	if !known {
		k.t.Errorf("frontend %s names service id %d, which has no name", key, content.Service)
	}
	b.kind, b.service, b.affinity, b.sources = service.FrontendKind(content.Kind), PortOf(name), content.AffinitySeconds, k.admitted(content.SourceSet)
	return b, true
}

func (k *fakeKernel) members(first, count uint32) string {
	var members []string
	for n := range count {
		backend := k.backends.rows[k.slots.rows[first+n]]
		members = append(members, fmt.Sprint(backend.AddrPort(), backend.Protocol, backend.Local))
	}
	slices.Sort(members)
	return fmt.Sprint(members)
}

func (k *fakeKernel) admitted(id uint32) string {
	if id == 0 {
		return "all"
	}
	var all []string
	for key := range k.ranges.entries {
		if key.SourceSet == id {
			all = append(all, key.Prefix().String())
		}
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

func plannedMembers(set service.BackendSet) string {
	divisor := uint8(0)
	for _, backend := range set.Backends {
		divisor = gcd(divisor, backend.Weight)
	}
	var members []string
	for _, backend := range set.Backends {
		local := 0
		if backend.Local {
			local = 1
		}
		for range backend.Weight / divisor {
			members = append(members, fmt.Sprint(backend.Addr, uint8(set.Key.Port.Protocol), local))
		}
	}
	slices.Sort(members)
	return fmt.Sprint(members)
}

// planned is what a client should meet.
func planned(plan *service.Plan, f service.Frontend) (b behaviour) {
	for class, d := range f.Decisions {
		if d.Verdict != service.Balance {
			b.decisions[class] = fmt.Sprint(d.Verdict)
			continue
		}
		for _, set := range plan.Sets {
			if set.Key == d.Set {
				b.decisions[class] = plannedMembers(set)
			}
		}
	}
	for _, set := range plan.Kept {
		if set.Key.Port == f.Port && set.Key.Family == service.FamilyOf(f.Key.Addr) {
			b.kept = plannedMembers(set)
		}
	}
	b.kind, b.service, b.affinity, b.sources = f.Kind, f.Port, uint32(f.Affinity.Seconds()), "all"
	if f.SourceRanges != nil {
		var all []string
		for _, p := range f.SourceRanges {
			all = append(all, p.String())
		}
		slices.Sort(all)
		b.sources = fmt.Sprint(all)
	}
	return b
}

// state is what every frontend should meet.
type state map[service.FrontendKey]behaviour

func stateOf(plans map[service.Ref]*service.Plan) state {
	all := state{}
	for _, plan := range plans {
		for _, f := range plan.Frontends {
			all[f.Key] = planned(plan, f)
		}
	}
	return all
}

func (k *fakeKernel) state() state {
	all := state{}
	for key := range k.index.entries {
		name := service.FrontendKey{Addr: key.Address.Addr(), Port: datapath.NetworkOrder(key.Port), Protocol: service.Protocol(key.Protocol)}
		all[name], _ = k.meets(name)
	}
	return all
}

func newRand(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
