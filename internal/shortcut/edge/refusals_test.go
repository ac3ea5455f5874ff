// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

// A port is a condition that has refused packets in the last minute and served none, with the number of packets, for as
// long as the Service has it. So is an address that has dropped packets by policy Local, whatever others do.
func TestRefusingServices(t *testing.T) {
	web := service.Ref{Kind: service.KindService, Namespace: "default", Name: "web"}
	http, dns := service.Port{Owner: web, Name: "http", Protocol: service.TCP}, service.Port{Owner: web, Protocol: service.UDP}
	vip := func(last byte) service.FrontendKey {
		return service.FrontendKey{Addr: netip.AddrFrom4([4]byte{203, 0, 113, last}), Port: 53, Protocol: service.UDP}
	}
	type pass struct {
		at    int // in seconds
		ports map[service.Port]portUse
		drops map[service.FrontendKey]uint64 // so far
	}
	old := map[service.FrontendKey]uint64{vip(1): 5}
	const all = "ServiceRefuses: Service default/web: all that clients outside sent in the last minute was refused: "
	const local = "ServiceRefuses: Service default/web: what clients outside sent in the last minute was dropped, because the traffic policy there is Local and this node has no endpoint: "
	for _, c := range []struct {
		name   string
		passes []pass
		gone   bool // the port http
		want   string
	}{
		{"nothing refused", []pass{{0, map[service.Port]portUse{http: {0, 5}}, nil}}, false, ""},
		{"all refused", []pass{{0, map[service.Port]portUse{http: {3, 0}}, nil}, {10, map[service.Port]portUse{http: {4, 0}}, nil}}, false, all + "7 packets to port http/TCP"},
		{"some served", []pass{{0, map[service.Port]portUse{http: {3, 0}}, nil}, {10, map[service.Port]portUse{http: {4, 1}}, nil}}, false, ""},
		{"served more than a minute ago", []pass{{0, map[service.Port]portUse{http: {3, 9}}, nil}, {60, map[service.Port]portUse{http: {4, 0}}, nil}}, false, all + "4 packets to port http/TCP"},
		{"refused more than a minute ago", []pass{{0, map[service.Port]portUse{http: {3, 0}}, nil}, {60, nil, nil}}, false, ""},
		{"one of two ports", []pass{{0, map[service.Port]portUse{http: {3, 0}, dns: {0, 5}}, nil}}, false, all + "3 packets to port http/TCP"},
		{"both ports", []pass{{0, map[service.Port]portUse{http: {3, 0}, dns: {2, 0}}, nil}}, false, all + "2 packets to port UDP, 3 packets to port http/TCP"},
		{"dropped by policy Local", []pass{{0, nil, old}, {10, nil, map[service.FrontendKey]uint64{vip(1): 11}}}, false, local + "6 packets to 203.0.113.1:53/UDP"},
		{"dropped, and served at another address", []pass{{0, nil, nil}, {10, map[service.Port]portUse{dns: {0, 9}}, map[service.FrontendKey]uint64{vip(1): 6}}}, false, local + "6 packets to 203.0.113.1:53/UDP"},
		{"dropped more than a minute ago", []pass{{0, nil, old}, {10, nil, map[service.FrontendKey]uint64{vip(1): 11}}, {70, nil, map[service.FrontendKey]uint64{vip(1): 11}}}, false, ""},
		{"a counter that had to make room", []pass{{0, nil, old}, {10, nil, map[service.FrontendKey]uint64{vip(1): 2}}}, false, local + "2 packets to 203.0.113.1:53/UDP"},
		{"dropped before this agent", []pass{}, false, ""},
		{"dropped at an address that serves now", []pass{{0, nil, nil}, {10, nil, map[service.FrontendKey]uint64{vip(9): 6}}}, false, ""},
		{"dropped at many addresses", []pass{{0, nil, nil}, {10, nil, map[service.FrontendKey]uint64{vip(1): 6, vip(2): 7, vip(3): 6, vip(4): 1}}}, false,
			local + "7 packets to 203.0.113.2:53/UDP, 6 packets to 203.0.113.1:53/UDP, 6 packets to 203.0.113.3:53/UDP, others to 1 more"},
		{"a port that is gone", []pass{{0, map[service.Port]portUse{http: {3, 0}}, nil}, {10, nil, nil}}, true, ""},
	} {
		var r refusals
		plan := &service.Plan{}
		for last := range byte(4) {
			plan.Frontends = append(plan.Frontends, service.Frontend{Key: vip(last + 1), Port: dns, Decisions: [service.SourceClasses]service.Decision{service.FromOutside: {Verdict: service.Drop}}})
		}
		r.change(service.Delta{Plans: map[service.Ref]*service.Plan{web: plan}})
		for _, p := range c.passes {
			r.note(time.Unix(int64(p.at), 0), p.ports, p.drops, func(port service.Port) bool { return !c.gone || port != http })
		}
		got := ""
		for _, one := range r.conditions() {
			got += string(one.Code) + ": " + one.Object + ": " + one.Message
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
