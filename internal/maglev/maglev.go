// SPDX-License-Identifier: Apache-2.0

// Package maglev fills look-up tables by which every node chooses the same
// backend for a flow, and which change little when backends come and go
// ("Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016,
// section 3.4), with weights.
//
// A table follows from the addresses, ports and weights of the backends and from
// its size, and from nothing else: nodes and versions of Beeline have to agree. So
// the algorithm must not change; the tables in testdata tell if it does.
//
// # Weights
//
// Each backend prefers the slots in an order of its own, and takes its most preferred
// free slot when it is its turn, until none is free. Turn k of a backend of weight w
// comes at the time k/w; only the first one of all comes at 0, so that each has a slot.
// Hence:
//
//   - With equal weights that is the paper's algorithm.
//   - In a table of M slots for N backends, with weights of the sum W, a backend of
//     weight w has at most the larger of 1 and (1 + N/M) M w/W slots: at M >= 100 N
//     none has more than 1 % above its share, but for those whose share is less than
//     one slot.
//   - The times of one backend's turns do not depend on the others. A backend that
//     comes, goes or changes its weight alters neither the order in which the others
//     have their turns nor what they prefer, only which slots they still find free.
package maglev

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Backend is one of the backends that share a table.
type Backend struct {
	// Addr identifies the backend. IPv4 and IPv4-mapped IPv6 addresses are the same.
	Addr netip.AddrPort
	// Weight is its share relative to the others; 0 means no slots.
	Weight uint8
}

// Fill returns a table of size slots, each an index into backends. The result does not depend on
// the order of backends, which must be distinct. The size must be a prime number and at least the
// number of backends with nonzero weight, of which there must be at least one.
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

// turn assigns the first free slot of a claimant's sequence. There must be one.
func (t *table) turn(c *claimant) {
	at := c.at
	for t.slots[at] != none {
		at = c.after(at, t.size)
	}
	t.slots[at] = c.index
	t.free--
	c.at = c.after(at, t.size)
}
