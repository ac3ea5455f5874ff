// SPDX-License-Identifier: Apache-2.0

package reconcile

import "slices"

// A pool hands out the numbers 1 to last. A freed number is reused only after rest others have been freed
// after it: an id that people have just seen in a log line or a table should not name something else a
// second later.
type pool struct {
	next, last uint32
	rest       int
	free       []uint32 // oldest first
}

// idRest is the rest of ids; row numbers, which nobody sees, need none.
const idRest = 128

// poolOf makes a pool in which some numbers are taken. It ignores those beyond last: damage, or left from a
// larger table.
func poolOf[V any](taken map[uint32]V, last uint32, rest int) pool {
	p := pool{next: 1, last: last, rest: rest}
	for n := range taken {
		if n <= last {
			p.next = max(p.next, n+1)
		}
	}
	for n := uint32(1); n < p.next; n++ {
		if _, ok := taken[n]; !ok {
			p.free = append(p.free, n)
		}
	}
	return p
}

func (p *pool) take() (uint32, bool) {
	if len(p.free) > p.rest || (p.next > p.last && len(p.free) > 0) {
		n := p.free[0]
		p.free = p.free[1:]
		return n, true
	}
	if p.next > p.last {
		return 0, false
	}
	p.next++
	return p.next - 1, true
}

func (p *pool) put(n uint32) { p.free = append(p.free, n) }

// An extent is a range of count slots from first.
type extent struct{ first, count uint32 }

func (e extent) end() uint32 { return e.first + e.count }

// extents are the free ranges of the slot array: sorted, with no two adjacent.
type extents struct {
	length uint32 // of the array
	free   []extent
}

func newExtents(length uint32) *extents { return &extents{length, []extent{{0, length}}} }

// take allocates count contiguous slots in the smallest free range that has them, to keep large ranges for
// those who need them. Of equal ranges it takes the lowest, so that used slots stay together and the table
// can be made smaller.
func (x *extents) take(count uint32) (extent, bool) {
	best := -1
	for i, e := range x.free {
		if e.count >= count && (best < 0 || e.count < x.free[best].count) {
			best = i
		}
		if e.count == count {
			break
		}
	}
	if best < 0 {
		return extent{}, false
	}
	taken := extent{x.free[best].first, count}
	x.cut(best, taken)
	return taken, true
}

// reserve allocates exactly this extent; it returns false if any slot is taken.
func (x *extents) reserve(want extent) bool {
	for i, e := range x.free {
		if e.first <= want.first && want.end() <= e.end() && want.end() >= want.first {
			x.cut(i, want)
			return true
		}
	}
	return false
}

// cut removes a part of the free extent with index at.
func (x *extents) cut(at int, part extent) {
	e := x.free[at]
	var left []extent
	if part.first > e.first {
		left = append(left, extent{e.first, part.first - e.first})
	}
	if part.end() < e.end() {
		left = append(left, extent{part.end(), e.end() - part.end()})
	}
	x.free = slices.Replace(x.free, at, at+1, left...)
}

// put frees an extent and merges it with its neighbours.
func (x *extents) put(e extent) {
	at, _ := slices.BinarySearchFunc(x.free, e.first, func(f extent, first uint32) int {
		if f.first < first {
			return -1
		}
		return 1
	})
	from, to := at, at
	if at > 0 && x.free[at-1].end() == e.first {
		from--
		e = extent{x.free[from].first, x.free[from].count + e.count}
	}
	if at < len(x.free) && e.end() == x.free[at].first {
		e.count += x.free[at].count
		to++
	}
	x.free = slices.Replace(x.free, from, to, e)
}

// used returns the number of slots taken.
func (x *extents) used() uint32 {
	length := x.length
	for _, e := range x.free {
		length -= e.count
	}
	return length
}
