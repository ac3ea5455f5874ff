// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
)

// fakeKernel holds tables in memory. Each operation that would change one calls before first, so that a
// test can make it fail, count it, or inspect the tables between two operations.
type fakeKernel struct {
	t       *testing.T
	tables  *bpf.Tables
	before  func(operation string) error
	after   func()
	reading []use // what programs may still be reading: reachable since the last grace period
	known   []use // what they may have cached: reachable since the epoch was last bumped
	trusts  bool  // do not check whether what is overwritten can be read: for millions of slots

	index    *fakeHash[bpf.FrontendKey, uint32]
	rows     *fakeArray[bpf.Frontend]
	lists    *fakeArray[bpf.FrontendLists]
	slots    *fakeArray[uint32]
	backends *fakeArray[bpf.Backend]
	services *fakeHash[uint32, bpf.ServiceName]
	ranges   *fakeHash[bpf.SourceRangeKey, uint32]
	networks *fakeHash[bpf.NetworkKey, bpf.Network]
	affinity *fakeAffinity
	reserved *fakeHash[bpf.ReservedPort, uint32]

	balancers *fakeHash[bpf.NetworkKey, bpf.Balancer]
	untracked *fakeArray[bpf.UntrackedEnds]
}

// use is a resource that a program can reach: a row, a slot or a backend.
type use struct {
	table  string
	number uint32
}

func newFakeKernel(t *testing.T, limits bpf.Limits) *fakeKernel {
	l := limits.WithDefaults()
	k := &fakeKernel{t: t}
	k.index = newFakeHash[bpf.FrontendKey, uint32](k, bpf.SockMapFrontends, l.Frontends)
	k.rows = newFakeArray[bpf.Frontend](k, bpf.SockMapFrontendRows, l.Frontends+l.Frontends/8+64)
	k.lists = newFakeArray[bpf.FrontendLists](k, bpf.SockMapFrontendListRows, k.rows.Len())
	k.slots = newFakeArray[uint32](k, bpf.SockMapSlots, l.Slots)
	k.backends = newFakeArray[bpf.Backend](k, bpf.SockMapBackends, l.Backends+1)
	k.services = newFakeHash[uint32, bpf.ServiceName](k, bpf.SockMapServices, l.Services)
	k.ranges = newFakeHash[bpf.SourceRangeKey, uint32](k, bpf.SockMapSourceRanges, l.SourceRanges)
	k.networks = newFakeHash[bpf.NetworkKey, bpf.Network](k, bpf.SockMapNetworks, 64)
	k.affinity = &fakeAffinity{newFakeHash[bpf.AffinityKey, bpf.AffinityEntry](k, bpf.SockMapAffinity, l.Affinity)}
	k.reserved = newFakeHash[bpf.ReservedPort, uint32](k, bpf.SockMapReservedPorts, 64)
	k.balancers = newFakeHash[bpf.NetworkKey, bpf.Balancer](k, bpf.EdgeTCMapBalancers, 8)
	k.untracked = newFakeArray[bpf.UntrackedEnds](k, bpf.SockMapUntrackedFrontends, 1)
	k.tables = &bpf.Tables{
		Frontends: k.index, FrontendRows: k.rows, FrontendLists: k.lists, Slots: k.slots, Backends: k.backends,
		Services: k.services, SourceRanges: k.ranges, Networks: k.networks, Affinity: k.affinity,
		ReservedPorts: k.reserved, Balancers: k.balancers, UntrackedFrontends: k.untracked,
		WaitForReaders: func() error {
			return k.do("wait for readers", func() { k.reading = nil })
		},
	}
	k.tables.Prefilter = bpf.NewPrefilter(new(bpf.EdgeTCPrefilter), func() error { return nil })
	return k
}

// smallKernel has room for a few random plans.
func smallKernel(t *testing.T) *fakeKernel {
	return newFakeKernel(t, bpf.Limits{Frontends: 64, Slots: 600, Backends: 64})
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

// reachable lists what a program reaches by one index entry.
func (k *fakeKernel) reachable(key bpf.FrontendKey) (uses []use) {
	row, ok := k.index.entries[key]
	if !ok || row >= k.rows.Len() {
		return nil
	}
	uses = append(uses, use{k.rows.name, row})
	content := k.rows.rows[row]
	var ranges []codec.Range
	for _, d := range content.Decisions {
		ranges = append(ranges, codec.Range(d))
	}
	if content.Lists > 0 && content.Lists < k.lists.Len() {
		uses = append(uses, use{k.lists.name, content.Lists})
		lists := k.lists.rows[content.Lists]
		ranges = append(append(ranges, lists.Members[:]...), lists.Retained)
		uses = append(uses, k.remembered(lists.History)...)
	}
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

// remembered lists what a program reaches by a frontend's history.
func (k *fakeKernel) remembered(history codec.Range) (uses []use) {
	for n := range history.Count {
		slot := history.First + n
		if slot >= k.slots.Len() {
			break
		}
		uses = append(uses, use{k.slots.name, slot})
		if id := k.slots.rows[slot] & uint32(bpf.HistoryBackend); id != 0 {
			uses = append(uses, use{k.backends.name, id})
		}
	}
	return uses
}

// listsOf returns the lists of a row, none if it is damaged.
func (k *fakeKernel) listsOf(row uint32) codec.Lists {
	content, err := codec.LoadFrontend(k.tables, row)
	if err != nil {
		return codec.Lists{}
	}
	return content.Lists()
}

// mustBeFree fails the test if a program could be reading what is overwritten. It reports the first row alone:
// thousands may follow.
func (k *fakeKernel) mustBeFree(table string, number uint32) {
	u := use{table, number}
	reader := ""
	switch {
	case k.t.Failed():
	case slices.Contains(k.reading, u):
		reader = "one that began before the last wait for readers"
	case slices.Contains(k.known, u):
		reader = "one that has cached a row since the epoch was last bumped"
	default:
		for key := range k.index.entries {
			if slices.Contains(k.reachable(key), u) {
				reader = fmt.Sprintf("one that looks up the frontend %s", key)
			}
		}
	}
	if reader != "" {
		k.t.Errorf("row %d of table %s is overwritten while a program may be reading it: %s (further rows are not reported)", number, table, reader)
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
	if asked, ok := any(key).(bpf.FrontendKey); ok && !h.kernel.tables.Prefilter.Contains(asked) {
		h.kernel.t.Errorf("frontend %v is published, and the prefilter does not pass packets to it", asked)
	}
	if row, ok := any(v).(uint32); ok && h.name == bpf.SockMapFrontends {
		if need := acceptedBy(h.kernel.rows.rows[row]); h.kernel.untracked.rows[0].Accepted&need != need {
			h.kernel.t.Errorf("frontend %v is published, and packets of balancers for it are not decapsulated", key)
		}
	}
	if _, ok := h.entries[key]; !ok && len(h.entries) >= int(h.max) {
		return bpf.NewFullError(h.name, h.max)
	}
	return h.kernel.do(fmt.Sprintf("put %s %v", h.name, key), func() { h.left(key); h.entries[key] = v })
}

func (h *fakeHash[K, V]) Delete(key K) error {
	return h.kernel.do(fmt.Sprintf("delete %s %v", h.name, key), func() { h.left(key); delete(h.entries, key) })
}

// left notes what programs that came by an index entry may be reading.
func (h *fakeHash[K, V]) left(key K) {
	if key, ok := any(key).(bpf.FrontendKey); ok && !h.kernel.trusts {
		h.kernel.known = append(h.kernel.known, h.kernel.reachable(key)...)
	}
}

func (h *fakeHash[K, V]) All() (map[K]V, error) { return maps.Clone(h.entries), nil }

// fakeAffinity has the entries that a test inserts.
type fakeAffinity struct {
	*fakeHash[bpf.AffinityKey, bpf.AffinityEntry]
}

func (a *fakeAffinity) Live() (uint32, error) { return uint32(len(a.entries)), nil }

func (a *fakeAffinity) Walk(f func(*bpf.AffinityEntry) bool) error {
	for key, e := range a.entries {
		e.Key = key
		if !f(&e) {
			return nil
		}
	}
	return nil
}

func (a *fakeAffinity) Get(key bpf.AffinityKey) (*bpf.AffinityEntry, error) {
	if e, ok := a.entries[key]; ok {
		return &e, nil
	}
	return nil, nil
}

type fakeArray[V comparable] struct {
	kernel *fakeKernel
	name   string
	rows   []V
}

func newFakeArray[V comparable](k *fakeKernel, name string, length uint32) *fakeArray[V] {
	return &fakeArray[V]{k, name, make([]V, length)}
}

func (a *fakeArray[V]) Len() uint32 { return uint32(len(a.rows)) }

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
		if a.rows[i] != v && !a.kernel.trusts {
			a.kernel.mustBeFree(a.name, i)
		}
		if now, ok := any(v).(bpf.UntrackedEnds); ok && now.Epoch != a.kernel.untracked.rows[i].Epoch {
			a.kernel.reading, a.kernel.known = append(a.kernel.reading, a.kernel.known...), nil
		}
		a.rows[i] = v
	})
}

var errFault = errors.New("planted fault")
