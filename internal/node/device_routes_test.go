// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
)

// Routes are of the devices to which they lead, also by a nexthop object that the route alone names, and those that
// reject packets of none.
func TestDeviceRoutes(t *testing.T) {
	inNamespace(t, func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/nexthop_compat_mode", []byte("0"), 0o644); err != nil {
			return err
		}
		for _, c := range []string{
			"link set lo up", "link add d0 type veth peer name d1", "link add d2 type veth peer name d3", "link set d0 up", "link set d1 up", "link set d2 up", "link set d3 up",
			"addr add 192.0.2.1/24 dev d0", "route add default via 192.0.2.9 mtu 1400 src 192.0.2.1", "route add unreachable 10.10.2.0/24",
			"nexthop add id 7 dev d2", "route add 10.10.1.0/24 nhid 7",
		} {
			if err := ip(c); err != nil {
				return err
			}
		}
		all, err := new(Network).DeviceRoutes([]netip.Addr{netip.MustParseAddr("10.10.1.1"), netip.MustParseAddr("10.10.2.1"), netip.MustParseAddr("198.51.100.1")})
		if err != nil {
			return err
		}
		want := map[string]string{
			"d0": "true true [192.0.2.0/24] [192.0.2.1] [{0.0.0.0/0 1400}] [192.0.2.1]",
			"d1": "false false [] [] [] []",
			"d2": "false true [10.10.1.0/24] [] [{10.10.1.0/24 0}] []",
		}
		for _, d := range all {
			if got := fmt.Sprint(d.DefaultRoute4, d.Routed, d.Direct, d.Addresses, d.Leads, d.Sources); want[d.Name] != "" && got != want[d.Name] {
				t.Errorf("%s: %s, want %s", d.Name, got, want[d.Name])
			}
		}
		return nil
	})
}
