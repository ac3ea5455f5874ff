// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/mappedarray"
)

// setMaps are the maps of a set table.
type setMaps struct {
	rows *ebpf.Map
	tags *ebpf.Map // of the same sets; nil: each set in rows begins with its tags
}

// setRow is a set without its tags.
type setRow[E any] struct {
	Marks   EdgeTCSetEvictions
	Entries [setPlaces]E
}

// entrySet is a set in mapped memory.
type entrySet[E any] struct {
	*EdgeTCSetTags
	*setRow[E]
}

// SetTable reads and removes entries of a table of sets (bpf/set_table/set_table.h) in the memory of its
// arrays. Programs change the table at the same time. Memory is mapped only while it is read.
type SetTable[K comparable, E any] struct {
	setMaps
	secret *ebpf.Map
	spills bool // an entry may be in the second of two sets
	key    func(*E) *K
	tag    func(key *K, sum uint64) uint32
	whole  func(*E) bool    // false: a program was writing the entry while it was read
	tagOf  func(*E) *uint32 // the tag in the entry itself; nil: there is none
}

// Max is the number of places for entries.
func (m setMaps) Max() uint32 { return m.rows.MaxEntries() * uint32(setPlaces) }

// keySum returns the sum of a key, from which its sets follow.
func keySum[K any](secret *setSecret, key *K) uint64 {
	return setSum(secret, unsafe.Slice((*uint32)(unsafe.Pointer(key)), unsafe.Sizeof(*key)/4))
}

// setWindow is the mapped memory of consecutive sets.
type setWindow[E any] struct {
	tags, rows           []byte
	tagStride, rowStride uintptr
	unmap                func() error
}

func (w *setWindow[E]) sets() uint32 { return uint32(uintptr(len(w.rows)) / w.rowStride) }

func (w *setWindow[E]) at(set uint32) entrySet[E] {
	row := w.rows[uintptr(set)*w.rowStride:]
	if w.tags == nil {
		tags := (*EdgeTCSetTags)(unsafe.Pointer(&row[0]))
		return entrySet[E]{tags, (*setRow[E])(unsafe.Pointer(&row[unsafe.Sizeof(*tags)]))}
	}
	return entrySet[E]{(*EdgeTCSetTags)(unsafe.Pointer(&w.tags[uintptr(set)*w.tagStride])), (*setRow[E])(unsafe.Pointer(&row[0]))}
}

// mapSets maps count sets, beginning with the set first.
func mapSets[E any](m setMaps, first, count uint32) (w *setWindow[E], err error) {
	w = &setWindow[E]{rowStride: mappedarray.Stride(m.rows)}
	w.rows, w.unmap, err = mappedarray.Map(m.rows, uintptr(first)*w.rowStride, uintptr(first+count)*w.rowStride)
	if err != nil || m.tags == nil {
		return w, err
	}
	unmapRows := w.unmap
	w.tagStride = mappedarray.Stride(m.tags)
	tags, unmapTags, err := mappedarray.Map(m.tags, uintptr(first)*w.tagStride, uintptr(first+count)*w.tagStride)
	if err != nil {
		return nil, errors.Join(err, unmapRows())
	}
	w.tags, w.unmap = tags, func() error { return errors.Join(unmapTags(), unmapRows()) }
	return w, nil
}

// eachPlace calls f with each place that may have an entry, until f returns false.
func eachPlace[E any](m setMaps, f func(s entrySet[E], place int) bool) error {
	sets := m.rows.MaxEntries()
	for first, count := uint32(0), uint32(max(1, mappedarray.ReadWindow/mappedarray.Stride(m.rows))); first < sets; first += count {
		count = min(count, sets-first)
		window, err := mapSets[E](m, first, count)
		if err != nil {
			return err
		}
		more := window.eachPlace(f)
		if err := window.unmap(); err != nil || !more {
			return err
		}
	}
	return nil
}

func (w *setWindow[E]) eachPlace(f func(s entrySet[E], place int) bool) (more bool) {
	for set := range w.sets() {
		s := w.at(set)
		for place := range setPlaces {
			if atomic.LoadUint32(&s.Tags[place]) != 0 && !f(s, place) {
				return false
			}
		}
	}
	return true
}

// read copies the entry of a place into e. It returns false if there is none, or if a program has replaced it.
func (t *SetTable[K, E]) read(s entrySet[E], place int, e *E) bool {
	tag := atomic.LoadUint32(&s.Tags[place])
	if tag == 0 || tag&setClaimed != 0 {
		return false
	}
	*e = s.Entries[place]
	return atomic.LoadUint32(&s.Tags[place]) == tag && t.whole(e)
}

// Walk calls f with each entry until f returns false. f must not keep the pointer.
func (t *SetTable[K, E]) Walk(f func(*E) bool) error {
	var e E // one for all calls: f takes its address, so it is on the heap
	return eachPlace(t.setMaps, func(s entrySet[E], place int) bool { return !t.read(s, place, &e) || f(&e) })
}

// setsOf returns the numbers of the sets in which the key with a sum may be, in a table of the given number of sets.
func (t *SetTable[K, E]) setsOf(sum uint64, sets uint32) []uint32 {
	if !t.spills {
		return []uint32{setFirst(sum, sets)}
	}
	return []uint32{setFirst(sum, sets), setSecond(sum, sets)}
}

// find calls f with the entry of a key and with the tag in its place, if there is one.
func (t *SetTable[K, E]) find(key K, f func(tag *uint32, e *E)) error {
	secret, err := readTableSecret(t.secret)
	if err != nil {
		return err
	}
	sum := keySum(&secret, &key)
	tag := t.tag(&key, sum)
	for _, number := range t.setsOf(sum, t.rows.MaxEntries()) {
		window, err := mapSets[E](t.setMaps, number, 1)
		if err != nil {
			return err
		}
		absent := window.eachPlace(func(s entrySet[E], place int) bool {
			var e E
			if at := &s.Tags[place]; atomic.LoadUint32(at) == tag && t.read(s, place, &e) && *t.key(&e) == key {
				f(at, &e)
				return false
			}
			return true
		})
		if err := window.unmap(); err != nil || !absent {
			return err
		}
	}
	return nil
}

// Get returns a copy of an entry, nil if there is none.
func (t *SetTable[K, E]) Get(key K) (found *E, err error) {
	err = t.find(key, func(_ *uint32, e *E) { found = e })
	return found, err
}

// Remove removes an entry for which is returns true. It returns the entry, nil if none was removed. An
// entry that a program has stored in its place since then stays.
func (t *SetTable[K, E]) Remove(key K, is func(*E) bool) (removed *E, err error) {
	err = t.find(key, func(at *uint32, e *E) {
		if tag := atomic.LoadUint32(at); tag&setClaimed == 0 && is(e) && atomic.CompareAndSwapUint32(at, tag, 0) {
			removed = e
		}
	})
	return removed, err
}
