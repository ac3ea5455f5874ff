// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
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

func newSyncer(t *testing.T, k *fakeKernel) *Syncer {
	t.Helper()
	s, err := New(k.tables)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustApply(t *testing.T, s *Syncer, d service.Delta) {
	t.Helper()
	if err := s.Apply(d); err != nil {
		t.Fatalf("apply: %v", err)
	}
}

func mustCollect(t *testing.T, s *Syncer) {
	t.Helper()
	if left, err := s.CollectGarbage(); left || err != nil {
		t.Fatalf("collect: left %v, %v", left, err)
	}
}

// TestTablesHoldThePlan: after any sequence of plans, the programs find exactly what the last one says, and
// in the end everything is freed.
func TestTablesHoldThePlan(t *testing.T) {
	r := newRand(t)
	for range 50 {
		k := smallKernel(t)
		s := newSyncer(t, k)
		plans := map[service.Ref]*service.Plan{}
		for range 10 {
			next := randomPlans(r, 6)
			mustApply(t, s, difference(plans, next))
			plans = next
			k.mustHold(t, plans, "after a change")
			k.mustReserve(t)
			if r.IntN(2) == 0 {
				mustCollect(t, s)
				k.mustReserveOnly(t)
			}
			if r.IntN(3) == 0 {
				s = newSyncer(t, k)
				mustApply(t, s, difference(nil, plans))
			}
		}
		mustApply(t, s, difference(plans, nil))
		mustCollect(t, s)
		if len(k.index.entries)+len(k.services.entries)+len(k.ranges.entries)+len(k.reserved.entries) != 0 {
			t.Fatalf("not removed: %v %v %v %v", k.index.entries, k.services.entries, k.ranges.entries, k.reserved.entries)
		}
		for id, b := range k.backends.rows {
			if b != (bpf.Backend{}) {
				t.Fatalf("backend %d not removed: %v", id, b)
			}
		}
		if used := s.alloc.slots.used(); used != 0 || len(s.alloc.slots.free) != 1 {
			t.Fatalf("%d slots are not free; %v", used, s.alloc.slots.free)
		}
	}
}

// TestStatusDuringChange: Status during a large change shows what is applied and what is still pending.
func TestStatusDuringChange(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{Frontends: 1024, Slots: 1024, Backends: 1024})
	s := newSyncer(t, k)
	seen := map[State]int{}
	asked, answered := make(chan bool, 1), make(chan bool)
	k.after = func() {
		select {
		case asked <- true: // the first operation: from here on Status is called
			go func() {
				for _, st := range s.Status() {
					seen[st.State]++
				}
				close(answered)
			}()
			time.Sleep(50 * time.Millisecond)
		default:
			time.Sleep(time.Millisecond)
		}
	}
	mustApply(t, s, difference(nil, simplePlans(200, 1)))
	<-answered
	if seen[Applied] == 0 || seen[Pending] == 0 || seen[Applied]+seen[Pending] != 200 {
		t.Errorf("states during the change: %v", seen)
	}
	for _, st := range s.Status() {
		if st.State != Applied {
			t.Errorf("after the change: %+v", st)
		}
	}
}

// TestServiceCIDRs: ServiceCIDRs follow the plan, also after a restart.
func TestServiceCIDRs(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	for _, cidrs := range [][]string{{"10.96.0.0/16", "fd00:96::/112"}, {"10.97.0.0/16"}, {}} {
		prefixes := []netip.Prefix{}
		for _, c := range cidrs {
			prefixes = append(prefixes, netip.MustParsePrefix(c))
		}
		mustApply(t, s, service.Delta{ServiceCIDRs: &prefixes})
		var got []string
		for key := range k.networks.entries {
			got = append(got, key.Prefix().String())
		}
		if len(got) != len(cidrs) {
			t.Errorf("want %v, have %v", cidrs, got)
		}
		for _, c := range cidrs {
			if k.networks.entries[codec.NetworkKey(netip.MustParsePrefix(c))] != bpf.NetworkService {
				t.Errorf("%s is not there: %v", c, got)
			}
		}
		s = newSyncer(t, k)
	}
}

// Pod networks follow the plan, also after a restart; one that is also a ServiceCIDR counts as a
// ServiceCIDR while it is one, and is reported. A node's own address inside a ServiceCIDR counts as neither
// (R21).
func TestPodNetworks(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	prefixes := func(texts ...string) *[]netip.Prefix {
		all := []netip.Prefix{}
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return &all
	}
	for _, step := range []struct {
		services, pods *[]netip.Prefix
		own            string
		want, both     string
	}{
		{prefixes("10.96.0.0/16"), prefixes("10.10.1.0/24", "fd00:10::/64"), "", "10.10.1.0/24 pod, 10.96.0.0/16 service, fd00:10::/64 pod", ""},
		{nil, nil, "10.96.0.1 10.10.1.1 192.0.2.1", "10.10.1.0/24 pod, 10.96.0.0/16 service, 10.96.0.1/32 own, fd00:10::/64 pod", ""},
		{nil, prefixes("10.96.0.0/24"), "10.96.0.1 10.96.1.1", "10.96.0.0/16 service, 10.96.0.0/24 pod, 10.96.1.1/32 own", ""},
		{nil, prefixes("10.10.1.0/24", "10.96.0.0/16", "10.96.1.0/24"), "", "10.10.1.0/24 pod, 10.96.0.0/16 service, 10.96.1.0/24 pod", "10.96.0.0/16"},
		{prefixes(), nil, "10.96.0.1", "10.10.1.0/24 pod, 10.96.0.0/16 pod, 10.96.1.0/24 pod", ""},
		{prefixes("10.10.1.0/24"), nil, "", "10.10.1.0/24 service, 10.96.0.0/16 pod, 10.96.1.0/24 pod", "10.10.1.0/24"},
		{nil, prefixes(), "", "10.10.1.0/24 service", ""},
	} {
		s.SetOwn(addresses(step.own))
		mustApply(t, s, service.Delta{ServiceCIDRs: step.services, PodNetworks: step.pods})
		var got []string
		for key, network := range k.networks.entries {
			got = append(got, key.Prefix().String()+map[bpf.Network]string{bpf.NetworkPod: " pod", bpf.NetworkService: " service", bpf.NetworkOwn: " own"}[network])
		}
		slices.Sort(got)
		if got := strings.Join(got, ", "); got != step.want {
			t.Errorf("the tables have %s, want %s", got, step.want)
		}
		if both := strings.Join(s.Stats().BothNetworks, ", "); both != step.both {
			t.Errorf("both: %q, want %q", both, step.both)
		}
		if n, err := s.Audit(); n != 0 || err != nil {
			t.Errorf("an audit repaired %d, %v", n, err)
		}
	}
	before := maps.Clone(k.networks.entries)
	again := newSyncer(t, k)
	mustApply(t, again, service.Delta{ServiceCIDRs: prefixes("10.10.1.0/24"), PodNetworks: prefixes()})
	if !maps.Equal(before, k.networks.entries) {
		t.Errorf("after a restart %v, before %v", k.networks.entries, before)
	}
}

// addresses parses a list with spaces between.
func addresses(list string) (all []netip.Addr) {
	for _, text := range strings.Fields(list) {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}
