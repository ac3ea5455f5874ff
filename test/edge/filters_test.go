// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
)

// A rule at egress of netdev drops what the node sends to a backend, but not what the edge sends there: it stays
// served, and a condition quotes the rule until it is gone.
func TestFilterThatTheEdgeBypasses(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.apply("web", objects(w.public("b1"))...)
		node := w.Host("node-a")
		to := addresses(node, nodePort)[0]
		w.wantServed("udp", to, "b1")
		w.wantExit(0)
		nft := func(commands string) {
			if out, err := node.Command(t.Context(), "nft", commands).CombinedOutput(); err != nil {
				t.Fatalf("nft: %v: %s", err, out)
			}
		}
		nft("table netdev t { chain c { type filter hook egress device eth0 priority 0; ip daddr " + w.Host("b1").Addr4.String() + " drop; }; }")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := node.Request(ctx, "udp", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortUDP).String(), "hello"); err == nil {
			t.Error("the rule does not drop what the stack sends")
		}
		w.wantServed("udp", to, "b1")
		w.eventually("status quotes the rule", func() bool {
			text, _ := w.agent.CLI("status")
			return strings.Contains(text, "EdgeBypassesFilter: nftables rule in chain c of table netdev t (handle") && !strings.Contains(text, "All is well")
		})
		nft("delete table netdev t")
		w.eventually("the condition ends with the rule", func() bool {
			text, _ := w.agent.CLI("status")
			return strings.Contains(text, "All is well")
		})
	})
}
