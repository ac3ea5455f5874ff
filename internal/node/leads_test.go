// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// routes parses routes of the form "table network device"; device 0 rejects packets.
func ways(t *testing.T, destinations []netip.Addr, texts ...string) *routes {
	t.Helper()
	r := &routes{destinations: destinations}
	for _, text := range texts {
		var table, device int
		var network string
		if _, err := fmt.Sscan(text, &table, &network, &device); err != nil {
			t.Fatal(err)
		}
		route := Route{Table: uint32(table), To: netip.MustParsePrefix(network)}
		if device > 0 {
			route.Hops = []NextHop{{Device: device}}
		}
		r.add(route)
	}
	return r
}

// A device leads to backends if a route over it is the best one in its table to one of them.
func TestRoutesToDestinations(t *testing.T) {
	destinations := []netip.Addr{
		netip.MustParseAddr("10.10.2.11"), netip.MustParseAddr("10.10.2.12"), netip.MustParseAddr("10.10.3.11"), netip.MustParseAddr("fd00:10:2::11"),
	}
	for _, c := range []struct {
		name   string
		routes []string
		want   []int
	}{
		{"none", nil, nil},
		{"a default route", []string{"254 0.0.0.0/0 2"}, []int{2}},
		{"the longest network wins", []string{"254 0.0.0.0/0 2", "254 10.10.0.0/16 5"}, []int{5}},
		{"in whatever order", []string{"254 10.10.0.0/16 5", "254 0.0.0.0/0 2"}, []int{5}},
		{"unless it does not contain all", []string{"254 0.0.0.0/0 2", "254 10.10.2.0/24 5"}, []int{2, 5}},
		{"a single address", []string{"254 10.10.0.0/16 5", "254 10.10.2.11/32 7"}, []int{5, 7}},
		{"networks without destinations", []string{"254 0.0.0.0/0 2", "254 10.10.1.0/24 5", "254 10.10.2.13/32 6"}, []int{2}},
		{"refused", []string{"254 0.0.0.0/0 2", "254 10.10.0.0/16 0"}, nil},
		{"two routes of one length", []string{"254 10.10.0.0/16 5", "254 10.10.0.0/16 6"}, []int{5, 6}},
		{"another table", []string{"254 10.10.0.0/16 5", "100 0.0.0.0/0 2"}, []int{2, 5}},
		{"IPv6", []string{"254 ::/0 2", "254 fd00:10:2::/64 5", "254 10.96.0.0/12 9"}, []int{5}},
		{"families are independent", []string{"254 ::/0 2", "254 0.0.0.0/0 3"}, []int{2, 3}},
	} {
		var got []int
		ways(t, destinations, c.routes...).leads(func(r *Route) {
			for _, hop := range r.Hops {
				got = append(got, hop.Device)
			}
		})
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v leads to destinations by %v, want %v", c.name, c.routes, got, c.want)
		}
	}
}
