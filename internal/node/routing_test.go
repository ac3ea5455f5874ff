// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/util/wakeup"
)

// The longest network that contains an address has the smallest MTU of the longest networks of each table, and no
// network is there that changes nothing.
func TestLongestMatches(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	address := func() netip.Addr {
		return netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(4)), byte(random.IntN(8) << 5)})
	}
	for range 2000 {
		var all []tableMTU
		for range random.IntN(12) {
			to := netip.PrefixFrom(address(), []int{0, 8, 16, 22, 23, 24, 25, 26, 27}[random.IntN(9)]).Masked()
			all = append(all, tableMTU{uint64(random.IntN(3)), to, []uint32{0, 0, 1300, 1400}[random.IntN(4)]})
		}
		found := longestMatches(slices.Clone(all))
		for range 20 {
			a := address()
			if got, want := DestinationMTUs(found).To(a), smallestOf(all, a); got != want {
				t.Fatalf("of %v: %v, and %s has %d, want %d", all, found, a, got, want)
			}
		}
		for to, mtu := range found {
			others := maps.Clone(found)
			delete(others, to)
			if DestinationMTUs(others).To(to.Addr()) == mtu && !slices.ContainsFunc(slices.Collect(maps.Keys(others)), func(p netip.Prefix) bool {
				return p.Bits() > to.Bits() && p.Contains(to.Addr())
			}) {
				t.Fatalf("of %v: %v, where %s changes nothing", all, found, to)
			}
		}
	}
}

// smallestOf is longestMatches for one address, by its definition.
func smallestOf(all []tableMTU, a netip.Addr) (mtu uint32) {
	for table := range uint64(3) {
		longest, of := -1, uint32(0)
		for _, one := range all {
			switch {
			case one.table != table || !one.to.Contains(a) || one.to.Bits() < longest:
			case one.to.Bits() == longest:
				of = smaller(of, one.mtu)
			default:
				longest, of = one.to.Bits(), one.mtu
			}
		}
		mtu = smaller(mtu, of)
	}
	return mtu
}

func newRoute(table uint32, to string, mtu uint32, hops ...NextHop) Route {
	return Route{Table: table, To: netip.MustParsePrefix(to), MTU: mtu, Hops: hops}
}

// MTUs are kept by next hop, if they are below the device's. A route by the same next hop that has none ends them.
func TestRouteMTUs(t *testing.T) {
	gateway, other := netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("192.0.2.253")
	m := NewRouteMTUs([]Route{
		newRoute(254, "0.0.0.0/0", 1400, NextHop{Device: 1, Gateway: gateway}),
		newRoute(254, "10.1.0.0/16", 0, NextHop{Device: 1, Gateway: gateway}),
		newRoute(254, "10.2.0.0/16", 0, NextHop{Device: 1, Gateway: other}),
		newRoute(254, "10.3.0.0/16", 1500, NextHop{Device: 1, Gateway: other}),
		newRoute(254, "10.4.0.0/16", 1300, NextHop{Device: 1, Gateway: gateway}, NextHop{Device: 2}),
		newRoute(254, "10.5.0.0/16", 1200, NextHop{Device: 1, Gateway: gateway, Encap: EncapIP4}),
		newRoute(254, "2001:db8::/32", 1350, NextHop{Device: 1}),
	}, map[int]int{1: 1500, 2: 1250})
	at := func(device int, gateway, to string) RoutedTo {
		return RoutedTo{Device: device, Gateway: netip.MustParseAddr(gateway), To: netip.MustParsePrefix(to)}
	}
	want := RouteMTUs{Least4: 1300, Least6: 1350, Of: map[RoutedTo]uint32{
		at(1, "192.0.2.254", "0.0.0.0/0"): 1400, at(1, "192.0.2.254", "10.1.0.0/16"): 0, at(1, "192.0.2.254", "10.4.0.0/16"): 1300,
		at(1, "192.0.2.254", "10.5.0.0/16"): 0, at(1, "::", "2001:db8::/32"): 1350,
	}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("%+v, want %+v", m, want)
	}
}

// Of routes with something that the kernel adds to packets those with an outer header in table main have a device, if
// it is one alone, no other table has such a route, and the route is by the destination alone.
func TestEncapRoutes(t *testing.T) {
	hop := func(device int, encap Encap) NextHop { return NextHop{Device: device, Encap: encap} }
	routes := []Route{
		newRoute(254, "10.1.0.0/16", 1400, hop(1, EncapIP4), hop(1, EncapIP4)), newRoute(254, "10.2.0.0/16", 0, hop(1, EncapIP4), hop(2, EncapIP4)),
		newRoute(254, "10.3.0.0/16", 0, hop(1, 1)), newRoute(254, "10.4.0.0/16", 0, hop(1, EncapIP4)), newRoute(77, "10.4.7.0/24", 0, hop(1, EncapIP4)),
		newRoute(254, "fd00::/64", 0, hop(1, EncapSeg6Local)), newRoute(254, "fd01::/64", 0, hop(3, EncapIP6)),
		newRoute(254, "10.6.0.0/16", 0, hop(1, EncapIP4)), newRoute(254, "10.6.0.0/16", 0, hop(1, EncapIP4)),
	}
	for i, more := range []Route{{TOS: 0x10}, {From: true}} {
		more.Table, more.To, more.Hops = 254, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(7 + i)}), 16), []NextHop{hop(1, EncapIP4)}
		routes = append(routes, more)
	}
	r := NewRouting(routes, nil, nil)
	want := map[string]EncapRoute{
		"10.1.0.0/16": {Device: 1, MTU: 1400}, "10.2.0.0/16": {}, "10.3.0.0/16": {}, "10.4.0.0/16": {}, "fd01::/64": {Device: 3}, "10.6.0.0/16": {},
		"10.7.0.0/16": {}, "10.8.0.0/16": {},
	}
	got := map[string]EncapRoute{}
	for to, route := range r.Encaps {
		got[to.String()] = route
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var texts []string
	for i := range r.Unusable {
		texts = append(texts, r.Unusable[i].String())
	}
	if got, want := fmt.Sprint(texts), "[10.2.0.0/16 encap ip, encap ip 10.3.0.0/16 encap mpls 10.4.7.0/24 encap ip table 77 10.6.0.0/16 encap ip 10.7.0.0/16 encap ip 10.8.0.0/16 encap ip]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// All that routes and rules of the kernel have is read, of both families and all tables.
func TestReadRouting(t *testing.T) {
	inNamespace(t, func() error {
		for _, c := range []string{
			"link set lo up", "link add d0 type veth peer name d1", "link set d1 up", "link set d0 mtu 1500 up", "addr add 192.0.2.1/24 dev d0", "addr add 2001:db8::1/64 dev d0 nodad",
			"route add 10.1.0.0/16 via 192.0.2.9 mtu 1400", "route add 10.2.0.0/16 via inet6 2001:db8::9 dev d0 mtu lock 1350 table 77 metric 5",
			"route add 10.3.0.0/16 mtu 1300 nexthop via 192.0.2.9 nexthop via 192.0.2.8", "route add unreachable 10.4.0.0/16",
			"-6 route add 2001:db8:1::/48 via 2001:db8::9 mtu 1320", "nexthop add id 7 via 192.0.2.7 dev d0", "route add 10.5.0.0/16 nhid 7 mtu 1310",
		} {
			if err := ip(c); err != nil {
				return err
			}
		}
		r, err := new(Network).Routing()
		if err != nil {
			return err
		}
		device, err := net.InterfaceByName("d0")
		if err != nil {
			return err
		}
		at := func(metric uint32, gateway, to string) RoutedTo {
			return RoutedTo{device.Index, metric, netip.MustParseAddr(gateway), netip.MustParsePrefix(to)}
		}
		want := map[RoutedTo]uint32{
			at(0, "192.0.2.9", "10.1.0.0/16"): 1400, at(5, "2001:db8::9", "10.2.0.0/16"): 1350, at(0, "192.0.2.9", "10.3.0.0/16"): 1300,
			at(0, "192.0.2.8", "10.3.0.0/16"): 1300, at(1024, "2001:db8::9", "2001:db8:1::/48"): 1320, at(0, "192.0.2.7", "10.5.0.0/16"): 1310,
		}
		if !maps.Equal(r.MTUs.Of, want) || r.MTUs.Least4 != 1300 || r.MTUs.Least6 != 1320 {
			t.Errorf("%+v, want %v", r.MTUs, want)
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/nexthop_compat_mode", []byte("0"), 0o644); err != nil {
			return err
		}
		if r, err = new(Network).Routing(); err != nil || !maps.Equal(r.MTUs.Of, want) {
			t.Errorf("without the compatibility mode of next hops: %v, %v; want %v", err, r.MTUs.Of, want)
		}
		return readRules(t)
	})
}

func readRules(t *testing.T) error {
	for _, c := range []struct {
		text string
		want string
	}{
		{"from 10.0.0.0/8", "source"}, {"to 10.0.0.0/8", ""}, {"ipproto udp", "ports"}, {"dport 80", "ports"}, {"sport 1-9", "ports"}, {"tos 0x10", "TOS"},
		{"fwmark 0x10/0xf0", "mark"}, {"not fwmark 0x10", ""}, {"fwmark 0/0x10", ""}, {"tun_id 7", "mark"}, {"iif d0", ""}, {"uidrange 0-5", ""},
	} {
		for _, family := range []string{"-4", "-6"} {
			if family == "-6" && strings.Contains(c.text, "10.0") {
				c.text = strings.ReplaceAll(c.text, "10.0.0.0/8", "2001:db8::/32")
			}
			if err := ip(family + " rule add pref 9 " + c.text + " table 77"); err != nil {
				return err
			}
			r, err := new(Network).Routing()
			if err != nil {
				return err
			}
			got := ""
			for name, is := range map[string]bool{"source": r.BySource, "ports": r.ByPorts, "TOS": r.ByTOS, "mark": len(r.ByMark) > 0} {
				if is {
					got += name
				}
			}
			if got != c.want {
				t.Errorf("%s rule %s: %q, want %q", family, c.text, got, c.want)
			}
			if err := ip(family + " rule del pref 9"); err != nil {
				return err
			}
		}
	}
	if err := ip("route add 10.9.0.0/16 tos 0x10 dev d0"); err != nil {
		return err
	}
	if err := ip("-6 route add 2001:db8:9::/48 from 2001:db8:8::/48 dev d0"); err != nil {
		return err
	}
	r, err := new(Network).Routing()
	if !r.ByTOS || !r.BySource {
		t.Errorf("by TOS %t, by the source %t: a route is not noticed", r.ByTOS, r.BySource)
	}
	return err
}

// The watcher notices what a look-up does not tell: MTUs, routes and rules by more than the destination, and next hops
// that routes have by their number.
func TestWatchRouting(t *testing.T) {
	inNamespace(t, func() error {
		for _, do := range []string{"link set lo up", "link add d0 type veth peer name d1", "link set d0 addrgenmode none", "link set d1 addrgenmode none", "link set d1 up", "link set d0 up", "addr add 192.0.2.1/24 dev d0"} {
			if err := ip(do); err != nil {
				return err
			}
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/nexthop_compat_mode", []byte("0"), 0o644); err != nil {
			return err
		}
		return wantNoticed(t, func(n *Network, changed wakeup.Signal) { n.NotifyRouting(changed, func() bool { return false }) },
			"route add 10.1.0.0/16 dev d0 mtu 1300", "route del 10.1.0.0/16", "route add 10.2.0.0/16 tos 0x10 dev d0", "-6 route add 2001:db8:9::/48 from 2001:db8:8::/48 dev d0",
			"rule add pref 9 from 192.0.2.1 table 77", "-6 rule add pref 9 from 2001:db8::1 table 77", "nexthop add id 7 via 192.0.2.7 dev d0", "route add 10.3.0.0/16 nhid 7", "link set d0 mtu 1400")
	})
}
