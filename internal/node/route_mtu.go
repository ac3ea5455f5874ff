// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"net/netip"
	"slices"
)

// RouteMTUs are the MTUs that routes have below those of their devices. The kernel applies them to what it forwards.
type RouteMTUs struct {
	// Of has them by next hop and network; 0 for a network inside of such a route's to which another route by the
	// same next hop has none. The longest network of a next hop that has an address applies to it. If routes of
	// several tables by one next hop contain an address, it is the smallest of what each table has.
	Of map[RoutedTo]uint32
	// Least4 and Least6 are the smallest of them; 0: there are none.
	Least4, Least6 uint32
}

// RoutedTo is a network, and the next hop of a route to it. Next hops of routes with different metrics are different.
type RoutedTo struct {
	Device  int
	Metric  uint32
	Gateway netip.Addr
	To      netip.Prefix
}

// DestinationMTUs are the smallest MTUs that routes to addresses have, in any table.
type DestinationMTUs map[netip.Prefix]uint32

// NewDestinationMTUs finds the MTUs of routes.
func NewDestinationMTUs(routes []Route) DestinationMTUs {
	if !slices.ContainsFunc(routes, func(r Route) bool { return r.MTU != 0 }) {
		return nil
	}
	var all []tableMTU
	for i := range routes {
		if !routes[i].rejects() {
			all = append(all, tableMTU{tableOf(&routes[i]), routes[i].To, routes[i].MTU})
		}
	}
	return longestMatches(all)
}

// To returns the MTU of a route to an address; 0: none has one.
func (m DestinationMTUs) To(a netip.Addr) uint32 {
	for bits := a.BitLen(); bits >= 0 && len(m) > 0; bits-- {
		if mtu, ok := m[netip.PrefixFrom(a, bits).Masked()]; ok {
			return mtu
		}
	}
	return 0
}

// NewRouteMTUs finds the MTUs of routes. deviceMTUs are those of devices by index.
func NewRouteMTUs(routes []Route, deviceMTUs map[int]int) RouteMTUs {
	m := RouteMTUs{Of: map[RoutedTo]uint32{}}
	narrow := func(r *Route, h NextHop) bool { return r.MTU != 0 && int(r.MTU) < deviceMTUs[h.Device] && h.Encap == 0 }
	narrowed := map[RoutedTo]bool{} // next hops, without networks
	for i := range routes {
		for _, h := range routes[i].Hops {
			if narrow(&routes[i], h) {
				narrowed[hopOf(&routes[i], h)] = true
				m.note(routes[i].To.Addr().Is4(), routes[i].MTU)
			}
		}
	}
	by := map[RoutedTo][]tableMTU{}
	for i := range routes {
		for _, h := range routes[i].Hops {
			if hop := hopOf(&routes[i], h); narrowed[hop] {
				one := tableMTU{table: tableOf(&routes[i]), to: routes[i].To}
				if narrow(&routes[i], h) {
					one.mtu = routes[i].MTU
				}
				by[hop] = append(by[hop], one)
			}
		}
	}
	for hop, all := range by {
		for to, mtu := range longestMatches(all) {
			hop.To = to
			m.Of[hop] = mtu
		}
	}
	return m
}

// hopOf returns the next hop of a route. That of a network at a device is one for each family.
func hopOf(r *Route, h NextHop) RoutedTo {
	hop := RoutedTo{Device: h.Device, Metric: r.Metric, Gateway: h.Gateway}
	if !hop.Gateway.IsValid() {
		hop.Gateway = netip.IPv6Unspecified()
		if r.To.Addr().Is4() {
			hop.Gateway = netip.IPv4Unspecified()
		}
	}
	return hop
}

func (m *RouteMTUs) note(is4 bool, mtu uint32) {
	least := &m.Least6
	if is4 {
		least = &m.Least4
	}
	if *least == 0 || mtu < *least {
		*least = mtu
	}
}

// tableOf identifies the table of a route. Routes for packets of some sources are like those of another table.
func tableOf(r *Route) uint64 {
	if r.From {
		return uint64(r.Table) | 1<<32
	}
	return uint64(r.Table)
}

// A tableMTU is the MTU of a route of a table by some next hop; 0: it has none.
type tableMTU struct {
	table uint64
	to    netip.Prefix
	mtu   uint32
}

// longestMatches returns MTUs by network so that the longest network that contains an address has the MTU for it: the
// smallest one of the longest networks of each table. Networks that would change nothing are left out.
func longestMatches(all []tableMTU) map[netip.Prefix]uint32 {
	slices.SortFunc(all, func(a, b tableMTU) int { // networks before those inside
		return cmp.Or(a.to.Addr().Compare(b.to.Addr()), cmp.Compare(a.to.Bits(), b.to.Bits()))
	})
	found := map[netip.Prefix]uint32{}
	tables := map[uint64][]tableMTU{} // the networks that contain the current one, the longest last
	var outer []tableMTU              // the same of found
	for i := 0; i < len(all); {
		to := all[i].to
		for ; i < len(all) && all[i].to == to; i++ {
			tables[all[i].table] = enter(tables[all[i].table], all[i])
		}
		mtu := uint32(0)
		for table, inside := range tables {
			inside = leave(inside, to)
			tables[table] = inside
			if n := len(inside); n > 0 {
				mtu = smaller(mtu, inside[n-1].mtu)
			}
		}
		outer = leave(outer, to)
		before := uint32(0)
		if n := len(outer); n > 0 {
			before = outer[n-1].mtu
		}
		if mtu != before {
			found[to] = mtu
			outer = append(outer, tableMTU{to: to, mtu: mtu})
		}
	}
	return found
}

// enter adds a network to those that contain it.
func enter(inside []tableMTU, one tableMTU) []tableMTU {
	inside = leave(inside, one.to)
	if n := len(inside); n > 0 && inside[n-1].to == one.to {
		inside[n-1].mtu = smaller(inside[n-1].mtu, one.mtu)
		return inside
	}
	return append(inside, one)
}

// leave removes the networks that do not contain another one.
func leave(inside []tableMTU, to netip.Prefix) []tableMTU {
	for n := len(inside); n > 0 && !(inside[n-1].to.Bits() <= to.Bits() && inside[n-1].to.Contains(to.Addr())); n-- {
		inside = inside[:n-1]
	}
	return inside
}

// smaller returns the smaller one of two MTUs, of which 0 is none.
func smaller(a, b uint32) uint32 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
