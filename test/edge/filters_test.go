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

// Rules of kube-proxy beside the agent, or what it has left, are a condition until they are gone.
func TestOtherProxyIsNamed(t *testing.T) {
	w := startWorld(t)
	w.wantExit(0)
	shell := func(command string) {
		if out, err := w.Host("node-a").Command(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	for _, left := range []struct{ name, do, undo, want string }{
		{"nftables mode", "nft 'table ip kube-proxy { chain services { }; }'", "nft delete table ip kube-proxy", "table ip kube-proxy"},
		{"iptables mode", "iptables-nft -t nat -N KUBE-SVC-ABC", "iptables-nft -t nat -X KUBE-SVC-ABC", "chains KUBE-* of table ip nat"},
		{"IPVS mode", "ip link add kube-ipvs0 type bridge", "ip link del kube-ipvs0", "device kube-ipvs0"},
	} {
		shell(left.do)
		w.eventually(left.name+": status names it", func() bool {
			text, err := w.agent.CLI("status")
			return err != nil && strings.Contains(text, "OtherProxy: another program has rules for Services: "+left.want+"\n")
		})
		w.wantExit(4)
		shell(left.undo)
		w.eventually(left.name+": the condition ends", func() bool {
			text, err := w.agent.CLI("status")
			return err == nil && strings.Contains(text, "All is well")
		})
	}
}
