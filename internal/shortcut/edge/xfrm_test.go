// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/util/wakeup"
)

// Policies of both directions between the same ends are one pair; masks have the length of the prefix, in both
// families, ports those of the selector; more policies than fit are one that matches everything.
func TestPairsOf(t *testing.T) {
	between := func(d node.XFRMDirection, from, to string) node.XFRMPolicy {
		return node.XFRMPolicy{Direction: d, Source: netip.MustParsePrefix(from), Destination: netip.MustParsePrefix(to), Block: true}
	}
	got := pairsOf([]node.XFRMPolicy{
		between(node.XFRMIn, "10.1.0.0/20", "10.2.0.1/32"), between(node.XFRMForward, "10.1.0.0/20", "10.2.0.1/32"),
		between(node.XFRMOut, "10.2.0.1/32", "10.1.0.0/20"), between(node.XFRMOut, "fd00::/63", "::/0"),
	})
	if got.Count != 2 {
		t.Fatalf("%d pairs, want 2", got.Count)
	}
	for i, want := range []string{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:f000", "ffff:ffff:ffff:fffe::"} {
		if mask := netip.AddrFrom16(got.Pairs[i].SourceMask.Bytes); mask != netip.MustParseAddr(want) {
			t.Errorf("pair %d: mask %s, want %s", i, mask, want)
		}
	}
	ports := between(node.XFRMOut, "10.1.0.0/20", "10.2.0.1/32")
	ports.Protocol = 17
	ports.SourcePort = node.XFRMPorts{Value: 0x1234, Mask: 0xfff0}
	ports.DestinationPort = node.XFRMPorts{Value: 0x5678, Mask: 0xffff}
	back := between(node.XFRMForward, "10.2.0.1/32", "10.1.0.0/20")
	back.Protocol, back.SourcePort, back.DestinationPort = ports.Protocol, ports.DestinationPort, ports.SourcePort
	one := pairOf(&ports)
	for name, want := range map[string]struct{ got, want uint16 }{
		"source port": {one.SourcePort, 0x1230}, "mask of the source port": {one.SourcePortMask, 0xfff0},
		"destination port": {one.DestinationPort, 0x5678}, "mask of the destination port": {one.DestinationPortMask, 0xffff},
	} {
		if want.got != bpf.NetworkOrder(want.want) {
			t.Errorf("%s: %#04x, want %#04x", name, bpf.NetworkOrder(want.got), want.want)
		}
	}
	if one.Protocol != 17 {
		t.Errorf("protocol %d, want 17", one.Protocol)
	}
	if got := pairsOf([]node.XFRMPolicy{ports, back}); got.Count != 1 {
		t.Errorf("policies of both directions with ports: %d pairs, want 1", got.Count)
	}
	back.SourcePort, back.DestinationPort = back.DestinationPort, back.SourcePort
	if got := pairsOf([]node.XFRMPolicy{ports, back}); got.Count != 2 {
		t.Errorf("policies of both directions with other ports: %d pairs, want 2", got.Count)
	}
	var many []node.XFRMPolicy
	for i := range 200 {
		many = append(many, between(node.XFRMOut, "10.2.0.1/32", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}), 32).String()))
	}
	if got := pairsOf(many); got.Count != 1 || got.Pairs[0] != (bpf.XFRMPair{}) {
		t.Errorf("200 policies: %d pairs, want one that matches everything", got.Count)
	}
	if got := pairsOf(many[:127]); got.Count != 127 {
		t.Errorf("127 policies: %d pairs", got.Count)
	}
}

// Policies that come or go while the flows of others are deleted are written at once.
func TestPoliciesDoNotWaitForFlows(t *testing.T) {
	w := newWorld(t, Config{})
	w.kernel.written, w.kernel.readers = make(chan bpf.XFRMPolicies), make(chan struct{})
	everything := netip.MustParsePrefix("0.0.0.0/0")
	var policies atomic.Pointer[[]node.XFRMPolicy]
	w.policies = func() ([]node.XFRMPolicy, error) { return slices.Clone(*policies.Load()), nil }
	ctx, cancel := context.WithCancel(t.Context())
	changed := wakeup.NewSignal()
	var loop sync.WaitGroup
	loop.Go(func() { w.followPolicies(ctx, changed) })
	for n := range 4 { // the first walk does not end before the last change
		all := []node.XFRMPolicy{}
		if n%2 == 0 {
			all = append(all, node.XFRMPolicy{Direction: node.XFRMForward, Source: everything, Destination: everything, Block: true})
		}
		policies.Store(&all)
		changed.Send()
		select {
		case got := <-w.kernel.written:
			if int(got.Count) != len(all) {
				t.Errorf("change %d: %d pairs are written, want %d", n, got.Count, len(all))
			}
		case <-time.After(time.Minute):
			t.Fatalf("change %d: no policies are written", n)
		}
	}
	close(w.kernel.readers)
	cancel()
	loop.Wait()
}
