// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/mappedarray"
)

// An Array is a table of rows by number, which is written without system calls.
type Array[V any] interface {
	// Len returns the number of rows.
	Len() uint32
	// Load returns a row. It panics if i >= Len(), like a slice.
	Load(i uint32) V
	// Store writes a row, but not atomically: no reader may use the row yet.
	Store(i uint32, v V) error
	// All returns all rows that are not zero.
	All() (map[uint32]V, error)
}

// A Hash is a table by key.
type Hash[K comparable, V any] interface {
	// Max returns the maximum number of entries.
	Max() uint32
	// Put stores an entry atomically; *FullError if there is no room.
	Put(K, V) error
	// Delete deletes an entry. It is not an error if there is none.
	Delete(K) error
	// All returns all entries. An entry that changes meanwhile may be missing.
	All() (map[K]V, error)
}

// Tables are the maps of bpf/lb/maps.h.
type Tables struct {
	Frontends    Hash[FrontendKey, uint32]
	FrontendRows Array[Frontend]
	// FrontendLists has a row for each of FrontendRows.
	FrontendLists Array[FrontendLists]
	Slots         Array[uint32]
	Backends      Array[Backend]
	Services      Hash[uint32, ServiceName]
	SourceRanges  Hash[SourceRangeKey, uint32]
	Networks      Hash[NetworkKey, Network]
	Affinity      AffinityTable
	// UntrackedFrontends has one row.
	UntrackedFrontends Array[UntrackedEnds]
	// ReservedPorts are the ports at which bind() is refused.
	ReservedPorts Hash[ReservedPort, uint32]
	// OptedOut has the cookies of network namespaces without the socket shortcut.
	OptedOut Hash[uint64, uint32]
	// Balancers are networks whose encapsulated packets are for backends of this node, and the node's
	// own addresses in them; nil if there is no edge.
	Balancers Hash[NetworkKey, Balancer]
	// Prefilter is what programs check first; nil in tests without one.
	Prefilter *Prefilter
	// WaitForReaders returns when all programs have ended that run at the call. Then what no table
	// leads to any more can be reused.
	WaitForReaders func() error
}

// kernelHash is a hash, LRU hash or longest-prefix map.
type kernelHash[K comparable, V any] struct {
	name string
	m    *ebpf.Map
	// declared is nil for a table of Socket.
	declared *Table
}

// NewHash returns a table of a component.
func NewHash[K comparable, V any](t *Table, m *ebpf.Map) Hash[K, V] {
	return kernelHash[K, V]{t.Name, m, t}
}

func hashOf[K comparable, V any](maps map[string]*ebpf.Map, name string) kernelHash[K, V] {
	return kernelHash[K, V]{name: name, m: maps[name]}
}

func (h kernelHash[K, V]) Max() uint32 { return h.m.MaxEntries() }

func (h kernelHash[K, V]) Put(k K, v V) error {
	err := h.m.Put(&k, &v)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return &FullError{h.name, h.m.MaxEntries(), h.declared}
	}
	return err
}

func (h kernelHash[K, V]) Delete(k K) error {
	err := h.m.Delete(&k)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

func (h kernelHash[K, V]) All() (map[K]V, error) {
	if t := h.m.Type(); t == ebpf.LPMTrie || t == ebpf.DevMapHash {
		return h.one()
	}
	return h.batched()
}

// one reads entry by entry: tables of devices do not support batches, longest-prefix maps not before 6.x.
func (h kernelHash[K, V]) one() (map[K]V, error) {
	all := map[K]V{}
	var k K
	var v V
	it := h.m.Iterate()
	for it.Next(&k, &v) {
		all[k] = v
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read table %s: %w", h.name, err)
	}
	return all, nil
}

func (h kernelHash[K, V]) batched() (map[K]V, error) {
	const size = 4096 // larger than any hash bucket, which must fit in a batch
	all := map[K]V{}
	keys, values := make([]K, size), make([]V, size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := h.m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			all[keys[i]] = values[i]
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", h.name, err)
		}
	}
}

// newGracePeriod returns a function that waits for an RCU grace period: programs run in RCU read-side
// critical sections. The kernel waits for one whenever a map inside a map is replaced
// (maybe_wait_bpf_programs in kernel/bpf/syscall.c, Linux 5.0), on any number of CPUs; membarrier(2) does
// not wait with a single CPU, or with nohz_full.
func newGracePeriod() (func() error, error) {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	m, err := ebpf.NewMap(inner)
	if err != nil {
		return nil, fmt.Errorf("create a map to wait for grace periods: %w", err)
	}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner})
	if err != nil {
		return nil, fmt.Errorf("create a map to wait for grace periods: %w", err)
	}
	return func() error {
		if err := outer.Put(uint32(0), m); err != nil {
			return fmt.Errorf("wait for a grace period: %w", err)
		}
		return nil
	}, nil
}

// NewTables returns the tables in maps by their names; the edge has more.
func NewTables(maps map[string]*ebpf.Map) (*Tables, error) {
	wait, err := newGracePeriod()
	if err != nil {
		return nil, err
	}
	return &Tables{
		Frontends:          hashOf[FrontendKey, uint32](maps, SockMapFrontends),
		FrontendRows:       mappedarray.New[Frontend](maps[SockMapFrontendRows]),
		FrontendLists:      mappedarray.New[FrontendLists](maps[SockMapFrontendListRows]),
		Slots:              mappedarray.New[uint32](maps[SockMapSlots]),
		Backends:           mappedarray.New[Backend](maps[SockMapBackends]),
		Services:           hashOf[uint32, ServiceName](maps, SockMapServices),
		SourceRanges:       hashOf[SourceRangeKey, uint32](maps, SockMapSourceRanges),
		Networks:           hashOf[NetworkKey, Network](maps, SockMapNetworks),
		Affinity:           AffinityOf(maps),
		ReservedPorts:      hashOf[ReservedPort, uint32](maps, SockMapReservedPorts),
		OptedOut:           hashOf[uint64, uint32](maps, SockMapOptedOut),
		UntrackedFrontends: mappedarray.New[UntrackedEnds](maps[SockMapUntrackedFrontends]),
		WaitForReaders:     wait,
	}, nil
}
