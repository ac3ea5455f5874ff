// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// serving returns the backends that programs find for each frontend, in any of its sets (bpf/lb/serving.h).
func (k *fakeKernel) serving() map[service.FrontendKey]map[netip.AddrPort]bool {
	all := map[service.FrontendKey]map[netip.AddrPort]bool{}
	for key, row := range k.index.entries {
		content, backends := k.rows.rows[row], map[netip.AddrPort]bool{}
		ranges := []codec.Range{k.listsOf(row).Retained}
		for _, d := range content.Decisions {
			ranges = append(ranges, codec.Range(d))
		}
		for _, d := range ranges {
			for n := range d.Count {
				backends[k.backends.rows[k.slots.rows[d.First+n]].AddrPort()] = true
			}
		}
		all[codec.FrontendKeyOf(key)] = backends
	}
	return all
}

// R29: TakeRemoved reports exactly the changes that remove a backend from a frontend, also if another agent
// wrote the tables; Serves agrees with the programs.
func TestTakeRemoved(t *testing.T) {
	r, outcomes := newRand(t), map[bool]int{}
	for range 200 {
		k := smallKernel(t)
		s, plans := newSyncer(t, k), map[service.Ref]*service.Plan{}
		for range 5 {
			next, before := randomPlans(r, 1), k.serving()
			delta := difference(plans, next)
			if r.IntN(3) == 0 {
				s, delta = newSyncer(t, k), difference(nil, next)
			}
			mustApply(t, s, delta)
			plans = next
			after, want := k.serving(), false
			for key, backends := range before {
				for b := range backends {
					want = want || !after[key][b]
					if got := s.Serves(key.Protocol, netip.AddrPortFrom(key.Addr, key.Port), b); got != after[key][b] {
						t.Errorf("%s serves %s: %t, want %t", b, key, got, after[key][b])
					}
				}
			}
			udp, tcp := s.TakeRemoved()
			if udp || tcp != want {
				t.Fatalf("UDP %t, TCP %t; want TCP %t\nbefore %v\nafter %v", udp, tcp, want, before, after)
			}
			if udp, tcp := s.TakeRemoved(); udp || tcp {
				t.Fatal("TakeRemoved reports it twice")
			}
			outcomes[want]++
		}
	}
	if outcomes[true] < 50 || outcomes[false] < 50 {
		t.Errorf("not both kinds of changes were tried: %v", outcomes)
	}
}

// 127.0.0.0/8 counts as one address for a Service on all of it.
func TestServesOnLoopback(t *testing.T) {
	for _, one := range []bool{false, true} {
		k := newFakeKernel(t, bpf.Limits{})
		s := newSyncer(t, k)
		plan := simplePlan(ref("web"), 1, 1)
		plan.Frontends[0].Key.Addr, plan.Frontends[0].LoopbackExact = netip.MustParseAddr("127.0.0.1"), one
		mustApply(t, s, difference(nil, map[service.Ref]*service.Plan{ref("web"): plan}))
		backend := plan.Sets[0].Backends[0].Addr
		for text, want := range map[string]bool{"127.0.0.1": true, "127.9.9.9": !one, "128.0.0.1": false} {
			at := netip.AddrPortFrom(netip.MustParseAddr(text), plan.Frontends[0].Key.Port)
			if got := s.Serves(service.TCP, at, backend); got != want {
				t.Errorf("one address %t: served on %s: %t, want %t", one, at, got, want)
			}
		}
	}
}
