// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"cmp"
	"net/netip"
	"slices"
)

// A span is the addresses from the first to the last, of one family.
type span struct{ first, last netip.Addr }

// spans are disjoint and in order.
type spans []span

func spanOf(p netip.Prefix) span {
	last := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return span{p.Masked().Addr(), end}
}

// everything is all addresses of a family.
func everything(v6 bool) spans {
	if v6 {
		return spans{spanOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0))}
	}
	return spans{spanOf(netip.PrefixFrom(netip.IPv4Unspecified(), 0))}
}

// merged returns spans of one family, which may overlap, as disjoint ones in order.
func merged(all []span) spans {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b span) int { return cmp.Or(a.first.Compare(b.first), a.last.Compare(b.last)) })
	var out spans
	for _, s := range all {
		if n := len(out); n > 0 && (s.first.Compare(out[n-1].last) <= 0 || s.first == out[n-1].last.Next()) {
			if out[n-1].last.Less(s.last) {
				out[n-1].last = s.last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// or returns the addresses in either.
func (s spans) or(other spans) spans {
	if len(s) == len(other) && (len(s) == 0 || &s[0] == &other[0] || slices.Equal(s, other)) {
		return s
	}
	return merged(slices.Concat(s, other))
}

// and returns the addresses in both.
func (s spans) and(other spans) (both spans) {
	for i, j := 0, 0; i < len(s) && j < len(other); {
		first, last := s[i].first, s[i].last
		if first.Less(other[j].first) {
			first = other[j].first
		}
		if other[j].last.Less(last) {
			last = other[j].last
		}
		if first.Compare(last) <= 0 {
			both = append(both, span{first, last})
		}
		if s[i].last.Less(other[j].last) {
			i++
		} else {
			j++
		}
	}
	return both
}

// without returns the addresses of s that are not in other.
func (s spans) without(other spans) (left spans) {
	for _, one := range s {
		for _, o := range other {
			if !one.first.IsValid() || o.last.Less(one.first) || one.last.Less(o.first) {
				continue
			}
			if one.first.Less(o.first) {
				left = append(left, span{one.first, o.first.Prev()})
			}
			one.first = o.last.Next() // invalid after the last address of the family
			if one.last.Compare(o.last) <= 0 {
				one.first = netip.Addr{}
			}
		}
		if one.first.IsValid() {
			left = append(left, one)
		}
	}
	return left
}

func (s spans) has(a netip.Addr) bool {
	return slices.ContainsFunc(s, func(one span) bool { return one.first.Compare(a) <= 0 && a.Compare(one.last) <= 0 })
}
