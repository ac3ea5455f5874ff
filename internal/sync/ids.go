// SPDX-License-Identifier: Apache-2.0

package sync

import "slices"

// A pool hands out the numbers first to last. A number that came back is used
// again only when 128 others have come back after it: what still names it by
// mistake, a log line or a trace, is then old.
type pool struct {
	next, last uint32
	free       []uint32 // oldest first
}

const rest = 128

// restore makes a pool of which some numbers are taken.
func newPool(first, last uint32, taken func(uint32) bool, highest uint32) pool {
	p := pool{next: max(first, highest+1), last: last}
	for n := first; n < p.next; n++ {
		if !taken(n) {
			p.free = append(p.free, n)
		}
	}
	return p
}

func (p *pool) take() (uint32, bool) {
	if len(p.free) > rest || (p.next > p.last && len(p.free) > 0) {
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

// An extent is count slots from first.
type extent struct{ first, count uint32 }

func (e extent) end() uint32 { return e.first + e.count }

// extents are the free parts of the slot array: sorted, apart from each other.
type extents struct {
	free []extent
	next uint32 // where the next search begins, so that freed slots rest
}

func newExtents(length uint32) extents { return extents{free: []extent{{0, length}}} }

// take finds count slots in a row.
func (x *extents) take(count uint32) (extent, bool) {
	begin, _ := slices.BinarySearchFunc(x.free, x.next, func(e extent, next uint32) int {
		if e.first < next {
			return -1
		}
		return 1
	})
	for i := range x.free {
		at := (begin + i) % len(x.free)
		if e := x.free[at]; e.count >= count {
			x.cut(at, extent{e.first, count})
			x.next = e.first + count
			return extent{e.first, count}, true
		}
	}
	return extent{}, false
}

// reserve takes just this extent; false if any of it is taken.
func (x *extents) reserve(want extent) bool {
	for i, e := range x.free {
		if e.first <= want.first && want.end() <= e.end() && want.end() >= want.first {
			x.cut(i, want)
			return true
		}
	}
	return false
}

// cut takes a part out of the free extent at index at.
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

// put gives an extent back and joins it with its neighbours.
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

// used is the number of slots taken of an array of this length.
func (x *extents) used(length uint32) uint32 {
	for _, e := range x.free {
		length -= e.count
	}
	return length
}
