// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

// An AffinityTable has the last backends of clients of Services with session affinity. The programs write
// it; entries that they change during a walk may be missing or seen twice.
type AffinityTable interface {
	// Max returns the maximum number of entries.
	Max() uint32
	// Live returns the number of entries that have not expired.
	Live() (uint32, error)
	// Walk calls f for each entry, including expired ones, until f returns false.
	Walk(f func(*AffinityEntry) bool) error
	// Get returns an entry, nil if there is none.
	Get(AffinityKey) (*AffinityEntry, error)
	// Delete deletes an entry. It is not an error if there is none.
	Delete(AffinityKey) error
}

// AffinityOf returns the table in maps by their names.
func AffinityOf(maps map[string]*ebpf.Map) AffinityTable {
	return newAffinityTable(maps[SockMapAffinity], maps[SockMapTableSecret])
}

// affinityLoad is the intended number of entries per set: with this many hardly any client finds both of
// its sets full.
const affinityLoad = 12

// affinitySets returns the number of sets for a number of clients.
func affinitySets(clients uint32) uint32 { return max((clients+affinityLoad-1)/affinityLoad, 1) }

// affinityTable is the table of bpf/lb/affinity.h.
type affinityTable struct {
	settable.Table[AffinityKey, AffinityEntry]
}

// The compiler compares the layout with that of the programs.
var (
	_ [unsafe.Offsetof(SockAffinitySet{}.Evictions)]byte = [unsafe.Sizeof(settable.SetTags{})]byte{}
	_ [unsafe.Sizeof(SockAffinitySet{}.Evictions)]byte   = [unsafe.Offsetof(settable.Row[AffinityEntry]{}.Entries)]byte{}
	_ [unsafe.Sizeof(SockAffinitySet{}.Entries)]byte     = [unsafe.Sizeof(settable.Row[AffinityEntry]{}.Entries)]byte{}
	_ [unsafe.Offsetof(SockAffinitySet{}.Entries)]byte   = [unsafe.Sizeof(settable.SetTags{}) + unsafe.Offsetof(settable.Row[AffinityEntry]{}.Entries)]byte{}
)

func newAffinityTable(m, secret *ebpf.Map) *affinityTable {
	return &affinityTable{settable.Table[AffinityKey, AffinityEntry]{
		Maps: settable.Maps{Rows: m}, Secret: secret, Spills: true,
		Key:   func(e *AffinityEntry) *AffinityKey { return &e.Key },
		Tag:   func(_ *AffinityKey, sum uint64) uint32 { return settable.Tag(uint32(sum)) },
		Whole: func(*AffinityEntry) bool { return true },
	}}
}

func (a *affinityTable) Walk(f func(*AffinityEntry) bool) error { return a.Table.Walk(f) }

func (a *affinityTable) Get(key AffinityKey) (*AffinityEntry, error) { return a.Table.Get(key) }

func (a *affinityTable) Delete(key AffinityKey) error {
	_, err := a.Remove(key, func(*AffinityEntry) bool { return true })
	return err
}

func (a *affinityTable) Live() (live uint32, err error) {
	now := settable.Tick()
	err = settable.EachPlace(a.Maps, func(s settable.Set[AffinityEntry], place int) bool {
		if !settable.Expired(atomic.LoadUint32(&s.Marks.Evictions[place].Expires), now) {
			live++
		}
		return true
	})
	return live, err
}
