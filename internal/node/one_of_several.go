// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"net/netip"
	"slices"
)

// OneOfSeveral says whether a device is one of the next hops to a network.
type OneOfSeveral struct {
	To netip.Prefix
	Is bool
}

// nextHops returns, for each device that is one of several next hops of a route, the networks by which it can be told
// whether it is one of those to any address: the longest network that has the address decides. Which table applies
// to a packet may depend on more than its destination, so a network has the next hops of all tables.
func nextHops(all []Route) map[int][]OneOfSeveral {
	slices.SortFunc(all, func(a, b Route) int { // a network before those inside
		return cmp.Or(a.To.Addr().Compare(b.To.Addr()), cmp.Compare(a.To.Bits(), b.To.Bits()), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Metric, b.Metric))
	})
	several := map[int][]OneOfSeveral{}
	around := map[int][]OneOfSeveral{} // those of several that are around the present network
	var known []int                    // devices
	for len(all) > 0 {
		to := all[0].To
		n := slices.IndexFunc(all, func(r Route) bool { return r.To != to })
		if n < 0 {
			n = len(all)
		}
		devices := devicesOf(all[:n])
		all = all[n:]
		if len(devices) > 1 {
			known = append(known, devices...)
			slices.Sort(known)
			known = slices.Compact(known)
		}
		for _, d := range known {
			stack := around[d]
			for len(stack) > 0 && !stack[len(stack)-1].To.Contains(to.Addr()) {
				stack = stack[:len(stack)-1]
			}
			is := slices.Contains(devices, d)
			if len(stack) == 0 && len(devices) > 1 && is || len(stack) > 0 && stack[len(stack)-1].Is != is {
				hop := OneOfSeveral{to, is}
				several[d], stack = append(several[d], hop), append(stack, hop)
			}
			around[d] = stack
		}
	}
	return several
}

// devicesOf returns the next hops of routes to one network, in the order of tables and metrics: in each table the
// lowest metric decides.
func devicesOf(routes []Route) (devices []int) {
	for i, lowest := 0, 0; i < len(routes); i++ {
		if routes[i].Table != routes[lowest].Table {
			lowest = i
		}
		if routes[i].Metric == routes[lowest].Metric {
			for _, hop := range routes[i].Hops {
				devices = append(devices, hop.Device)
			}
		}
	}
	slices.Sort(devices)
	return slices.DeleteFunc(slices.Compact(devices), func(d int) bool { return d == 0 })
}
