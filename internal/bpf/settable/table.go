// SPDX-License-Identifier: Apache-2.0

package settable

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/mappedarray"
)

// Maps are the maps of a set table.
type Maps struct {
	Rows *ebpf.Map
	Tags *ebpf.Map // of the same sets; nil: each set in Rows begins with its tags
}

// Row is a set without its tags.
type Row[E any] struct {
	Marks   Evictions
	Entries [Places]E
}

// Set is a set in mapped memory.
type Set[E any] struct {
	*SetTags
	*Row[E]
}

// Table reads and removes entries of a table of sets (bpf/set_table/set_table.h) in the memory of its
// arrays. Programs change the table at the same time. Memory is mapped only while it is read.
type Table[K comparable, E any] struct {
	Maps
	Secret *ebpf.Map
	Spills bool // an entry may be in the second of two sets
	Key    func(*E) *K
	Tag    func(key *K, sum uint64) uint32
	Whole  func(*E) bool    // false: a program was writing the entry while it was read
	TagOf  func(*E) *uint32 // the tag in the entry itself; nil: there is none
}

// Max returns the number of places for entries.
func (m Maps) Max() uint32 { return m.Rows.MaxEntries() * uint32(Places) }

// KeySum returns the sum of a key, from which its sets follow.
func KeySum[K any](secret *Secret, key *K) uint64 {
	return sumOf(secret, unsafe.Slice((*uint32)(unsafe.Pointer(key)), unsafe.Sizeof(*key)/4))
}

// window is the mapped memory of consecutive sets.
type window[E any] struct {
	tags, rows           []byte
	tagStride, rowStride uintptr
	unmap                func() error
}

func (w *window[E]) sets() uint32 { return uint32(uintptr(len(w.rows)) / w.rowStride) }

func (w *window[E]) at(set uint32) Set[E] {
	row := w.rows[uintptr(set)*w.rowStride:]
	if w.tags == nil {
		tags := (*SetTags)(unsafe.Pointer(&row[0]))
		return Set[E]{tags, (*Row[E])(unsafe.Pointer(&row[unsafe.Sizeof(*tags)]))}
	}
	return Set[E]{(*SetTags)(unsafe.Pointer(&w.tags[uintptr(set)*w.tagStride])), (*Row[E])(unsafe.Pointer(&row[0]))}
}

// mapSets maps count sets from the set first on.
func mapSets[E any](m Maps, first, count uint32) (w *window[E], err error) {
	w = &window[E]{rowStride: mappedarray.Stride(m.Rows)}
	w.rows, w.unmap, err = mappedarray.Map(m.Rows, uintptr(first)*w.rowStride, uintptr(first+count)*w.rowStride)
	if err != nil || m.Tags == nil {
		return w, err
	}
	unmapRows := w.unmap
	w.tagStride = mappedarray.Stride(m.Tags)
	tags, unmapTags, err := mappedarray.Map(m.Tags, uintptr(first)*w.tagStride, uintptr(first+count)*w.tagStride)
	if err != nil {
		return nil, errors.Join(err, unmapRows())
	}
	w.tags, w.unmap = tags, func() error { return errors.Join(unmapTags(), unmapRows()) }
	return w, nil
}

// EachPlace calls f with each place that may have an entry, until f returns false.
func EachPlace[E any](m Maps, f func(s Set[E], place int) bool) error {
	sets := m.Rows.MaxEntries()
	for first, count := uint32(0), uint32(max(1, mappedarray.ReadWindow/mappedarray.Stride(m.Rows))); first < sets; first += count {
		count = min(count, sets-first)
		w, err := mapSets[E](m, first, count)
		if err != nil {
			return err
		}
		more := w.eachPlace(f)
		if err := w.unmap(); err != nil || !more {
			return err
		}
	}
	return nil
}

func (w *window[E]) eachPlace(f func(s Set[E], place int) bool) (more bool) {
	for set := range w.sets() {
		s := w.at(set)
		for place := range Places {
			if atomic.LoadUint32(&s.Tags[place]) != 0 && !f(s, place) {
				return false
			}
		}
	}
	return true
}

// Read copies the entry of a place into e. It returns false if there is none, or if a program has replaced it.
func (t *Table[K, E]) Read(s Set[E], place int, e *E) bool {
	tag := atomic.LoadUint32(&s.Tags[place])
	if tag == 0 || tag&Claimed != 0 {
		return false
	}
	*e = s.Entries[place]
	return atomic.LoadUint32(&s.Tags[place]) == tag && t.Whole(e)
}

// Walk calls f with each entry until f returns false. f must not keep the pointer.
func (t *Table[K, E]) Walk(f func(*E) bool) error {
	var e E // one for all calls: f takes its address, so it is on the heap
	return EachPlace(t.Maps, func(s Set[E], place int) bool { return !t.Read(s, place, &e) || f(&e) })
}

// setsOf returns the numbers of the sets that may have the key with a sum, in a table with a number of
// sets.
func (t *Table[K, E]) setsOf(sum uint64, sets uint32) []uint32 {
	if !t.Spills {
		return []uint32{First(sum, sets)}
	}
	return []uint32{First(sum, sets), Second(sum, sets)}
}

// find calls f with the entry of a key and the tag in its place, if there is one.
func (t *Table[K, E]) find(key K, f func(tag *uint32, e *E)) error {
	secret, err := ReadSecret(t.Secret)
	if err != nil {
		return err
	}
	sum := KeySum(&secret, &key)
	tag := t.Tag(&key, sum)
	for _, number := range t.setsOf(sum, t.Rows.MaxEntries()) {
		w, err := mapSets[E](t.Maps, number, 1)
		if err != nil {
			return err
		}
		absent := w.eachPlace(func(s Set[E], place int) bool {
			var e E
			if at := &s.Tags[place]; atomic.LoadUint32(at) == tag && t.Read(s, place, &e) && *t.Key(&e) == key {
				f(at, &e)
				return false
			}
			return true
		})
		if err := w.unmap(); err != nil || !absent {
			return err
		}
	}
	return nil
}

// Get returns a copy of an entry, nil if there is none.
func (t *Table[K, E]) Get(key K) (found *E, err error) {
	err = t.find(key, func(_ *uint32, e *E) { found = e })
	return found, err
}

// Remove removes an entry if is returns true for it, and returns the entry, nil if none was removed. It
// does not remove an entry that a program has stored in the place meanwhile.
func (t *Table[K, E]) Remove(key K, is func(*E) bool) (removed *E, err error) {
	err = t.find(key, func(at *uint32, e *E) {
		if tag := atomic.LoadUint32(at); tag&Claimed == 0 && is(e) && atomic.CompareAndSwapUint32(at, tag, 0) {
			removed = e
		}
	})
	return removed, err
}
