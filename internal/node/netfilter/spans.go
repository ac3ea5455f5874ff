// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"

	"beeline.io/beeline/internal/node/netdev"
)

// An ordered is an address or a port. What Next returns after the last one is equal to none.
type ordered[T any] interface {
	comparable
	Compare(T) int
	Next() T
	Prev() T
}

// An interval is the addresses or ports from the first to the last.
type interval[T ordered[T]] struct{ first, last T }

// intervals are disjoint and in order. Addresses are of one family.
type intervals[T ordered[T]] []interval[T]

type (
	span  = interval[netip.Addr]
	spans = intervals[netip.Addr]
	ports = intervals[port]
)

// A port is a port of TCP or UDP.
type port int32

const lastPort port = 1<<16 - 1

// Compare implements ordered.
func (p port) Compare(other port) int { return cmp.Compare(p, other) }

// Next implements ordered.
func (p port) Next() port { return p + 1 }

// Prev implements ordered.
func (p port) Prev() port { return p - 1 }

// allPorts is shared by all classes.
var allPorts = ports{{0, lastPort}}

func spanOf(p netip.Prefix) span {
	return span{p.Masked().Addr(), netdev.LastAddress(p)}
}

// everything is all addresses of a family.
func everything(v6 bool) spans {
	if v6 {
		return spans{spanOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0))}
	}
	return spans{spanOf(netip.PrefixFrom(netip.IPv4Unspecified(), 0))}
}

// merged returns intervals, which may overlap, as disjoint ones in order.
func merged[T ordered[T]](all []interval[T]) intervals[T] {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b interval[T]) int { return cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last)) })
	var out intervals[T]
	for _, s := range all {
		if n := len(out); n > 0 && (s.first.Compare(out[n-1].last) <= 0 || s.first == out[n-1].last.Next()) {
			if out[n-1].last.Compare(s.last) < 0 {
				out[n-1].last = s.last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// or returns what is in either.
func (s intervals[T]) or(other intervals[T]) intervals[T] {
	if len(s) == len(other) && (len(s) == 0 || &s[0] == &other[0] || slices.Equal(s, other)) {
		return s
	}
	return merged(slices.Concat(s, other))
}

// mostIntervals bounds the work with sets that many rules divide, such as one for each pod of a cluster.
const mostIntervals = 1 << 10

// split returns what is also in other, and what is not, or more than that if s has many intervals. If one of them is
// all of s, that is the same slice.
func (s intervals[T]) split(other intervals[T]) (in, out intervals[T]) {
	if in = s.and(other); len(in) == 0 {
		return nil, s
	}
	if len(s) > mostIntervals {
		return in, s
	}
	if out = s.without(in); len(out) == 0 {
		return s, nil
	}
	return in, out
}

// from returns the index of the first interval that does not end before a value.
func (s intervals[T]) from(a T) int {
	return sort.Search(len(s), func(i int) bool { return a.Compare(s[i].last) <= 0 })
}

// and returns what is in both.
func (s intervals[T]) and(other intervals[T]) (both intervals[T]) {
	if len(s) == 0 || len(other) == 0 {
		return nil
	}
	for i, j := s.from(other[0].first), other.from(s[0].first); i < len(s) && j < len(other); {
		first, last := s[i].first, s[i].last
		if first.Compare(other[j].first) < 0 {
			first = other[j].first
		}
		if other[j].last.Compare(last) < 0 {
			last = other[j].last
		}
		if first.Compare(last) <= 0 {
			both = append(both, interval[T]{first, last})
		}
		if s[i].last.Compare(other[j].last) < 0 {
			i++
		} else {
			j++
		}
	}
	return both
}

// meets reports whether something is in both.
func (s intervals[T]) meets(other intervals[T]) bool {
	if len(other) == 0 {
		return false
	}
	for i, j := s.from(other[0].first), 0; i < len(s) && j < len(other); {
		switch {
		case s[i].last.Compare(other[j].first) < 0:
			i++
		case other[j].last.Compare(s[i].first) < 0:
			j++
		default:
			return true
		}
	}
	return false
}

// without returns what is in s and not in other.
func (s intervals[T]) without(other intervals[T]) (left intervals[T]) {
	left = make(intervals[T], 0, len(s)+len(other))
	j := 0
	for _, one := range s {
		for j < len(other) && other[j].last.Compare(one.first) < 0 {
			j++
		}
		rest := true // of `one`
		for k := j; rest && k < len(other) && other[k].first.Compare(one.last) <= 0; k++ {
			if one.first.Compare(other[k].first) < 0 {
				left = append(left, interval[T]{one.first, other[k].first.Prev()})
			}
			rest = other[k].last.Compare(one.last) < 0
			one.first = other[k].last.Next()
		}
		if rest {
			left = append(left, one)
		}
	}
	return left
}

func (s intervals[T]) has(a T) bool {
	i := s.from(a)
	return i < len(s) && s[i].first.Compare(a) <= 0
}
