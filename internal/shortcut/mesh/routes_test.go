// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"beeline.io/beeline/internal/node/netns"
)

func TestNamesOfDevices(t *testing.T) {
	for _, c := range []struct {
		names, device string
		want          bool
	}{
		{"net1", "net1", true}, {"net1", "net10", false}, {"net+", "net10", true}, {"net+", "net", true}, {"net+", "eth0", false},
		{"+", "eth0", true}, {"net1,vnet+", "vnet3", true}, {"net*", "net1", false}, {"net+", "net+", true}, {"", "eth0", false},
	} {
		if got := matches(strings.Split(c.names, ","), c.device); got != c.want {
			t.Errorf("%q matches %q: %v, want %v", c.names, c.device, got, c.want)
		}
	}
}

// TestRoutesByDevices: the kernel's own answers become the least networks that tell by which device packets leave.
func TestRoutesByDevices(t *testing.T) {
	const exclude, include = Exclude, Include
	route := func(source, to string) Route {
		r := Route{To: netip.MustParsePrefix(to)}
		if source != "" {
			r.Source = netip.MustParseAddr(source)
		}
		return r
	}
	type rules map[Route]Rule
	connected := rules{route("", "10.1.0.0/24"): exclude, route("", "fd01::/64"): exclude}
	with := func(more rules) rules {
		all := maps.Clone(connected)
		maps.Copy(all, more)
		return all
	}
	for _, c := range []struct {
		name, do string
		want     rules
		bySource bool
		unclear  string
	}{
		{"no more routes", "", connected, false, ""},
		{"a network in another", "route add 10.2.0.0/16 via 10.1.0.9; route add 10.2.3.0/24 via 10.0.0.9; route add 10.2.3.4 via 10.1.0.9; -6 route add fd02::/32 via fd01::9",
			with(rules{route("", "10.2.0.0/16"): exclude, route("", "10.2.3.0/24"): include, route("", "10.2.3.4/32"): exclude, route("", "fd02::/32"): exclude}), false, ""},
		{"all by it but one", "route add default via 10.1.0.9; route add 192.0.2.0/24 via 10.0.0.9",
			rules{route("", "0.0.0.0/0"): exclude, route("", "192.0.2.0/24"): include, route("", "10.0.0.0/24"): include, route("", "fd01::/64"): exclude}, false, ""},
		{"the same by longer networks", "route add 10.1.0.128/25 dev net1", connected, false, ""},
		{"unreachable in it", "route add unreachable 10.1.0.128/25", with(rules{route("", "10.1.0.128/25"): include}), false, ""},
		{"nothing left of a network", "route add 10.2.0.0/24 via 10.1.0.9; route add 10.2.0.0/25 via 10.0.0.9; route add 10.2.0.128/25 via 10.0.0.9", connected, false, ""},
		{"a better metric", "route add 10.2.0.0/24 via 10.1.0.9 metric 20; route add 10.2.0.0/24 via 10.0.0.9 metric 10", connected, false, ""},
		{"a rule for a destination", "rule add to 192.0.2.0/24 lookup 7; route add default via 10.1.0.9 table 7", with(rules{route("", "192.0.2.0/24"): exclude}), false, ""},
		{"a rule for a source", "rule add from 10.1.0.1 lookup 7; route add 192.0.2.0/24 via 10.1.0.9 table 7; route add default via 10.0.0.9",
			with(rules{route("10.1.0.1", "192.0.2.0/24"): exclude, route("10.1.0.1", "10.1.0.0/24"): exclude, route("10.0.0.1", "10.1.0.0/24"): exclude,
				route("fd01::1", "fd01::/64"): exclude, route("fd00::1", "fd01::/64"): exclude}), true, ""},
		{"the source that the kernel chooses", "rule add from 10.0.0.1 lookup 7; route add 192.0.2.0/24 via 10.1.0.9 table 7; route add default via 10.0.0.9",
			with(rules{route("", "192.0.2.0/24"): exclude, route("10.0.0.1", "192.0.2.0/24"): exclude, route("10.1.0.1", "10.1.0.0/24"): exclude, route("10.0.0.1", "10.1.0.0/24"): exclude,
				route("fd01::1", "fd01::/64"): exclude, route("fd00::1", "fd01::/64"): exclude}), true, ""},
		{"next hops by both", "route add 10.2.0.0/16 nexthop via 10.1.0.9 nexthop via 10.0.0.9; -6 route add fd02::/32 nexthop via fd01::9 nexthop via fd00::9", connected, false, "has next hops"},
		{"next hops by it", "route add 10.2.0.0/16 nexthop via 10.1.0.9 nexthop via 10.1.0.8", with(rules{route("", "10.2.0.0/16"): exclude}), false, ""},
		{"nexthop objects by both", "nexthop add id 1 via 10.1.0.9 dev net1; nexthop add id 2 via 10.0.0.9 dev eth0; nexthop add id 3 group 1/2; route add 10.2.0.0/16 nhid 3", connected, false, "has next hops"},
		{"a rule for a mark", "rule add fwmark 1 lookup 7; route add default via 10.1.0.9 table 7", connected, false, ""},
		{"a rule for users", "rule add uidrange 1-2 lookup 7", connected, false, "selects by"},
		{"a rule for ports", "-6 rule add ipproto tcp dport 80 lookup 7", connected, false, "selects by"},
		{"a route for a traffic class", "route add 10.2.0.0/24 tos 0x10 via 10.1.0.9", connected, false, "traffic class"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, err := devicesAfter(t, c.do)
			if err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(found.routes, c.want) || found.bySource != c.bySource {
				t.Errorf("%v, by source %v,\nwant %v, %v", found.routes, found.bySource, c.want, c.bySource)
			}
			if (found.unclear == "") != (c.unclear == "") || !strings.Contains(found.unclear, c.unclear) {
				t.Errorf("unclear: %q, want %q", found.unclear, c.unclear)
			}
			if len(found.excluded) != 1 || len(found.virtual) != 0 {
				t.Errorf("devices %v, of virtual machines %v, want one", found.excluded, found.virtual)
			}
		})
	}
	t.Run("too many", func(t *testing.T) {
		var do strings.Builder
		for n := range mostNetworks {
			fmt.Fprintf(&do, "route add 10.%d.%d.0/24 via 10.1.0.9;", 100+n/256, n%256)
		}
		if _, err := devicesAfter(t, do.String()); err == nil || !strings.Contains(err.Error(), errTooMany.Error()) {
			t.Errorf("%v, want %v", err, errTooMany)
		}
	})
}

// devicesAfter returns what is found in a namespace with eth0, net1 and what some commands of ip(8) do.
func devicesAfter(t *testing.T, commands string) (found podDevices, err error) {
	t.Helper()
	namespace, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	err = namespace.Do(func() error {
		for n, device := range []string{"eth0", "net1"} {
			commands = fmt.Sprintf("link add %[1]s type veth peer name peer%[2]d; link set peer%[2]d up; link set %[1]s up; addr add 10.%[2]d.0.1/24 dev %[1]s; -6 addr add fd0%[2]d::1/64 dev %[1]s nodad;", device, n) + commands
		}
		cmd := exec.Command("sh", "-e")
		cmd.Stdin = strings.NewReader("ip link set lo up; ip " + strings.ReplaceAll(strings.TrimSuffix(commands, ";"), ";", "; ip "))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		found, err = readDevices(interfaces{excluded: []string{"net+"}})
		return err
	})
	return found, err
}
