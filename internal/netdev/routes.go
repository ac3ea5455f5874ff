// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"cmp"
	"net/netip"
	"slices"
)

// A route is a route to some addresses. One without devices refuses them.
type route struct {
	table   int
	to      netip.Prefix
	devices []int      // indices
	source  netip.Addr // of the node's own packets; not valid: the route does not say
	mtu     int        // 0: that of the device
}

// routes are those that matter for some destinations.
type routes struct {
	destinations []netip.Addr // sorted, each once
	all          []route
}

// add keeps a route if it leads to a destination, or would if there were no better one.
func (r *routes) add(route route) {
	if i := r.first(route.to); i < len(r.destinations) && route.to.Contains(r.destinations[i]) {
		r.all = append(r.all, route)
	}
}

// first is the place of the first destination that a network may have.
func (r *routes) first(to netip.Prefix) int {
	i, _ := slices.BinarySearchFunc(r.destinations, to.Masked().Addr(), netip.Addr.Compare)
	return i
}

// leads calls visit with each way that is the best one to some destination: in its table,
// for which table a packet's way is looked up in may depend on more than its
// destination. Ways to one network that differ in their metric are all among them: the
// second may have to do tomorrow.
func (r *routes) leads(visit func(route)) {
	slices.SortStableFunc(r.all, func(a, b route) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(b.to.Bits(), a.to.Bits()))
	})
	var taken []int // by place in destinations: 1 + length of the best network in this table
	for n, route := range r.all {
		if n == 0 || r.all[n-1].table != route.table {
			taken = make([]int, len(r.destinations))
		}
		best, length := false, route.to.Bits()+1
		for i := r.first(route.to); i < len(r.destinations) && route.to.Contains(r.destinations[i]); i++ {
			if taken[i] == 0 || taken[i] == length {
				taken[i], best = length, true
			}
		}
		if best {
			visit(route)
		}
	}
}
