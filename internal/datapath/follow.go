// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/mappedarray"
)

// clear empties a table that no program uses.
func (m setMaps) clear() error {
	for _, table := range []*ebpf.Map{m.rows, m.tags} {
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

// openSets is a set table with all its memory mapped, to which the agent writes.
type openSets[K comparable, E any] struct {
	*SetTable[K, E]
	window *setWindow[E]
	secret setSecret
}

func (t *SetTable[K, E]) open() (*openSets[K, E], error) {
	o := &openSets[K, E]{SetTable: t}
	var err error
	if o.secret, err = readTableSecret(t.secret); err != nil {
		return nil, err
	}
	o.window, err = mapSets[E](t.setMaps, 0, t.rows.MaxEntries())
	return o, err
}

func (o *openSets[K, E]) close() error { return o.window.unmap() }

// at returns the set and place of a key's entry; false if there is none.
func (o *openSets[K, E]) at(key *K) (s entrySet[E], place int, found bool) {
	sum := keySum(&o.secret, key)
	tag := o.tag(key, sum)
	for _, number := range o.setsOf(sum, o.window.sets()) {
		s := o.window.at(number)
		for place := range setPlaces {
			if atomic.LoadUint32(&s.Tags[place]) == tag && *o.key(&s.Entries[place]) == *key {
				return s, place, true
			}
		}
	}
	return s, 0, false
}

// remove removes the entry of a key.
func (o *openSets[K, E]) remove(key *K) {
	if s, place, found := o.at(key); found {
		atomic.CompareAndSwapUint32(&s.Tags[place], o.tag(key, keySum(&o.secret, key)), 0)
	}
}

// set stores an entry in a table that no program uses, in place of the key's earlier one.
func (o *openSets[K, E]) set(e *E, mark EdgeTCSetEviction) {
	if s, place, found := o.at(o.key(e)); found {
		s.Entries[place], s.Marks.Evictions[place] = *e, mark
		return
	}
	o.insert(e, mark)
}

// add stores an entry in a table that programs use, unless its key has one.
func (o *openSets[K, E]) add(e *E, mark EdgeTCSetEviction) {
	if _, _, found := o.at(o.key(e)); !found {
		o.insert(e, mark)
	}
}

// insert stores the entry of a key that has none in a table that programs use, like ct_insert_once in
// bpf/conntrack/table.h: it claims a free place and gives up if another writer has the key. It returns false if it
// gives up or if all places of the key are taken.
func (o *openSets[K, E]) insert(e *E, mark EdgeTCSetEviction) bool {
	key := o.key(e)
	sum := keySum(&o.secret, key)
	tag := o.tag(key, sum)
	numbers := o.setsOf(sum, o.window.sets())
	for i, number := range numbers {
		s := o.window.at(number)
		for place := range setPlaces {
			if !atomic.CompareAndSwapUint32(&s.Tags[place], 0, tag|setClaimed) {
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

// contended reports whether a place other than `own` has the key, or may be about to have it.
func (o *openSets[K, E]) contended(numbers []uint32, tag uint32, key *K, own *uint32) bool {
	for _, number := range numbers {
		s := o.window.at(number)
		for place := range setPlaces {
			at := &s.Tags[place]
			there := atomic.LoadUint32(at)
			if at != own && there&^setClaimed == tag && (there != tag || *o.key(&s.Entries[place]) == *key) {
				return true
			}
		}
	}
	return false
}

// publish writes an entry such that a reader who copies it meanwhile sees that.
func (o *openSets[K, E]) publish(to, from *E) {
	if o.tagOf == nil {
		*to = *from
		return
	}
	whole := *o.tagOf(from)
	atomic.StoreUint32(o.tagOf(to), 0)
	e := *from
	*o.tagOf(&e) = 0
	*to = e
	atomic.StoreUint32(o.tagOf(to), whole)
}

// affinityRanks are the ranks of affinity entries, in the order in which they get a place if there is too little room:
// clients that have come again first.
var affinityRanks = []setRank{SockSetRankSET_RANK_ASSURED, SockSetRankSET_RANK_UNASSURED}

// followAffinity is the rule of the affinity table. Expired entries are left behind.
func followAffinity(d *Datapath, pass CopyPass) error {
	to := newAffinityTable(d.maps[SockMapAffinity], d.maps[SockMapTableSecret])
	from := newAffinityTable(d.old.maps[SockMapAffinity], d.maps[SockMapTableSecret])
	if pass == firstPass {
		if err := to.clear(); err != nil {
			return err
		}
	}
	sets, err := to.open()
	if err != nil {
		return err
	}
	store := sets.set
	if pass == lastPass {
		store = sets.add
	}
	var e AffinityEntry
	for _, rank := range affinityRanks {
		err = errors.Join(err, eachPlace(from.setMaps, func(s entrySet[AffinityEntry], place int) bool {
			mark := s.Marks.Evictions[place]
			if markRank(mark.Owner) == rank && !markExpired(mark.Expires, d.follower.tick) && from.read(s, place, &e) {
				store(&e, mark)
			}
			return true
		}))
	}
	return errors.Join(err, sets.close())
}

// followConntrack is the rule of both conntrack tables. In the older one flows move from `unreplied` to `conntrack`, so
// that is the order of reading. A flow that is not assured may change with every packet; until the last pass its
// packets go to the programs of the agent before, which the flag CT_COPIED says.
func followConntrack(d *Datapath, pass CopyPass) error {
	assured, unreplied := NewConntrackSets(d.maps, EdgeTCMapConntrack), NewConntrackSets(d.maps, EdgeTCMapUnreplied)
	if pass == firstPass {
		if err := errors.Join(assured.clear(), unreplied.clear()); err != nil {
			return err
		}
	}
	c := conntrackCopy{pass: pass}
	var err error
	if c.assured, err = assured.open(); err != nil {
		return err
	}
	defer c.assured.close()
	if c.unreplied, err = unreplied.open(); err != nil {
		return err
	}
	defer c.unreplied.close()
	if pass == firstPass { // if there is too little room it is for those that are in use
		for _, dead := range []bool{false, true} {
			c.takes = func(mark EdgeTCSetEviction, _ *ConntrackSlot) bool { return d.isDead(mark) == dead }
			if err := d.copyConntrack(&c); err != nil {
				return err
			}
		}
		return c.removeHalves()
	}
	c.takes = func(_ EdgeTCSetEviction, e *ConntrackSlot) bool {
		return pass == lastPass || e.Ct.LastSeen >= d.follower.since
	}
	if err := d.copyConntrack(&c); err != nil || pass != lastPass {
		return err
	}
	return c.removeEnded()
}

// isDead reports whether an entry is closed or has expired, which its mark says.
func (d *Datapath) isDead(mark EdgeTCSetEviction) bool {
	return markRank(mark.Owner) == SockSetRankSET_RANK_CLOSED || markExpired(mark.Expires, d.follower.tick)
}

// copyConntrack copies the entries that a pass takes.
func (d *Datapath) copyConntrack(c *conntrackCopy) error {
	for _, table := range []struct {
		name string
		copy func(e *ConntrackSlot, mark EdgeTCSetEviction)
	}{{EdgeTCMapUnreplied, c.unassuredFlow}, {EdgeTCMapConntrack, c.assuredFlow}} {
		old := newConntrackSets(table.name, setMaps{d.old.maps[table.name], d.old.maps[conntrackTags[table.name]]}, d.maps[EdgeTCMapTableSecret])
		var e ConntrackSlot
		if err := eachPlace(old.setMaps, func(s entrySet[ConntrackSlot], place int) bool {
			if mark := s.Marks.Evictions[place]; old.read(s, place, &e) && c.takes(mark, &e) {
				table.copy(&e, mark)
			}
			return true
		}); err != nil {
			return err
		}
	}
	return nil
}

// withConntrack is the rule of the tables that followConntrack also copies.
func withConntrack(*Datapath, CopyPass) error { return nil }

// conntrackCopy is a pass over the conntrack tables.
type conntrackCopy struct {
	pass               CopyPass
	takes              func(EdgeTCSetEviction, *ConntrackSlot) bool
	assured, unreplied *openSets[Tuple, ConntrackSlot]
}

const conntrackCopied = uint8(EdgeTCCtFlagCT_COPIED)

func (c *conntrackCopy) unassuredFlow(e *ConntrackSlot, mark EdgeTCSetEviction) {
	if c.pass != lastPass {
		e.Ct.Flags |= conntrackCopied
		c.unreplied.set(e, mark)
		return
	}
	if _, _, assured := c.assured.at(&e.Key); assured {
		return
	}
	// A copy is replaced, not updated: a program may evict it and use its place for another flow at any time.
	// Between the two steps the flow is one that the new tables do not know.
	if s, place, found := c.unreplied.at(&e.Key); found && s.Entries[place].Ct.Flags&conntrackCopied != 0 {
		c.unreplied.remove(&e.Key)
	}
	c.unreplied.add(e, mark)
}

func (c *conntrackCopy) assuredFlow(e *ConntrackSlot, mark EdgeTCSetEviction) {
	if c.pass != lastPass {
		c.assured.set(e, mark)
		c.unreplied.remove(&e.Key)
		return
	}
	s, place, found := c.assured.at(&e.Key)
	if found {
		closeLike(&s.Entries[place].Ct, &e.Ct)
		return
	}
	if s, place, found := c.unreplied.at(&e.Key); found && s.Entries[place].Ct.Flags&conntrackCopied == 0 {
		return // begun again since
	}
	if c.assured.insert(e, mark) {
		c.unreplied.remove(&e.Key)
	}
}

// removeHalves removes entries whose flow's other one has found no room. Programs do not use the tables.
func (c *conntrackCopy) removeHalves() error {
	for _, table := range []*openSets[Tuple, ConntrackSlot]{c.assured, c.unreplied} {
		if err := eachPlace(table.setMaps, func(s entrySet[ConntrackSlot], place int) bool {
			if e := &s.Entries[place]; !e.Ct.IsOneSided() && !c.hasOther(e) {
				s.Tags[place] = 0
			}
			return true
		}); err != nil {
			return err
		}
	}
	return nil
}

// hasOther reports whether the new tables have the entry of a flow's other direction.
func (c *conntrackCopy) hasOther(e *ConntrackSlot) bool {
	key := e.Ct.Xlate.Reverse()
	for _, table := range []*openSets[Tuple, ConntrackSlot]{c.assured, c.unreplied} {
		if s, place, found := table.at(&key); found {
			return s.Entries[place].Ct.Xlate.Reverse() == e.Key
		}
	}
	return false
}

// removeEnded removes copies of flows that have ended since they were made.
func (c *conntrackCopy) removeEnded() error {
	return eachPlace(c.unreplied.setMaps, func(s entrySet[ConntrackSlot], place int) bool {
		if tag := atomic.LoadUint32(&s.Tags[place]); tag&setClaimed == 0 && s.Entries[place].Ct.Flags&conntrackCopied != 0 {
			atomic.CompareAndSwapUint32(&s.Tags[place], tag, 0)
		}
		return true
	})
}

// stateWord is the word of an entry with its state and flags.
func stateWord(e *ConntrackEntry) *uint32 { return (*uint32)(unsafe.Pointer(&e.State)) }

// closeLike makes an entry closing or closed if the other one is. Programs may use it.
func closeLike(to, from *ConntrackEntry) {
	for {
		word := atomic.LoadUint32(stateWord(to))
		e := ConntrackEntry{}
		*stateWord(&e) = word
		if e.State >= from.State || from.State < uint8(ConntrackClosing) {
			return
		}
		e.State, e.Flags = from.State, e.Flags|from.Flags&uint8(ConntrackFIN)
		if atomic.CompareAndSwapUint32(stateWord(to), word, *stateWord(&e)) {
			return
		}
	}
}
