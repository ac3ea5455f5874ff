// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"slices"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
)

// A node that is the backend of a Service with DSR forwards nothing of what it decapsulates. It does for pods, for
// frontends without DSR, and as a balancer.
func TestWhoForwards(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	itself := service.Backend{Addr: netip.MustParseAddrPort("192.0.2.1:80"), Local: true}
	pod := service.Backend{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Local: true}
	remote := service.Backend{Addr: netip.MustParseAddrPort("192.0.2.2:80")}
	port := service.Port{Owner: service.Ref{Kind: service.KindService, Namespace: "default", Name: "web"}}
	vip := func(dsr service.DSR, verdict service.Verdict) service.Frontend {
		f := service.Frontend{Key: service.FrontendKey{Addr: netip.MustParseAddr("203.0.113.10"), Port: 80, Protocol: service.TCP}, Port: port, DSR: dsr}
		f.Decisions[service.FromOutside].Verdict = verdict
		return f
	}
	for _, c := range []struct {
		name                  string
		frontends             []service.Frontend
		backends              []service.Backend
		forwards, decapsulate bool
	}{
		{"a backend's machine", []service.Frontend{vip(service.DSRIPIP, service.Balance)}, []service.Backend{itself, remote}, false, true},
		{"also of an address that refuses", []service.Frontend{vip(service.DSRIPIP, service.Balance), vip("", service.Reject)}, []service.Backend{itself, remote}, false, true},
		{"a balancer", []service.Frontend{vip(service.DSRIPIP, service.Balance)}, []service.Backend{remote}, true, false},
		{"a node with a pod", []service.Frontend{vip(service.DSRIPIP, service.Balance)}, []service.Backend{itself, pod, remote}, true, false},
		{"SNAT", []service.Frontend{vip("", service.Balance)}, []service.Backend{itself, remote}, true, false},
		{"SNAT of one address", []service.Frontend{vip(service.DSRIPIP, service.Balance), vip("", service.Balance)}, []service.Backend{itself, remote}, true, false},
		{"only itself", []service.Frontend{vip(service.DSRIPIP, service.Balance)}, []service.Backend{itself}, false, false},
	} {
		f := newForwarded()
		change := func(plan *service.Plan) {
			f.note(service.Delta{Plans: map[service.Ref]*service.Plan{port.Owner: plan}}, own)
		}
		change(&service.Plan{Frontends: c.frontends, Sets: []service.BackendSet{{Key: service.SetKey{Port: port, Family: service.IPv4}, Backends: c.backends}}})
		want := func(in bool) (families []service.Family) {
			if in {
				families = []service.Family{service.IPv4}
			}
			return families
		}
		if all, decapsulated := f.all.families(), f.decapsulated.families(); !slices.Equal(all, want(c.forwards)) || !slices.Equal(decapsulated, want(c.decapsulate)) {
			t.Errorf("%s: forwards %v, decapsulates %v", c.name, all, decapsulated)
		}
		if change(nil); len(f.all.families())+len(f.decapsulated.families()) > 0 {
			t.Errorf("%s: something is left of a removed Service", c.name)
		}
	}
}
