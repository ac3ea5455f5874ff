// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"net/netip"
	"slices"
)

// routes are the routes that concern some backends.
type routes struct {
	destinations []netip.Addr // sorted, each once
	all          []Route
}

// add keeps a route if it leads to a destination, or would if there were no better one.
func (r *routes) add(route Route) {
	if i := r.first(route.To); i < len(r.destinations) && route.To.Contains(r.destinations[i]) {
		r.all = append(r.all, route)
	}
}

// first returns the place of the first backend that a network may contain.
func (r *routes) first(to netip.Prefix) int {
	i, _ := slices.BinarySearchFunc(r.destinations, to.Masked().Addr(), netip.Addr.Compare)
	return i
}

// leads calls visit with each route that is the best one in its table to some backend: which table applies
// to a packet may depend on more than its destination. Routes to one network that differ in their metric
// are all visited: the second may be needed later.
func (r *routes) leads(visit func(*Route)) {
	slices.SortStableFunc(r.all, func(a, b Route) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.To.Bits(), a.To.Bits()))
	})
	var taken []int // by place in destinations: 1 + length of the best network in this table
	for n := range r.all {
		route := &r.all[n]
		if n == 0 || r.all[n-1].Table != route.Table {
			taken = make([]int, len(r.destinations))
		}
		best, length := false, route.To.Bits()+1
		for i := r.first(route.To); i < len(r.destinations) && route.To.Contains(r.destinations[i]); i++ {
			if taken[i] == 0 || taken[i] == length {
				taken[i], best = length, true
			}
		}
		if best {
			visit(route)
		}
	}
}
