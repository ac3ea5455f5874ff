// SPDX-License-Identifier: Apache-2.0

// Package maglev fills lookup tables with which every node chooses the same backend for a flow, and which
// change little when backends are added or removed ("Maglev: A Fast and Reliable Software Network Load
// Balancer", NSDI 2016, section 3.4), with weights.
//
// A table depends only on its size and on the addresses, ports and weights of the backends, because nodes and
// versions of Beeline must agree. So the algorithm must not change; the tables in testdata detect a change.
//
// # Weights
//
// Each backend prefers the slots in its own order. On each of its turns it takes the free slot that it prefers
// most, until no slot is free. Turn k of a backend of weight w is at time k/w, except that the first turn of
// every backend is at time 0, so that each has a slot. Therefore:
//
//   - With equal weights this is the paper's algorithm.
//   - In a table of M slots for N backends, with total weight W, a backend of
//     weight w has at most the larger of 1 and (1 + N/M) M w/W slots: with M >= 100 N,
//     none is more than 1 % above its share, except those whose share is less than
//     one slot.
//   - The times of a backend's turns do not depend on the others. Adding or removing a
//     backend or changing its weight alters neither the order in which the others
//     have their turns nor their preferences, only which slots they find free.
package maglev

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Backend is a backend that shares a table with others.
type Backend struct {
	// Addr identifies the backend. IPv4 and IPv4-mapped IPv6 addresses are equal.
	Addr netip.AddrPort
	// Weight is its share relative to the others; 0 means no slots.
	Weight uint8
}

// Fill returns a table of size slots, each an index into backends. The result does not depend on the order of
// backends, which must be distinct. The size must be a prime number and at least the number of backends with
// nonzero weight, of which there must be at least one.
func Fill(size uint32, backends []Backend) ([]uint32, error) {
	if !isPrime(size) {
		return nil, fmt.Errorf("a table of %d slots: the size must be a prime number", size)
	}
	all := claimants(size, backends)
	switch {
	case len(all) == 0:
		return nil, errors.New("no backend has a nonzero weight")
	case len(all) > int(size):
		return nil, fmt.Errorf("%d backends are too many for a table of %d slots", len(all), size)
	}
	t := newTable(size)
	for i := range all {
		t.turn(&all[i])
	}
	for q := newQueue(all); t.free > 0; q.next() {
		for _, c := range q[0].members {
			if t.free == 0 {
				break
			}
			t.turn(c)
		}
	}
	return t.slots, nil
}

// claimant is a backend and its position in its sequence of slots.
type claimant struct {
	sequence
	addr   netip.AddrPort
	index  uint32
	weight uint32
}

// claimants returns the backends with nonzero weight, sorted.
func claimants(size uint32, backends []Backend) []claimant {
	all := make([]claimant, 0, len(backends))
	for i, b := range backends {
		if b.Weight == 0 {
			continue
		}
		addr := netip.AddrPortFrom(b.Addr.Addr().Unmap(), b.Addr.Port())
		all = append(all, claimant{newSequence(addr, size), addr, uint32(i), uint32(b.Weight)})
	}
	slices.SortFunc(all, func(a, b claimant) int { return a.addr.Compare(b.addr) })
	return all
}

// table is a table being filled.
type table struct {
	slots []uint32
	size  uint32
	free  uint32
}

const none = ^uint32(0)

func newTable(size uint32) *table {
	t := &table{make([]uint32, size), size, size}
	for i := range t.slots {
		t.slots[i] = none
	}
	return t
}

// turn assigns a claimant the first free slot of its sequence. There must be one.
func (t *table) turn(c *claimant) {
	at := c.at
	for t.slots[at] != none {
		at = c.after(at, t.size)
	}
	t.slots[at] = c.index
	t.free--
	c.at = c.after(at, t.size)
}
