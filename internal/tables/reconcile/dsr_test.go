// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// withDSR returns a plan whose frontends have a kind of DSR.
func withDSR(plan *service.Plan, kind service.DSR) *service.Plan {
	changed := *plan
	changed.Frontends = slices.Clone(plan.Frontends)
	for i := range changed.Frontends {
		changed.Frontends[i].DSR = kind
	}
	return &changed
}

// A change of the kind of DSR fills another row and changes the index: sets and backends stay, no flow is
// checked, and the next agent finds the row unchanged.
func TestDSRIsInTheRow(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	owner := ref("web")
	plan := simplePlan(owner, 1, 3)
	apply := func(kind service.DSR) {
		t.Helper()
		mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: withDSR(plan, kind)}})
	}
	apply("")
	s.TakeRemoved()
	backends, slots := slices.Clone(k.backends.rows), slices.Clone(k.slots.rows)
	for kind, want := range map[service.DSR]bpf.DSR{
		service.DSRIPIP: bpf.DSRIPIP, service.DSRGeneve: bpf.DSRGeneve, service.DSROpt: bpf.DSROpt, "": bpf.DSRNone,
	} {
		apply(kind)
		row := k.rows.rows[k.index.entries[codec.FrontendKey(plan.Frontends[0].Key)]]
		if bpf.DSR(row.Dsr) != want || codec.DSROf(bpf.DSR(row.Dsr)) != kind {
			t.Errorf("%q: the row has %d", kind, row.Dsr)
		}
		if !slices.Equal(backends, k.backends.rows) || !slices.Equal(slots, k.slots.rows) {
			t.Errorf("%q: sets or backends have changed", kind)
		}
		if udp, tcp := s.TakeRemoved(); udp || tcp {
			t.Errorf("%q: backends are reported as removed", kind)
		}
		mustCollect(t, s)
		updates := s.Stats().Updates
		apply(kind)
		s = newSyncer(t, k)
		apply(kind)
		if s.Stats().Updates > 0 {
			t.Errorf("%q: %d updates before a restart, and %d after it, though nothing has changed", kind, updates, s.Stats().Updates)
		}
	}
}

// A backend whose node gets another address is another backend: a row changes only when nothing leads to
// it. A backend without a node has its own address there.
func TestNodeOfBackend(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	owner := ref("web")
	for _, node := range []string{"", "192.0.2.9", "192.0.2.10", ""} {
		plan := simplePlan(owner, 1, 1)
		backend := &plan.Sets[0].Backends[0]
		want := backend.Addr.Addr()
		if node != "" {
			want = netip.MustParseAddr(node)
			backend.Node = want
		}
		mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: plan}})
		d := k.rows.rows[k.index.entries[codec.FrontendKey(plan.Frontends[0].Key)]].Decisions[0]
		if got := k.backends.rows[k.slots.rows[d.First]].Node.Addr(); got != want {
			t.Errorf("node %s, want %s", got, want)
		}
		elsewhere := fmt.Sprint(s.RemoteBackends())
		if !strings.Contains(elsewhere, want.String()) || !strings.Contains(elsewhere, backend.Addr.Addr().String()) {
			t.Errorf("the edge has to reach %s and %s: %s", backend.Addr.Addr(), want, elsewhere)
		}
		if udp, tcp := s.TakeRemoved(); udp || tcp && node != "" {
			t.Errorf("with node %q backends are reported as removed", node)
		}
		mustCollect(t, s)
		s = newSyncer(t, k)
		s.TakeRemoved()
		mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: plan}})
		if s.Stats().Updates > 0 {
			t.Errorf("node %q: %d updates after a restart", node, s.Stats().Updates)
		}
	}
}

func (k *fakeKernel) balancerNetworks() string {
	var all []string
	for key := range k.balancers.entries {
		all = append(all, key.Prefix().String())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func networksOf(texts ...string) *[]netip.Prefix {
	all := []netip.Prefix{}
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return &all
}

// The table of balancers follows what is wanted, adding new ones before removing old ones; a starting agent
// leaves it alone until it knows them; damage is repaired.
func TestBalancers(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	for _, networks := range [][]string{{"192.0.2.1/32", "2001:db8::1/128"}, {"192.0.2.0/24", "192.0.2.2/32"}, {"192.0.2.0/24"}, {"10.0.0.0/8", "fd00::/64"}} {
		before := maps.Clone(k.balancers.entries)
		added := 0
		k.before = func(operation string) error {
			switch {
			case strings.HasPrefix(operation, "put "+bpf.EdgeTCMapBalancers):
				added++
				for key := range before {
					if k.balancers.entries[key] != 1 {
						t.Errorf("%s is removed before all others are added", key.Prefix())
					}
				}
			case strings.HasPrefix(operation, "delete "+bpf.EdgeTCMapBalancers) && added == 0 && len(before) < len(networks):
				t.Error("balancers are removed before others are added")
			}
			return nil
		}
		mustApply(t, s, service.Delta{Balancers: networksOf(networks...)})
		slices.Sort(networks)
		if got := k.balancerNetworks(); got != strings.Join(networks, " ") {
			t.Errorf("the table has %s, want %s", got, networks)
		}
		mustApply(t, s, service.Delta{})
		s = newSyncer(t, k)
		if _, err := s.Retry(time.Now().Add(time.Hour)); err != nil {
			t.Error(err)
		}
		if _, err := s.Audit(); err != nil {
			t.Error(err)
		}
		if got := k.balancerNetworks(); got != strings.Join(networks, " ") {
			t.Errorf("a starting agent left %s of %s", got, networks)
		}
		mustApply(t, s, service.Delta{Balancers: networksOf(networks...)})
		k.before = nil
		for key := range k.balancers.entries {
			delete(k.balancers.entries, key)
			break
		}
		k.balancers.entries[codec.NetworkKey(netip.MustParsePrefix("203.0.113.0/24"))] = 1
		if repairs, err := s.Audit(); repairs != 2 || err != nil || k.balancerNetworks() != strings.Join(networks, " ") {
			t.Errorf("audit: %d repairs, %v, %s", repairs, err, k.balancerNetworks())
		}
	}
}

// Balancers that do not fit are named, those that fit are in the table, and the rest is added when there is
// room; likewise after a failed operation.
func TestBalancersThatDoNotFit(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	var many []string
	for i := range k.balancers.max + 1 {
		many = append(many, fmt.Sprintf("192.0.2.%d/32", i))
	}
	err := s.Apply(service.Delta{Balancers: networksOf(many...)})
	var full *bpf.FullError
	if !errors.As(err, &full) || !strings.Contains(err.Error(), "balancer 192.0.2.") {
		t.Errorf("the error is %v", err)
	}
	if s.Stats().Balancers == "" || len(k.balancers.entries) != int(k.balancers.max) {
		t.Errorf("%d balancers, status %q", len(k.balancers.entries), s.Stats().Balancers)
	}
	// As many as fit, one of them new: it has to wait until another is removed.
	if err := s.Apply(service.Delta{Balancers: networksOf(many[1:]...)}); err != nil {
		t.Log(err)
	}
	mustConverge(t, s)
	if got := k.balancerNetworks(); got != strings.Join(many[1:], " ") || s.Stats().Balancers != "" {
		t.Errorf("with room: %s, status %q", got, s.Stats().Balancers)
	}
	k.before = func(operation string) error {
		if strings.Contains(operation, " "+bpf.EdgeTCMapBalancers+" ") {
			return errFault
		}
		return nil
	}
	if err := s.Apply(service.Delta{Balancers: networksOf("10.0.0.0/8")}); !errors.Is(err, errFault) {
		t.Errorf("the error is %v", err)
	}
	k.before = nil
	mustConverge(t, s)
	if got := k.balancerNetworks(); got != "10.0.0.0/8" {
		t.Errorf("after a fault: %s", got)
	}
}

// Packets of DSR are sent to backends on other nodes, or with Geneve to their nodes; each kind has its own
// list, only of frontends that use it.
func TestDSRDestinations(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	want := func(want string) {
		t.Helper()
		var got []string
		for _, kind := range []service.DSR{service.DSRGeneve, service.DSRIPIP, service.DSROpt} {
			if addresses := s.DSRDestinations()[kind]; len(addresses) > 0 {
				got = append(got, fmt.Sprint(kind, addresses))
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	plans := map[service.Ref]*service.Plan{ref("plain"): simplePlan(ref("plain"), 1, 2)}
	for i, kind := range []service.DSR{service.DSRIPIP, service.DSRGeneve, service.DSRGeneve} {
		owner := ref(fmt.Sprint("s", i))
		plan := withDSR(simplePlan(owner, i+2, 3), kind)
		backends := plan.Sets[0].Backends
		backends[0].Local = true
		if kind == service.DSRGeneve {
			backends[1].Node = netip.MustParseAddr("192.0.2.9")
		}
		plans[owner] = plan
	}
	mustApply(t, s, difference(nil, plans))
	want("geneve[10.10.3.3 10.10.4.3 192.0.2.9] ipip[10.10.2.2 10.10.2.3]")
	s = newSyncer(t, k)
	want("geneve[10.10.3.3 10.10.4.3 192.0.2.9] ipip[10.10.2.2 10.10.2.3]")
	mustApply(t, s, difference(plans, map[service.Ref]*service.Plan{ref("plain"): plans[ref("plain")]}))
	want("")
}

// Without an edge the table does not exist, and this is no error.
func TestNoBalancersWithoutEdge(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	k.tables.Balancers = nil
	s := newSyncer(t, k)
	mustApply(t, s, service.Delta{Balancers: networksOf("10.0.0.0/8")})
	if repairs, err := s.Audit(); repairs != 0 || err != nil || s.Stats().Balancers != "" {
		t.Errorf("%d repairs, %v, %q", repairs, err, s.Stats().Balancers)
	}
	if _, err := s.Usage(); err != nil {
		t.Error(err)
	}
}
