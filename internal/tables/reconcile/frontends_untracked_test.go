// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// acceptedBy returns the kinds that a row needs accepted, for rows that the fake's programs can reach.
func acceptedBy(row bpf.Frontend) bpf.Accepted {
	switch bpf.DSR(row.Dsr) {
	case bpf.DSRNone:
		return 0
	case bpf.DSROpt:
		return bpf.AcceptTunnels | bpf.AcceptOption
	}
	return bpf.AcceptTunnels
}

// Packets of balancers are decapsulated while a Service uses DSR, or the agent is told so; and after that
// until no flow is left that a balancer sends here. Each step is a change and a GC pass, which finds a
// conntrack entry of such a flow or none.
func TestAcceptedWhileInUse(t *testing.T) {
	const tunnels, both = bpf.AcceptTunnels, bpf.AcceptTunnels | bpf.AcceptOption
	k := smallKernel(t)
	s := newSyncer(t, k)
	owner := ref("web")
	serve := func(kind service.DSR) {
		t.Helper()
		plan := simplePlan(owner, 1, 2)
		plan.Frontends[0].DSR = kind
		mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: plan}})
	}
	always := func(on bool) {
		t.Helper()
		if err := s.AcceptTunnels(on); err != nil {
			t.Fatal(err)
		}
	}
	gc := func(flags bpf.EdgeTCCtFlag, meanwhile func()) {
		t.Helper()
		w := s.beginSlotPass()
		w.note(bpf.Tuple{}, &bpf.ConntrackEntry{Flags: uint8(flags)})
		meanwhile()
		if err := s.endSlotPass(w, func(service.Protocol) time.Duration { return time.Minute }); err != nil {
			t.Fatal(err)
		}
	}
	nothing := func() {}
	for _, step := range []struct {
		name  string
		do    func()
		flow  bpf.EdgeTCCtFlag // that the GC pass finds
		while func()
		want  [2]bpf.Accepted // before and after the GC pass
	}{
		{"a Service without DSR", func() { serve("") }, 0, nothing, [2]bpf.Accepted{0, 0}},
		{"it has IPIP", func() { serve(service.DSRIPIP) }, 0, nothing, [2]bpf.Accepted{tunnels, tunnels}},
		{"it has an option", func() { serve(service.DSROpt) }, 0, nothing, [2]bpf.Accepted{both, both}},
		{"it has Geneve, and a flow continues", func() { serve(service.DSRGeneve) }, bpf.ConntrackDSR | bpf.ConntrackLocal, nothing, [2]bpf.Accepted{both, both}},
		{"no such flow is left", nothing, bpf.ConntrackLocal, nothing, [2]bpf.Accepted{both, tunnels}},
		{"the agent has been restarted", func() { s = newSyncer(t, k) }, 0, nothing, [2]bpf.Accepted{tunnels, tunnels}},
		{"no DSR any more, and replies of a flow continue", func() { serve("") }, bpf.ConntrackDSR | bpf.ConntrackLocal | bpf.ConntrackReply, nothing, [2]bpf.Accepted{tunnels, tunnels}},
		{"DSR again during a GC pass", nothing, 0, func() { serve(service.DSROpt) }, [2]bpf.Accepted{tunnels, both}},
		{"the Service is gone", func() { mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: nil}}) }, 0, nothing, [2]bpf.Accepted{both, 0}},
		{"the agent is told to", func() { always(true) }, 0, nothing, [2]bpf.Accepted{tunnels, tunnels}},
		{"and not to", func() { always(false) }, 0, nothing, [2]bpf.Accepted{tunnels, 0}},
		{"another program has cleared it", func() {
			serve(service.DSROpt)
			k.untracked.rows[0].Accepted = bpf.AcceptTunnels
			if repairs, err := s.Audit(); repairs != 1 || err != nil {
				t.Errorf("audit: %d repairs, %v", repairs, err)
			}
		}, 0, nothing, [2]bpf.Accepted{both, both}},
		{"an earlier agent did not support it", func() { k.untracked.rows[0].Accepted = 0; s = newSyncer(t, k) }, 0, nothing, [2]bpf.Accepted{both, both}},
	} {
		step.do()
		before := k.untracked.rows[0].Accepted
		gc(step.flow, step.while)
		if got := [2]bpf.Accepted{before, k.untracked.rows[0].Accepted}; got != step.want {
			t.Errorf("%s: accepted before and after the GC pass %v, want %v", step.name, got, step.want)
		}
	}
}

// The node's own addresses are in the table of balancers if they are within a network of balancers: they
// are added before the network, and removed when the node loses them.
func TestOwnAddressesAmongBalancers(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	key := func(text string) bpf.NetworkKey { return codec.NetworkKey(netip.MustParsePrefix(text)) }
	s.SetOwn([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")})
	k.after = func() {
		if k.balancers.entries[key("192.0.2.0/24")] == bpf.IsBalancer && k.balancers.entries[key("192.0.2.1/32")] != bpf.IsOwn {
			t.Error("the node's own address counts as a balancer for a moment")
		}
	}
	for range 20 { // the order of a map
		mustApply(t, s, service.Delta{Balancers: networksOf("192.0.2.0/24", "2001:db8::1/128", "198.51.100.7/32")})
		want := map[bpf.NetworkKey]bpf.Balancer{
			key("192.0.2.0/24"): bpf.IsBalancer, key("192.0.2.1/32"): bpf.IsOwn,
			key("2001:db8::1/128"): bpf.IsOwn, key("198.51.100.7/32"): bpf.IsBalancer,
		}
		if !maps.Equal(k.balancers.entries, want) {
			t.Fatalf("the table has %v, want %v", k.balancers.entries, want)
		}
		mustApply(t, s, service.Delta{Balancers: networksOf()})
		if len(k.balancers.entries) != 0 {
			t.Fatalf("not removed: %v", k.balancers.entries)
		}
	}
	mustApply(t, s, service.Delta{Balancers: networksOf("192.0.2.0/24")})
	k.after = nil
	s.SetOwn(nil)
	mustApply(t, s, service.Delta{})
	if _, still := k.balancers.entries[key("192.0.2.1/32")]; still {
		t.Error("an address that the node has lost is still its own")
	}
}
