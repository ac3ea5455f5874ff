// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node"
)

// Packets that did not reach a backend are a condition with backend, reason and number, until what they lacked is
// there or none was dropped for a minute. What was counted before the agent began is none.
func TestDropsToBackends(t *testing.T) {
	const noRoute, noAddress, noPort = bpf.LostWithoutRoute, bpf.LostWithoutAddress, bpf.LostWithoutPort
	type reading struct {
		at     int // in seconds
		counts map[string]uint64
		route  error
		want   string // the condition's message; several are joined by newlines
	}
	encap := node.Route{Table: unix.RT_TABLE_MAIN, To: netip.MustParsePrefix("10.10.2.0/24"), Hops: []node.NextHop{{Encap: 1}}}
	in := func(rest string) string { return " packets of clients in the last minute did not reach " + rest }
	one := func(rest string) string { return "1 packet of clients in the last minute did not reach " + rest }
	for _, c := range []struct {
		name     string
		reason   uint32
		unusable []node.Route
		asked    string
		readings []reading
	}{
		{"a route that is gone and back", noRoute, nil, "", []reading{
			{0, map[string]uint64{"10.10.2.2": 7}, unix.ENETUNREACH, ""},
			{5, map[string]uint64{"10.10.2.2": 9}, unix.ENETUNREACH, "2" + in("backend 10.10.2.2 of Service default/web: the node has no route to that backend")},
			{10, map[string]uint64{"10.10.2.2": 12}, unix.ENETUNREACH, "5" + in("backend 10.10.2.2 of Service default/web: the node has no route to that backend")},
			{15, map[string]uint64{"10.10.2.2": 13}, nil, ""},
			{20, map[string]uint64{"10.10.2.2": 13}, nil, ""},
		}},
		{"a minute", noRoute, nil, "", []reading{
			{0, nil, unix.EHOSTUNREACH, ""},
			{5, map[string]uint64{"10.10.2.2": 1}, unix.EHOSTUNREACH, one("backend 10.10.2.2 of Service default/web: a route of type unreachable leads to that backend")},
			{30, map[string]uint64{"10.10.2.2": 3}, unix.EHOSTUNREACH, "3" + in("backend 10.10.2.2 of Service default/web: a route of type unreachable leads to that backend")},
			{70, map[string]uint64{"10.10.2.2": 3}, unix.EHOSTUNREACH, "2" + in("backend 10.10.2.2 of Service default/web: a route of type unreachable leads to that backend")},
			{90, map[string]uint64{"10.10.2.2": 3}, unix.EHOSTUNREACH, ""},
		}},
		{"another type of route", noRoute, nil, "", []reading{
			{0, nil, unix.EACCES, ""},
			{5, map[string]uint64{"10.10.2.2": 1}, unix.EACCES, one("backend 10.10.2.2 of Service default/web: a route of type prohibit leads to that backend")},
			{10, map[string]uint64{"10.10.2.2": 3}, unix.EINVAL, "2" + in("backend 10.10.2.2 of Service default/web: a route of type blackhole leads to that backend")},
		}},
		{"drops although the node's own lookup finds a route", noRoute, nil, "", []reading{
			{0, nil, nil, ""},
			{5, map[string]uint64{"10.10.2.2": 1}, nil, ""},
			{10, map[string]uint64{"10.10.2.2": 3}, nil, "2" + in("backend 10.10.2.2 of Service default/web: the node had no route to that backend")},
		}},
		{"a route with MPLS", noRoute, []node.Route{encap}, "", []reading{
			{0, nil, nil, ""},
			{5, map[string]uint64{"10.10.2.2": 4}, nil, "4" + in("backend 10.10.2.2 of Service default/web: the edge cannot send by the route to that backend, 10.10.2.0/24 encap mpls")},
		}},
		{"DSR", noRoute, nil, "192.0.2.9", []reading{
			{0, nil, nil, ""},
			{5, map[string]uint64{"10.10.2.2": 4}, unix.ENETUNREACH, "4" + in("backend 10.10.2.2 of Service default/web: the node has no route to its node 192.0.2.9")},
		}},
		{"several backends", noRoute, nil, "", []reading{
			{0, nil, nil, ""},
			{5, map[string]uint64{"10.10.2.2": 2, "10.10.2.3": 9, "10.10.2.4": 1, "10.10.2.5": 1, "fd00:10:2::2": 2}, unix.ENETUNREACH,
				"15" + in("backend 10.10.2.3, backend 10.10.2.2 of Service default/web, backend fd00:10:2::2, and 2 more: the node has no route to that backend")},
		}},
		{"a counter that had to make room", noRoute, nil, "", []reading{
			{0, map[string]uint64{"10.10.2.2": 40}, nil, ""},
			{5, map[string]uint64{"10.10.2.2": 3}, unix.ENETUNREACH, "3" + in("backend 10.10.2.2 of Service default/web: the node has no route to that backend")},
			{10, nil, unix.ENETUNREACH, ""},
		}},
		{"a device without an address of the family", noAddress, nil, "", []reading{
			{0, nil, nil, ""},
			{5, map[string]uint64{"10.10.2.2": 1}, nil, one("backend 10.10.2.2 of Service default/web: device (index 2000000), by which the route to that backend leads, has no IPv4 address to send from")},
			{10, map[string]uint64{"10.10.2.2": 1, "fd00:10:2::2": 1}, nil, one("backend 10.10.2.2 of Service default/web: device (index 2000000), by which the route to that backend leads, has no IPv4 address to send from")},
		}},
		{"no port", noPort, nil, "", []reading{
			{0, nil, nil, ""},
			{5, map[string]uint64{"10.10.2.2": 8}, nil, "8" + in("backend 10.10.2.2 of Service default/web: no SNAT port is free to that backend")},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			web := []service.Ref{{Kind: service.KindService, Namespace: "default", Name: "web"}}
			w := newWorld(t, Config{Mode: TC, Destinations: &destinations{services: map[netip.Addr][]service.Ref{netip.MustParseAddr("10.10.2.2"): web}}})
			w.unusable = c.unusable
			w.tables = map[uint32]bpf.EdgeDevice{2000000: {Source6: bpf.AddressFrom(netip.MustParseAddr("fd00:100::1"))}}
			for _, r := range c.readings {
				clear(w.kernel.losses)
				w.deviceTo = func(netip.Addr) (int, error) { return 0, r.route }
				for text, n := range r.counts {
					a := netip.MustParseAddr(text)
					row := bpf.BackendLoss{Packets: n, Asked: bpf.AddressFrom(a), Device: 2000000}
					if c.asked != "" {
						row.Asked = bpf.AddressFrom(netip.MustParseAddr(c.asked))
					}
					w.kernel.losses[bpf.BackendLossKey{Backend: bpf.AddressFrom(a), Reason: c.reason}] = row
				}
				w.countDrops(time.Unix(int64(r.at), 0))
				var got []string
				for _, one := range Conditions(w.CompleteStatus(nil)) {
					got = append(got, fmt.Sprintf("%s %s", one.Code, one.Message))
				}
				want := r.want
				if want != "" {
					want = "EdgeDropsToBackend " + want
				}
				if strings.Join(got, "\n") != want {
					t.Errorf("after %d s: conditions\n%s\nwant\n%s", r.at, strings.Join(got, "\n"), want)
				}
			}
		})
	}
}

// Packets without a route that none of the backends has lost are those of clients. What the agent has not seen happen
// is older than it.
func TestDropsToClients(t *testing.T) {
	counters := map[string]uint64{}
	w := newWorld(t, Config{Mode: TC, Counters: func() (map[string]uint64, error) { return counters, nil }})
	w.deviceTo = func(netip.Addr) (int, error) { return 0, unix.ENETUNREACH }
	key := bpf.BackendLossKey{Backend: bpf.AddressFrom(netip.MustParseAddr("10.10.2.2")), Reason: bpf.LostWithoutRoute}
	for _, r := range []struct {
		at             int // in seconds
		all, toBackend uint64
		want           string
	}{
		{0, 9, 2, ""},
		{5, 12, 5, "EdgeDropsToBackend 3 "},
		{10, 19, 6, "EdgeDropsToBackend 4 EdgeDropsToClients 6 "},
		{15, 19, 8, "EdgeDropsToBackend 6 EdgeDropsToClients 6 "}, // answered with an ICMP error that exceeded the rate
		{69, 20, 8, "EdgeDropsToBackend 3 EdgeDropsToClients 7 "},
		{130, 20, 8, ""},
	} {
		counters["drop_no_route"] = r.all
		w.kernel.losses[key] = bpf.BackendLoss{Packets: r.toBackend, Asked: key.Backend}
		w.countDrops(time.Unix(int64(r.at), 0))
		got := ""
		for _, one := range Conditions(w.CompleteStatus(nil)) {
			n, _, _ := strings.Cut(one.Message, " ")
			got += fmt.Sprintf("%s %s ", one.Code, n)
		}
		if got != r.want {
			t.Errorf("after %d s: %q, want %q", r.at, got, r.want)
		}
	}
}
