// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"beeline.io/beeline/internal/bpf/settable"
)

// followConntrack is the rule of both conntrack tables. In the old ones flows move from `unreplied` to
// `conntrack`, so they are read in this order. A flow that is not assured may change with every packet;
// until the last pass its packets are passed to the programs of the predecessor, and the flag CT_COPIED
// marks its copy.
func followConntrack(f Following) (err error) {
	assured, unreplied := NewConntrackSets(f.New, EdgeTCMapConntrack), NewConntrackSets(f.New, EdgeTCMapUnreplied)
	if f.Pass == FirstPass {
		if err := errors.Join(assured.Clear(), unreplied.Clear()); err != nil {
			return err
		}
	}
	c := conntrackCopy{Following: f}
	if c.assured, err = assured.Open(); err != nil {
		return err
	}
	defer c.assured.Close()
	if c.unreplied, err = unreplied.Open(); err != nil {
		return err
	}
	defer c.unreplied.Close()
	switch f.Pass {
	case FirstPass:
		return c.copyAll()
	case RecentPass:
		return c.copyRecent()
	}
	return c.copyRest()
}

// copyAll is the first pass. If there is too little room it is for entries that are in use.
func (c *conntrackCopy) copyAll() error {
	for _, dead := range []bool{false, true} {
		if err := c.copyWhich(func(e *ConntrackSlot, mark settable.Eviction) bool { return c.isDead(mark) == dead }); err != nil {
			return err
		}
	}
	return c.removeHalves()
}

// copyRecent is the second pass: entries that were used since the first.
func (c *conntrackCopy) copyRecent() error {
	return c.copyWhich(func(e *ConntrackSlot, _ settable.Eviction) bool { return e.Ct.LastSeen >= c.Since })
}

// copyRest is the last pass: all that the new tables lack. Copies of flows that have ended are removed.
func (c *conntrackCopy) copyRest() error {
	if err := c.copyWhich(func(*ConntrackSlot, settable.Eviction) bool { return true }); err != nil {
		return err
	}
	return c.removeEnded()
}

// isDead reports whether an entry is closed or has expired, by its mark.
func (c *conntrackCopy) isDead(mark settable.Eviction) bool {
	return MarkRank(mark.Owner) == SockSetRankSET_RANK_CLOSED || settable.Expired(mark.Expires, c.Tick)
}

// copyWhich copies the entries that a function takes.
func (c *conntrackCopy) copyWhich(takes func(*ConntrackSlot, settable.Eviction) bool) error {
	for _, table := range []struct {
		name string
		copy func(e *ConntrackSlot, mark settable.Eviction)
	}{{EdgeTCMapUnreplied, c.unassuredFlow}, {EdgeTCMapConntrack, c.assuredFlow}} {
		old := NewConntrackSets(c.Old, table.name)
		old.Secret = c.assured.Secret
		var e ConntrackSlot
		if err := settable.EachPlace(old.Maps, func(s settable.Set[ConntrackSlot], place int) bool {
			if mark := s.Marks.Evictions[place]; old.Read(s, place, &e) && takes(&e, mark) {
				table.copy(&e, mark)
			}
			return true
		}); err != nil {
			return err
		}
	}
	return nil
}

// withConntrack is the rule of tables that followConntrack also copies.
func withConntrack(Following) error { return nil }

// conntrackCopy is a pass over the conntrack tables.
type conntrackCopy struct {
	Following
	assured, unreplied *settable.OpenTable[Tuple, ConntrackSlot]
}

const conntrackCopied = uint8(EdgeTCCtFlagCT_COPIED)

func (c *conntrackCopy) unassuredFlow(e *ConntrackSlot, mark settable.Eviction) {
	if c.Pass != LastPass {
		e.Ct.Flags |= conntrackCopied
		c.set(c.unreplied, e, mark)
		return
	}
	if _, _, assured := c.assured.At(&e.Key); assured {
		return
	}
	// A copy is replaced, not updated: a program may evict it and use its place for another flow at any
	// time. Between the two steps the new tables do not have the flow.
	if s, place, found := c.unreplied.At(&e.Key); found && s.Entries[place].Ct.Flags&conntrackCopied != 0 {
		c.unreplied.Delete(&e.Key)
	}
	c.insert(c.unreplied, e, mark)
}

func (c *conntrackCopy) assuredFlow(e *ConntrackSlot, mark settable.Eviction) {
	if c.Pass != LastPass {
		c.set(c.assured, e, mark)
		c.unreplied.Delete(&e.Key)
		return
	}
	s, place, found := c.assured.At(&e.Key)
	if found {
		if at := &s.Entries[place].Ct; at.Xlate == e.Ct.Xlate { // else another flow has got the SNAT port of a closed one
			closeLike(at, &e.Ct)
		}
		return
	}
	if s, place, found := c.unreplied.At(&e.Key); found && s.Entries[place].Ct.Flags&conntrackCopied == 0 {
		return // begun again since
	}
	if c.insert(c.assured, e, mark) {
		c.unreplied.Delete(&e.Key)
	}
}

// set stores an entry in tables that no program uses, in place of the key's earlier one.
func (c *conntrackCopy) set(table *settable.OpenTable[Tuple, ConntrackSlot], e *ConntrackSlot, mark settable.Eviction) {
	if _, _, found := table.At(&e.Key); found {
		table.Set(e, mark)
		return
	}
	c.insert(table, e, mark)
}

// insert stores an entry unless its key has one. After the first pass an entry whose sets are full evicts a flow,
// as it would when a program inserts it: tables are often full of closed flows and of flows that were never
// replied, and then no flow that began since the first pass would be copied.
func (c *conntrackCopy) insert(table *settable.OpenTable[Tuple, ConntrackSlot], e *ConntrackSlot, mark settable.Eviction) bool {
	if _, _, found := table.At(&e.Key); found {
		return false
	}
	if table.Insert(e, mark) {
		return true
	}
	if c.Pass == FirstPass || c.isDead(mark) {
		return false
	}
	evicted, ok := table.Evict(&e.Key, mark, c.Tick)
	if !ok {
		return false
	}
	c.deleteOther(&evicted)
	return table.Insert(e, mark)
}

// deleteOther deletes the other entry of an evicted flow.
func (c *conntrackCopy) deleteOther(evicted *ConntrackSlot) {
	key := evicted.Ct.Xlate.Reverse()
	for _, table := range []*settable.OpenTable[Tuple, ConntrackSlot]{c.assured, c.unreplied} {
		if s, place, found := table.At(&key); found && s.Entries[place].Ct.Xlate.Reverse() == evicted.Key {
			table.Delete(&key)
		}
	}
}

// removeHalves removes entries of flows whose other entry found no room. No program uses the tables.
func (c *conntrackCopy) removeHalves() error {
	for _, table := range []*settable.OpenTable[Tuple, ConntrackSlot]{c.assured, c.unreplied} {
		if err := settable.EachPlace(table.Maps, func(s settable.Set[ConntrackSlot], place int) bool {
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
	for _, table := range []*settable.OpenTable[Tuple, ConntrackSlot]{c.assured, c.unreplied} {
		if s, place, found := table.At(&key); found {
			return s.Entries[place].Ct.Xlate.Reverse() == e.Key
		}
	}
	return false
}

// removeEnded removes copies of flows that have ended since they were copied.
func (c *conntrackCopy) removeEnded() error {
	return settable.EachPlace(c.unreplied.Maps, func(s settable.Set[ConntrackSlot], place int) bool {
		if tag := atomic.LoadUint32(&s.Tags[place]); tag&settable.Claimed == 0 && s.Entries[place].Ct.Flags&conntrackCopied != 0 {
			atomic.CompareAndSwapUint32(&s.Tags[place], tag, 0)
		}
		return true
	})
}

// stateWord returns the word of an entry with its state and flags.
func stateWord(e *ConntrackEntry) *uint32 { return (*uint32)(unsafe.Pointer(&e.State)) }

// closeLike makes an entry closing or closed if the other one is. Programs may use the entry.
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
