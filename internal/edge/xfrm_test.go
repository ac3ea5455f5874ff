// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/node"
)

// Policies of both directions between the same ends are one pair; masks have the length of the prefix, in both
// families; more policies than fit are one that matches everything.
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
	var many []node.XFRMPolicy
	for i := range 200 {
		many = append(many, between(node.XFRMOut, "10.2.0.1/32", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, 0, byte(i)}), 32).String()))
	}
	if got := pairsOf(many); got.Count != 1 || got.Pairs[0] != (datapath.XFRMPair{}) {
		t.Errorf("200 policies: %d pairs, want one that matches everything", got.Count)
	}
	if got := pairsOf(many[:127]); got.Count != 127 {
		t.Errorf("127 policies: %d pairs", got.Count)
	}
}
