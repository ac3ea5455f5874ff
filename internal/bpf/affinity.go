// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
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

// MarkRank returns the rank in the owner of an eviction mark.
func MarkRank(owner uint32) SockSetRank {
	return SockSetRank(owner & (1<<SockSetRankSET_RANK_BITS - 1))
}

// affinityRanks are the ranks of affinity entries, in the order in which they are copied, in case not all
// fit: clients that have come again precede others.
var affinityRanks = []SockSetRank{SockSetRankSET_RANK_ASSURED, SockSetRankSET_RANK_UNASSURED}

// followAffinity is the rule of the affinity table. It does not copy expired entries.
func followAffinity(f Following) error {
	to := newAffinityTable(f.New[SockMapAffinity], f.New[SockMapTableSecret])
	from := newAffinityTable(f.Old[SockMapAffinity], f.New[SockMapTableSecret])
	if f.Pass == FirstPass {
		if err := to.Clear(); err != nil {
			return err
		}
	}
	sets, err := to.Open()
	if err != nil {
		return err
	}
	store := sets.Set
	if f.Pass == LastPass {
		store = sets.Add
	}
	var e AffinityEntry
	for _, rank := range affinityRanks {
		err = errors.Join(err, settable.EachPlace(from.Maps, func(s settable.Set[AffinityEntry], place int) bool {
			mark := s.Marks.Evictions[place]
			if MarkRank(mark.Owner) == rank && !settable.Expired(mark.Expires, f.Tick) && from.Read(s, place, &e) {
				store(&e, mark)
			}
			return true
		}))
	}
	return errors.Join(err, sets.Close())
}
