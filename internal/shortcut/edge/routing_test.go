// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node"
)

func hop(i byte, to string) node.RoutedTo {
	return node.RoutedTo{Device: 7, Metric: 3, Gateway: netip.AddrFrom4([4]byte{192, 0, 2, i}), To: netip.MustParsePrefix(to)}
}

// The tables follow what is read. If it cannot be read, they stay.
func TestRoutingIsWritten(t *testing.T) {
	w := newWorld(t, Config{Mode: TC})
	var routing node.Routing
	var failed error
	w.Edge.routing = func() (node.Routing, error) { return routing, failed }
	want := func(row bpf.Routing, mtus map[bpf.RouteKey]uint32, encaps map[bpf.NetworkKey]bpf.RouteEncap, conditions ...string) {
		t.Helper()
		read, err := w.Edge.routing()
		w.writeRouting(&read, err)
		if got := w.kernel.routings[0]; got != row {
			t.Errorf("row %+v, want %+v", got, row)
		}
		if got := w.kernel.routeMTUs; !maps.Equal(got, mtus) {
			t.Errorf("MTUs %v, want %v", got, mtus)
		}
		if got := w.kernel.routeEncaps; !maps.Equal(got, encaps) {
			t.Errorf("encapsulations %v, want %v", got, encaps)
		}
		var codes []string
		for _, c := range w.routed {
			codes = append(codes, string(c.Code))
		}
		if fmt.Sprint(codes) != fmt.Sprint(conditions) {
			t.Errorf("conditions %v, want %v", w.routed, conditions)
		}
	}
	none := map[bpf.RouteKey]uint32{}
	plain := map[bpf.NetworkKey]bpf.RouteEncap{}
	want(bpf.Routing{Flags: bpf.RouteIgnoresPMTU}, none, plain)

	routing.MTUs = node.RouteMTUs{Of: map[node.RoutedTo]uint32{hop(9, "10.1.0.0/16"): 1400}, Least4: 1400}
	routing.Encaps = map[netip.Prefix]node.EncapRoute{netip.MustParsePrefix("10.2.0.0/16"): {Device: 5, MTU: 1300}}
	routing.BySource, routing.ByPorts, routing.ByTOS, routing.UsesPMTU = true, true, true, true
	routing.ByMark, routing.Unusable = []node.Rule{{Mark: 1, MarkMask: 1}}, []node.Route{{To: netip.MustParsePrefix("10.3.0.0/16")}}
	mtus := map[bpf.RouteKey]uint32{{
		Prefixlen: 32*3 + 128 + 96 + 16, Device: 7, Metric: 3, NextHop: bpf.AddressFrom(netip.MustParseAddr("192.0.2.9")),
		Destination: bpf.AddressFrom(netip.MustParseAddr("10.1.0.0")),
	}: 1400}
	encaps := map[bpf.NetworkKey]bpf.RouteEncap{{Prefixlen: 96 + 16, Address: bpf.AddressFrom(netip.MustParseAddr("10.2.0.0"))}: {Device: 5, Mtu: 1300}}
	flags := bpf.RoutedBySource | bpf.RoutedByPorts | bpf.RoutedByTOS | bpf.RoutedByMark
	want(bpf.Routing{LeastMtu4: 1400, Flags: flags}, mtus, encaps, "EdgeRouteUnusable", "EdgeBypassesRules")

	failed = errors.New("no memory")
	want(bpf.Routing{LeastMtu4: 1400, Flags: flags}, mtus, encaps, "EdgeRoutingUnknown")

	failed, routing = nil, node.Routing{MTUs: node.RouteMTUs{Least4: 1280, Of: map[node.RoutedTo]uint32{}}}
	for i := range 101 {
		routing.MTUs.Of[hop(byte(i), "10.1.0.0/16")] = 1400
	}
	deleted := 0
	w.kernel.routeMTUDeleted = func() {
		deleted++
		if w.kernel.routings[0].Flags&bpf.RouteMTUsMissing == 0 {
			t.Error("an MTU is deleted while the programs still look for it")
		}
	}
	want(bpf.Routing{LeastMtu4: 1280, Flags: bpf.RouteMTUsMissing | bpf.RouteIgnoresPMTU}, none, plain, "RouteMTUsMissing")
	if deleted != 1 {
		t.Errorf("%d MTUs are deleted, want 1", deleted)
	}
	routing = node.Routing{}
	want(bpf.Routing{Flags: bpf.RouteIgnoresPMTU}, none, plain)
}
