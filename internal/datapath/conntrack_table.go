// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
)

type conntrackSet = EdgeTCConntrackSet

// conntrackTable is a table of conntrack entries (bpf/lib/conntrack_table.h). The programs change it
// meanwhile. What is looked at is mapped for as long as that takes.
type conntrackTable struct {
	m      *ebpf.Map
	secret *ebpf.Map
	gone   *ebpf.Map // where the counts of entries go that are deleted
	spills bool      // an entry may be in the second of two sets
}

// conntrackSets is how many sets hold so many entries.
func conntrackSets(entries uint32) uint32 {
	return max((entries+uint32(setPlaces)-1)/uint32(setPlaces), 1)
}

func (c conntrackTable) Max() uint32 { return c.m.MaxEntries() * uint32(setPlaces) }

// sets maps so many from one on.
func (c conntrackTable) sets(first, count uint32) (sets []conntrackSet, unmap func() error, err error) {
	from := uintptr(first) * arrayStride(c.m)
	memory, unmap, err := mapMemory(c.m, from, from+uintptr(count)*arrayStride(c.m))
	if err != nil {
		return nil, nil, err
	}
	return unsafe.Slice((*conntrackSet)(unsafe.Pointer(&memory[0])), count), unmap, nil
}

// tupleSum says in which sets a key may be.
func tupleSum(secret *setSecret, key *Tuple) uint64 {
	return setSum(secret, (*[unsafe.Sizeof(*key) / 4]uint32)(unsafe.Pointer(key))[:])
}

// readPlace copies the entry in a place; false if there is none, or another one by now.
func readPlace(s *conntrackSet, place int) (key Tuple, t Track, ok bool) {
	tag := atomic.LoadUint32(&s.Head.Tags[place])
	if tag == 0 || tag&setClaimed != 0 {
		return key, t, false
	}
	key, t = s.Entries[place].Key, s.Entries[place].Track
	return key, t, atomic.LoadUint32(&s.Head.Tags[place]) == tag && t.Tag == tupleHash(&key)
}

func (c conntrackTable) Walk(f func(Tuple, *Track) bool) error {
	for first, count := uint32(0), uint32(max(1, readWindow/arrayStride(c.m))); first < c.m.MaxEntries(); first += count {
		count = min(count, c.m.MaxEntries()-first)
		sets, unmap, err := c.sets(first, count)
		if err != nil {
			return err
		}
		more := walkSets(sets, f)
		if err := unmap(); err != nil || !more {
			return err
		}
	}
	return nil
}

func walkSets(sets []conntrackSet, f func(Tuple, *Track) bool) (more bool) {
	var key Tuple
	var t Track // one for all: f gets it, so it is on the heap
	var ok bool
	for i := range sets {
		for place := range setPlaces {
			if atomic.LoadUint32(&sets[i].Head.Tags[place]) == 0 {
				continue // as most are: nothing to copy
			}
			if key, t, ok = readPlace(&sets[i], place); ok && !f(key, &t) {
				return false
			}
		}
	}
	return true
}

// find calls f with the set and place of a key's entry, if there is one.
func (c conntrackTable) find(key *Tuple, f func(s *conntrackSet, place int, t *Track)) error {
	secret, err := readTableSecret(c.secret)
	if err != nil {
		return err
	}
	sum := tupleSum(&secret, key)
	numbers := []uint32{setFirst(sum, c.m.MaxEntries())}
	if c.spills {
		numbers = append(numbers, setSecond(sum, c.m.MaxEntries()))
	}
	found := false
	for _, number := range numbers {
		sets, unmap, err := c.sets(number, 1)
		if err != nil {
			return err
		}
		for place := range setPlaces {
			if other, t, ok := readPlace(&sets[0], place); ok && other == *key && !found {
				found = true
				f(&sets[0], place, &t)
			}
		}
		if err := unmap(); err != nil || found {
			return err
		}
	}
	return nil
}

func (c conntrackTable) Get(key Tuple) (found *Track, err error) {
	err = c.find(&key, func(_ *conntrackSet, _ int, t *Track) { found = t })
	return found, err
}

func (c conntrackTable) Delete(key Tuple) (existed bool, err error) {
	return c.DeleteIf(key, func(*Track) bool { return true })
}

// DeleteIf reads the entry anew: since the caller has met it, programs may have given its key to
// another flow. From that look to the change of the tag it is a few instructions.
func (c conntrackTable) DeleteIf(key Tuple, is func(*Track) bool) (deleted bool, err error) {
	var failed error
	err = c.find(&key, func(s *conntrackSet, place int, t *Track) {
		if !is(t) {
			return
		}
		if deleted = atomic.CompareAndSwapUint32(&s.Head.Tags[place], setTag(t.Tag), 0); deleted {
			failed = keepTraffic(c.gone, t)
		}
	})
	return deleted, errors.Join(err, failed)
}

// copyFrom copies the entries into a table of another size, which nobody uses yet. What finds
// its sets full stays behind.
func (c conntrackTable) copyFrom(from *ebpf.Map) error {
	secret, err := readTableSecret(c.secret)
	if err != nil {
		return err
	}
	target, unmap, err := c.sets(0, c.m.MaxEntries())
	if err != nil {
		return err
	}
	source, unmapSource, err := conntrackTable{m: from}.sets(0, from.MaxEntries())
	if err != nil {
		return errors.Join(err, unmap())
	}
	for i := range source {
		for place := range setPlaces {
			if key, t, ok := readPlace(&source[i], place); ok {
				c.put(target, &secret, &EdgeTCConntrackEntry{Key: key, Track: t}, source[i].Head.Marks[place])
			}
		}
	}
	return errors.Join(unmapSource(), unmap())
}

// put stores an entry in a table that nobody uses yet, if one of its sets has room.
func (c conntrackTable) put(sets []conntrackSet, secret *setSecret, entry *EdgeTCConntrackEntry, mark EdgeTCSetMark) bool {
	sum := tupleSum(secret, &entry.Key)
	first := &sets[setFirst(sum, uint32(len(sets)))]
	if putIn(first, entry, mark) {
		return true
	}
	if !c.spills || !putIn(&sets[setSecond(sum, uint32(len(sets)))], entry, mark) {
		return false
	}
	first.Head.Spilled = 1
	return true
}

func putIn(s *conntrackSet, entry *EdgeTCConntrackEntry, mark EdgeTCSetMark) bool {
	for place := range setPlaces {
		if s.Head.Tags[place] == 0 {
			s.Entries[place], s.Head.Marks[place] = *entry, mark
			s.Head.Tags[place] = setTag(entry.Track.Tag)
			return true
		}
	}
	return false
}

// tupleHash is that of bpf/lib/tuple.h: the tag of an entry is that of its key.
func tupleHash(t *Tuple) uint32 {
	words := (*[unsafe.Sizeof(Tuple{}) / 8]uint64)(unsafe.Pointer(t))
	hash := words[0]*0x9e3779b97f4a7c15 ^ words[1]*0xd6e8feb86659fd93 ^ words[2]*0xc2b2ae3d27d4eb4f ^
		words[3]*0xff51afd7ed558ccd ^ words[4]*0xa0761d6478bd642f
	hash = (hash ^ hash>>32) * 0x9e3779b97f4a7c15
	return uint32((hash ^ hash>>29) * 0xd6e8feb86659fd93 >> 32)
}
