// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net/netip"
	"reflect"
	"testing"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// With rp_filter=1 pods stay on the stack for several next hops to pods of IPv4 by the device, and with 1 or 2 for
// rules that name any input device. No other route counts, and nothing at a device without rp_filter.
func TestReversePaths(t *testing.T) {
	const eth0, eth1, eth2 = 1, 2, 3
	hop := func(to string, device int, multipath bool) route {
		return route{to: netip.MustParsePrefix(to), device: device, multipath: multipath}
	}
	several := func(to string) []filter {
		return []filter{{what: "rp_filter=1 and several next hops to " + to + " of eth0"}}
	}
	for _, c := range []struct {
		name   string
		routes []route
		inputs []string
		want   []filter
	}{
		{name: "several next hops", routes: []route{hop("10.10.2.0/24", eth0, true)}, want: several("10.10.2.0/24")},
		{name: "the default route", routes: []route{hop("0.0.0.0/0", eth0, true)}, want: several("0.0.0.0/0")},
		{name: "one next hop", routes: []route{hop("10.10.2.0/24", eth0, false)}},
		{name: "by a device with rp_filter=2", routes: []route{hop("10.10.2.0/24", eth1, true)}},
		{name: "to no pods", routes: []route{hop("192.0.2.0/24", eth0, true)}},
		{name: "IPv6", routes: []route{hop("fd00:10:2::/64", eth0, true)}},
		{name: "a rule", inputs: []string{"cal1"}, want: []filter{
			{what: "a routing rule for input by cal1, and rp_filter=1 of eth0"},
			{what: "a routing rule for input by cal1, and rp_filter=2 of eth1"},
		}},
	} {
		n := &network{
			devices:   []netdev.Device{{Index: eth0, Name: "eth0"}, {Index: eth1, Name: "eth1"}, {Index: eth2, Name: "eth2"}},
			routes:    c.routes,
			rpFilters: map[int]uint8{eth0: node.RPFilterStrict, eth1: 2}, ruleInputs: c.inputs,
		}
		n.prepare()
		s := surroundings{network: n, networks: []netip.Prefix{netip.MustParsePrefix("10.10.0.0/16"), netip.MustParsePrefix("fd00:10::/32")}, uplinks: n.devices}
		if got := s.reversePaths(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: filters %+v, want %+v", c.name, got, c.want)
		}
	}
}
