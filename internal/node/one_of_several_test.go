// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// Of several next hops, the longest network that has an address decides, also one that has a single next hop or none,
// and in each table the route with the lowest metric.
func TestNextHops(t *testing.T) {
	for _, c := range []struct {
		name   string
		routes string // "table network metric devices"
		want   string // of devices 1 and 2
	}{
		{"none", "254 0.0.0.0/0 0 1", "[] []"},
		{"several", "254 0.0.0.0/0 0 1,2", "[{0.0.0.0/0 true}] [{0.0.0.0/0 true}]"},
		{"one device twice", "254 0.0.0.0/0 0 1,1", "[] []"},
		{"a single one inside", "254 10.0.0.0/8 0 1,2;254 10.1.0.0/16 0 2", "[{10.0.0.0/8 true} {10.1.0.0/16 false}] [{10.0.0.0/8 true}]"},
		{"none inside", "254 10.0.0.0/8 0 1,2;254 10.1.0.0/16 0 0", "[{10.0.0.0/8 true} {10.1.0.0/16 false}] [{10.0.0.0/8 true} {10.1.0.0/16 false}]"},
		{"several again inside", "254 10.1.2.0/24 0 1,2;254 10.0.0.0/8 0 1,2;254 10.1.0.0/16 0 2",
			"[{10.0.0.0/8 true} {10.1.0.0/16 false} {10.1.2.0/24 true}] [{10.0.0.0/8 true}]"},
		{"beside one inside", "254 10.0.0.0/8 0 1,2;254 10.1.0.0/16 0 3;254 10.2.0.0/16 0 1",
			"[{10.0.0.0/8 true} {10.1.0.0/16 false}] [{10.0.0.0/8 true} {10.1.0.0/16 false} {10.2.0.0/16 false}]"},
		{"inside a single one", "254 10.0.0.0/8 0 1;254 10.1.0.0/16 0 1,2;254 10.1.1.0/24 0 2", "[{10.1.0.0/16 true} {10.1.1.0/24 false}] [{10.1.0.0/16 true}]"},
		{"the lowest metric", "254 10.0.0.0/8 200 1,2;254 10.0.0.0/8 100 1,3;254 10.0.0.0/8 200 2", "[{10.0.0.0/8 true}] []"},
		{"of each table", "254 10.0.0.0/8 200 1,3;100 10.0.0.0/8 100 2", "[{10.0.0.0/8 true}] [{10.0.0.0/8 true}]"},
	} {
		var all []Route
		for _, text := range strings.Split(c.routes, ";") {
			var r Route
			var network, devices string
			if _, err := fmt.Sscan(text, &r.Table, &network, &r.Metric, &devices); err != nil {
				t.Fatal(err)
			}
			r.To = netip.MustParsePrefix(network)
			for _, name := range strings.Split(devices, ",") {
				var d int
				if _, err := fmt.Sscan(name, &d); err != nil {
					t.Fatal(err)
				}
				r.Hops = append(r.Hops, NextHop{Device: d})
			}
			all = append(all, r)
		}
		hops := nextHops(all)
		if got := fmt.Sprint(hops[1], hops[2]); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
