// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/mappedarray"
	"beeline.io/beeline/internal/bpf/settable"
)

// place is where an entry is.
type place struct{ set, index uint32 }

// cacheTable writes the table of the flow cache (bpf/offload/maps.h). It alone adds and deletes entries. The caller
// serialises its methods.
type cacheTable struct {
	flows    *mappedarray.Array[bpf.OffloadOffloadSet]
	tags     *mappedarray.Array[bpf.EdgeTCSetTags]
	controls *mappedarray.Array[Control]
	secret   settable.Secret
	wait     func() error // bpf.Tables.WaitForReaders

	places  map[Key]place
	deleted map[place]bool // programs may still use the entry
}

func newCacheTable(t *Tables, wait func() error) *cacheTable {
	c := &cacheTable{
		flows:    mappedarray.New[bpf.OffloadOffloadSet](t.Flows),
		tags:     mappedarray.New[bpf.EdgeTCSetTags](t.Tags),
		controls: mappedarray.New[Control](t.Controls),
		secret:   t.Secret, wait: wait, places: map[Key]place{}, deleted: map[place]bool{},
	}
	c.restore()
	return c
}

// restore finds the entries of an earlier agent.
func (c *cacheTable) restore() {
	for set := range c.flows.Len() {
		tags := c.tags.At(set)
		for i := range uint32(settable.Places) {
			if atomic.LoadUint32(&tags.Tags[i]) != 0 {
				p := place{set, i}
				c.places[c.at(p).Key] = p
			}
		}
	}
}

func (c *cacheTable) at(p place) *Entry { return &c.flows.At(p.set).Flows[p.index] }

func (c *cacheTable) tagAt(p place) *uint32 { return &c.tags.At(p.set).Tags[p.index] }

func (c *cacheTable) control() *Control { return c.controls.At(0) }

// get returns the entry of a key; nil if there is none.
func (c *cacheTable) get(k Key) *Entry {
	if p, ok := c.places[k]; ok {
		return c.at(p)
	}
	return nil
}

// errFull is why there is no room for an entry.
var errFull = errors.New("the flow cache has no room for it: raise --offload-max-flows")

// quietTime is how long an entry has to be without packets before another may have its place, in ticks.
const quietTime = 1024

// add stores an entry. Its key has none. Without a free place it gives up the one of the entry that is quiet for the
// longest time: a later call may have it.
func (c *cacheTable) add(e *Entry) error {
	sum, now := e.Key.Sum(&c.secret), settable.Tick()
	set := settable.First(sum, c.flows.Len())
	quietest, quiet := place{}, int32(quietTime)
	for i := range uint32(settable.Places) {
		p := place{set, i}
		if c.deleted[p] {
			quiet = math.MaxInt32 // there will be a free place
			continue
		}
		if atomic.LoadUint32(c.tagAt(p)) == 0 {
			*c.at(p) = *e
			atomic.StoreUint32(c.tagAt(p), settable.Tag(uint32(sum)))
			c.places[e.Key] = p
			return nil
		}
		if age := int32(now - c.at(p).LastSeen); age > quiet {
			quietest, quiet = p, age
		}
	}
	if quiet > quietTime && quiet < math.MaxInt32 {
		c.free(quietest)
	}
	return errFull
}

// free deletes an entry. Programs may use it until remove has waited for them.
func (c *cacheTable) free(p place) {
	delete(c.places, c.at(p).Key)
	atomic.StoreUint32(c.tagAt(p), 0)
	c.deleted[p] = true
}

// remove deletes entries, and calls last with each, when no program uses it any more.
func (c *cacheTable) remove(keys []Key, last func(*Entry)) error {
	for _, k := range keys {
		if p, ok := c.places[k]; ok {
			c.free(p)
		}
	}
	if len(c.deleted) == 0 {
		return nil
	}
	if err := c.wait(); err != nil {
		return fmt.Errorf("wait until no program uses the flows that were deleted: %w", err)
	}
	for p := range c.deleted {
		last(c.at(p))
	}
	clear(c.deleted)
	return nil
}

// each calls f with each entry.
func (c *cacheTable) each(f func(*Entry)) {
	for _, p := range c.places {
		f(c.at(p))
	}
}

// active reports whether programs use an entry.
func (c *cacheTable) active(e *Entry) bool {
	return state(e) == stateActive && e.Epoch == c.control().Epoch
}

// max returns the number of places.
func (c *cacheTable) max() uint32 { return c.flows.Len() * uint32(settable.Places) }

// state is the state of an entry, which programs write.
func state(e *Entry) uint8 { return *(*uint8)(unsafe.Pointer(&e.State)) }
