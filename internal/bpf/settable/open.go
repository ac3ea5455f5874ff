// SPDX-License-Identifier: Apache-2.0

package settable

import (
	"sync/atomic"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/mappedarray"
)

// Clear empties a table that no program uses.
func (m Maps) Clear() error {
	for _, table := range []*ebpf.Map{m.Rows, m.Tags} {
		if table == nil {
			continue
		}
		memory, unmap, err := mappedarray.Map(table, 0, mappedarray.Bytes(table))
		if err != nil {
			return err
		}
		clear(memory)
		if err := unmap(); err != nil {
			return err
		}
	}
	return nil
}

// OpenTable is a set table with all its memory mapped, to which the agent writes.
type OpenTable[K comparable, E any] struct {
	*Table[K, E]
	window *window[E]
	secret Secret
}

// Open maps the memory of a table, until Close.
func (t *Table[K, E]) Open() (*OpenTable[K, E], error) {
	o := &OpenTable[K, E]{Table: t}
	var err error
	if o.secret, err = ReadSecret(t.Secret); err != nil {
		return nil, err
	}
	o.window, err = mapSets[E](t.Maps, 0, t.Rows.MaxEntries())
	return o, err
}

// Close unmaps the memory.
func (o *OpenTable[K, E]) Close() error { return o.window.unmap() }

// At returns the set and place of a key's entry; false if there is none.
func (o *OpenTable[K, E]) At(key *K) (s Set[E], place int, found bool) {
	sum := KeySum(&o.secret, key)
	tag := o.Tag(key, sum)
	for _, number := range o.setsOf(sum, o.window.sets()) {
		s := o.window.at(number)
		for place := range Places {
			if atomic.LoadUint32(&s.Tags[place]) == tag && *o.Key(&s.Entries[place]) == *key {
				return s, place, true
			}
		}
	}
	return s, 0, false
}

// Delete removes the entry of a key.
func (o *OpenTable[K, E]) Delete(key *K) {
	if s, place, found := o.At(key); found {
		atomic.CompareAndSwapUint32(&s.Tags[place], o.Tag(key, KeySum(&o.secret, key)), 0)
	}
}

// Set stores an entry in a table that no program uses, in place of the key's earlier one.
func (o *OpenTable[K, E]) Set(e *E, mark Eviction) {
	if s, place, found := o.At(o.Key(e)); found {
		s.Entries[place], s.Marks.Evictions[place] = *e, mark
		return
	}
	o.Insert(e, mark)
}

// Add stores an entry in a table that programs use, unless its key has one.
func (o *OpenTable[K, E]) Add(e *E, mark Eviction) {
	if _, _, found := o.At(o.Key(e)); !found {
		o.Insert(e, mark)
	}
}

// Insert stores the entry of a key that has none in a table that programs use, like ct_insert_once in
// bpf/conntrack/table.h: it claims a free place and gives up if another writer has the key. It returns false if it
// gives up or if all places of the key are taken.
func (o *OpenTable[K, E]) Insert(e *E, mark Eviction) bool {
	key := o.Key(e)
	sum := KeySum(&o.secret, key)
	tag := o.Tag(key, sum)
	numbers := o.setsOf(sum, o.window.sets())
	for i, number := range numbers {
		s := o.window.at(number)
		for place := range Places {
			if !atomic.CompareAndSwapUint32(&s.Tags[place], 0, tag|Claimed) {
				continue
			}
			if o.contended(numbers, tag, key, &s.Tags[place]) {
				atomic.StoreUint32(&s.Tags[place], 0)
				return false
			}
			if i > 0 {
				atomic.StoreUint32(&o.window.at(numbers[0]).Spilled, 1)
			}
			o.publish(&s.Entries[place], e)
			s.Marks.Evictions[place] = mark
			atomic.StoreUint32(&s.Tags[place], tag)
			return true
		}
	}
	return false
}

// contended reports whether another place than `own` has the key, or may be about to get it.
func (o *OpenTable[K, E]) contended(numbers []uint32, tag uint32, key *K, own *uint32) bool {
	for _, number := range numbers {
		s := o.window.at(number)
		for place := range Places {
			at := &s.Tags[place]
			there := atomic.LoadUint32(at)
			if at != own && there&^Claimed == tag && (there != tag || *o.Key(&s.Entries[place]) == *key) {
				return true
			}
		}
	}
	return false
}

// publish writes an entry so that a reader that copies it meanwhile notices.
func (o *OpenTable[K, E]) publish(to, from *E) {
	if o.TagOf == nil {
		*to = *from
		return
	}
	whole := *o.TagOf(from)
	atomic.StoreUint32(o.TagOf(to), 0)
	e := *from
	*o.TagOf(&e) = 0
	*to = e
	atomic.StoreUint32(o.TagOf(to), whole)
}
