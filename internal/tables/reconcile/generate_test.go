// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

func ref(name string) service.Ref {
	return service.Ref{Kind: service.KindService, Namespace: "default", Name: name}
}

func newRand(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// simplePlan returns a ClusterIP with some backends of its own.
func simplePlan(owner service.Ref, number, backends int) *service.Plan {
	port := service.Port{Owner: owner, Protocol: service.TCP}
	set := service.BackendSet{Key: service.SetKey{Port: port, Family: service.IPv4}}
	for i := range backends {
		addr := netip.AddrFrom4([4]byte{10, 10, byte(number), byte(i + 1)})
		set.Backends = append(set.Backends, service.Backend{Addr: netip.AddrPortFrom(addr, 8080), Weight: 1})
	}
	f := service.Frontend{
		Key:  service.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, byte(number), 1}), Port: 80, Protocol: service.TCP},
		Kind: service.ClusterIP,
		Port: port,
	}
	for class := range f.Decisions {
		f.Decisions[class] = service.Decision{Verdict: service.Balance, Scope: set.Key.Scope}
	}
	return &service.Plan{Frontends: []service.Frontend{f}, Sets: []service.BackendSet{set}}
}

// simplePlans returns such plans of s0, s1 and so on.
func simplePlans(services, backends int) map[service.Ref]*service.Plan {
	plans := map[service.Ref]*service.Plan{}
	for i := range services {
		owner := ref(fmt.Sprintf("s%d", i))
		plans[owner] = simplePlan(owner, i, backends)
	}
	return plans
}

// randomPlan makes a plan like those of package service: a ClusterIP and some other addresses with a
// cluster and a local set, or verdicts.
func randomPlan(r *rand.Rand, owner service.Ref, number int) *service.Plan {
	port := service.Port{Owner: owner, Name: "http", Protocol: service.TCP}
	plan := &service.Plan{}
	if r.IntN(3) == 0 {
		plan.TableSize = 7
	}
	cluster := service.SetKey{Port: port, Family: service.IPv4, Scope: service.ScopeCluster}
	local := service.SetKey{Port: port, Family: service.IPv4, Scope: service.ScopeLocal}
	decisions := []service.Decision{{Verdict: service.Pass}, {Verdict: service.Reject}, {Verdict: service.Drop}}
	all := randomBackends(r)
	onNode := slices.DeleteFunc(slices.Clone(all), func(b service.Backend) bool { return !b.Local })
	for key, backends := range map[service.SetKey][]service.Backend{cluster: all, local: onNode} {
		if len(backends) > 0 {
			plan.Sets = append(plan.Sets, service.BackendSet{Key: key, Backends: backends})
			decisions = append(decisions, service.Decision{Verdict: service.Balance, Scope: key.Scope, Masquerade: r.IntN(2) == 0},
				service.Decision{Verdict: service.Balance, Scope: key.Scope})
		}
	}
	if backends := randomBackends(r); len(backends) > 0 && r.IntN(2) == 0 {
		for i := range backends {
			backends[i].Weight = 1
		}
		key := service.SetKey{Port: port, Family: service.IPv4, Scope: service.ScopeRetained}
		plan.Retained = append(plan.Retained, service.BackendSet{Key: key, Backends: backends})
	}
	for i := range 1 + r.IntN(3) {
		f := service.Frontend{
			Key:      service.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, byte(number), byte(i + 1)}), Port: uint16(80 + i), Protocol: service.TCP},
			Kind:     []service.FrontendKind{service.ClusterIP, service.NodePort, service.HostPort}[r.IntN(3)],
			Port:     port,
			Affinity: time.Duration(r.IntN(2)*3600) * time.Second,
		}
		slices.SortFunc(plan.Sets, func(a, b service.BackendSet) int { return a.Key.Compare(b.Key) })
		for class := range f.Decisions {
			f.Decisions[class] = decisions[r.IntN(len(decisions))]
		}
		f.DSR = []service.DSR{"", "", service.DSRIPIP, service.DSRGeneve, service.DSROpt}[r.IntN(5)]
		f.Untracked = f.DSR != "" && plan.TableSize > 0 && f.Affinity == 0
		if r.IntN(4) == 0 {
			f.SourceRanges = []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("192.0.%d.0/24", r.IntN(3))),
				netip.MustParsePrefix("198.51.100.0/24"),
			}
		}
		plan.Frontends = append(plan.Frontends, f)
	}
	return plan
}

func randomBackends(r *rand.Rand) []service.Backend {
	var all []service.Backend
	weight := func() uint8 { return 1 }
	if r.IntN(3) == 0 {
		weight = func() uint8 { return uint8(1 + r.IntN(4)) }
	}
	nodes := 1 + r.IntN(2) // if all are on one node, both sets are equal
	for i := range 6 {
		if r.IntN(2) == 0 && i%2 < nodes {
			node := []netip.Addr{{}, {}, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}[r.IntN(4)]
			all = append(all, service.Backend{
				Node:   node,
				Addr:   netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 10, byte(i % 2), byte(i + 1)}), 8080),
				Local:  i%2 == 0,
				Weight: weight(),
			})
		}
	}
	slices.SortFunc(all, func(a, b service.Backend) int { return a.Addr.Compare(b.Addr) })
	return all
}

func randomPlans(r *rand.Rand, services int) map[service.Ref]*service.Plan {
	plans := map[service.Ref]*service.Plan{}
	for i := range services {
		if r.IntN(4) > 0 {
			owner := ref(fmt.Sprintf("s%d", i))
			plans[owner] = randomPlan(r, owner, i)
		}
	}
	return plans
}

// difference returns the delta from one state to another.
func difference(from, to map[service.Ref]*service.Plan) service.Delta {
	d := service.Delta{Plans: map[service.Ref]*service.Plan{}}
	for owner := range from {
		d.Plans[owner] = nil
	}
	for owner, plan := range to {
		d.Plans[owner] = plan
	}
	return d
}
