// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
)

// An AffinityTable has the backends that clients of Services with session affinity had last. The
// programs write it; what they change meanwhile may be missing or be seen twice.
type AffinityTable interface {
	// Max is the number of places for entries.
	Max() uint32
	// Live is the number of entries that have not expired.
	Live() (uint32, error)
	// Walk calls f with every entry, expired ones too, until that returns false.
	Walk(f func(*AffinityEntry) bool) error
	// Get reads an entry, nil if there is none.
	Get(AffinityKey) (*AffinityEntry, error)
	// Delete removes an entry; one that is not there is no error.
	Delete(AffinityKey) error
}

type affinitySet = SockAffinitySet

// AffinityOf is the table in maps, by their names.
func AffinityOf(maps map[string]*ebpf.Map) AffinityTable {
	return affinityTable{maps[SockMapAffinity], maps[SockMapTableSecret]}
}

// affinityLoad is how many of a set's places are meant to be in use: with this many clients in
// each set hardly any finds both of its sets full.
const affinityLoad = 12

// affinitySets is how many sets there are for so many clients.
func affinitySets(clients uint32) uint32 { return max((clients+affinityLoad-1)/affinityLoad, 1) }

// affinityTable is bpf/lib/affinity.h's. What is looked at is mapped for as long as that takes.
type affinityTable struct{ m, secret *ebpf.Map }

func (a affinityTable) Max() uint32 { return a.m.MaxEntries() * uint32(setPlaces) }

// sets maps so many from one on.
func (a affinityTable) sets(first, count uint32) (sets []affinitySet, unmap func() error, err error) {
	from := uintptr(first) * arrayStride(a.m)
	memory, unmap, err := mapMemory(a.m, from, from+uintptr(count)*arrayStride(a.m))
	if err != nil {
		return nil, nil, err
	}
	return unsafe.Slice((*affinitySet)(unsafe.Pointer(&memory[0])), count), unmap, nil
}

// eachPlace calls f with every place that may have an entry, until that returns false.
func (a affinityTable) eachPlace(f func(s *affinitySet, place int) bool) error {
	sets := a.m.MaxEntries()
	for first, count := uint32(0), uint32(readWindow/arrayStride(a.m)); first < sets; first += count {
		count = min(count, sets-first)
		window, unmap, err := a.sets(first, count)
		if err != nil {
			return err
		}
		more := true
		for i := range window {
			for place := 0; place < setPlaces && more; place++ {
				if atomic.LoadUint32(&window[i].Head.Tags[place]) != 0 {
					more = f(&window[i], place)
				}
			}
		}
		if err := unmap(); err != nil || !more {
			return err
		}
	}
	return nil
}

// readAffinity copies the entry in a place; false if there is none, or another one by now.
func readAffinity(s *affinitySet, place int) (e AffinityEntry, ok bool) {
	tag := atomic.LoadUint32(&s.Head.Tags[place])
	if tag == 0 || tag&setClaimed != 0 {
		return e, false
	}
	e = s.Entries[place]
	return e, atomic.LoadUint32(&s.Head.Tags[place]) == tag
}

func (a affinityTable) Walk(f func(*AffinityEntry) bool) error {
	return a.eachPlace(func(s *affinitySet, place int) bool {
		e, ok := readAffinity(s, place)
		return !ok || f(&e)
	})
}

func (a affinityTable) Live() (live uint32, err error) {
	now, err := tickNow()
	if err != nil {
		return 0, err
	}
	err = a.eachPlace(func(s *affinitySet, place int) bool {
		if !markExpired(atomic.LoadUint32(&s.Head.Marks[place].Until), now) {
			live++
		}
		return true
	})
	return live, err
}

func affinitySum(secret *setSecret, key *AffinityKey) uint64 {
	return setSum(secret, (*[unsafe.Sizeof(*key) / 4]uint32)(unsafe.Pointer(key))[:])
}

// find calls f with the set and place of a key's entry, if there is one.
func (a affinityTable) find(key *AffinityKey, f func(s *affinitySet, place int, e *AffinityEntry)) error {
	secret, err := readTableSecret(a.secret)
	if err != nil {
		return err
	}
	sum, sets := affinitySum(&secret, key), a.m.MaxEntries()
	for _, number := range []uint32{setFirst(sum, sets), setSecond(sum, sets)} {
		found, unmap, err := a.sets(number, 1)
		if err != nil {
			return err
		}
		s, there := &found[0], false
		for place := 0; place < setPlaces && !there; place++ {
			if atomic.LoadUint32(&s.Head.Tags[place]) != setTag(uint32(sum)) {
				continue
			}
			if e, ok := readAffinity(s, place); ok && e.Key == *key {
				there = true
				f(s, place, &e)
			}
		}
		if err := unmap(); err != nil || there {
			return err
		}
	}
	return nil
}

func (a affinityTable) Get(key AffinityKey) (found *AffinityEntry, err error) {
	err = a.find(&key, func(_ *affinitySet, _ int, e *AffinityEntry) { found = e })
	return found, err
}

func (a affinityTable) Delete(key AffinityKey) error {
	return a.find(&key, func(s *affinitySet, place int, _ *AffinityEntry) {
		// If a program was faster, then there is a new entry.
		tag := atomic.LoadUint32(&s.Head.Tags[place])
		if tag&setClaimed == 0 {
			atomic.CompareAndSwapUint32(&s.Head.Tags[place], tag, 0)
		}
	})
}

// copyAffinity copies entries into a table of another size, which nobody uses yet: first those of
// clients that have come again. What has expired stays behind, and what finds its sets full.
func copyAffinity(to, from, secretOf *ebpf.Map) error {
	secret, err := readTableSecret(secretOf)
	if err != nil {
		return err
	}
	now, err := tickNow()
	if err != nil {
		return err
	}
	target := affinityTable{m: to}
	sets, unmap, err := target.sets(0, to.MaxEntries())
	if err != nil {
		return err
	}
	for _, rank := range []setRank{SockSetRankSET_RANK_ASSURED, SockSetRankSET_RANK_UNASSURED} {
		err = errors.Join(err, affinityTable{m: from}.eachPlace(func(s *affinitySet, place int) bool {
			mark := s.Head.Marks[place]
			if e, ok := readAffinity(s, place); ok && markRank(mark.Owner) == rank && !markExpired(mark.Until, now) {
				putAffinity(sets, affinitySum(&secret, &e.Key), &e, mark.Until, mark.Owner)
			}
			return true
		}))
	}
	return errors.Join(err, unmap())
}

// putAffinity stores an entry where nobody else does, if there is room.
func putAffinity(sets []affinitySet, sum uint64, e *AffinityEntry, until, owner uint32) {
	first := &sets[setFirst(sum, uint32(len(sets)))]
	for _, s := range []*affinitySet{first, &sets[setSecond(sum, uint32(len(sets)))]} {
		for place := range setPlaces {
			if s.Head.Tags[place] != 0 {
				continue
			}
			s.Entries[place] = *e
			s.Head.Marks[place].Until, s.Head.Marks[place].Owner = until, owner
			s.Head.Tags[place] = setTag(uint32(sum))
			if s != first {
				first.Head.Spilled = 1
			}
			return
		}
	}
}

// copyPinnedAffinity is copyAffinity with the pinned secret. Without that no key is found again.
func (d *Datapath) copyPinnedAffinity(to, from *ebpf.Map) error {
	secret, err := ebpf.LoadPinnedMap(d.tablePath(SockMapTableSecret), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pinned table %s: %w", SockMapTableSecret, err)
	}
	defer secret.Close()
	return copyAffinity(to, from, secret)
}
