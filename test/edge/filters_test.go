// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
)

// A rule at egress of netdev drops what the node sends to a backend, but not what the edge sends there: it stays
// served. A condition quotes this and other rules that the edge bypasses, one for each kind, until they are gone; rules
// that concern none of its packets raise nothing.
func TestFilterThatTheEdgeBypasses(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.apply("web", objects(w.public("b1"))...)
		node := w.Host("node-a")
		to := addresses(node, nodePort)[0]
		w.wantServed("udp", to, "b1")
		w.wantExit(0)
		run := func(commands string) {
			if out, err := node.Command(t.Context(), "sh", "-ec", commands).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", commands, err, out)
			}
		}
		nft := func(commands string) { run("nft '" + commands + "'") }
		// Of other packets, of flows that kube-proxy has translated, and marks that nobody reads.
		nft("table inet others { chain a { type filter hook prerouting priority raw; tcp dport 22 drop; iifname cali* drop; ip daddr 198.51.100.0/24 drop; meta mark set mark or 0x40; }; " +
			"chain b { type filter hook forward priority 0; policy drop; ct state { established, related } accept; ct status dnat accept; }; }")
		b1 := w.Host("b1").Addr4.String()
		nft("table netdev t { chain c { type filter hook egress device eth0 priority 0; ip daddr " + b1 + " drop; }; }")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := node.Request(ctx, "udp", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortUDP).String(), "hello"); err == nil {
			t.Error("the rule does not drop what the stack sends")
		}
		nft("delete table netdev t")
		for _, filter := range []struct{ do, undo, want string }{
			{"nft 'table netdev t { chain c { type filter hook egress device eth0 priority 0; ip daddr " + b1 + " drop; }; }'", "nft delete table netdev t",
				"nftables rule in chain c of table netdev t (handle 2): drop; packets that the edge forwards by eth0 do not meet it (egress of netdev)"},
			{"for n in 1 2 3 4 5; do iptables-nft -t raw -A PREROUTING -s 203.0.113.$n -j DROP; done", "nft delete table ip raw",
				"nftables rule in chain PREROUTING of table ip raw (handle 2): drop, nftables rule in chain PREROUTING of table ip raw (handle 3): drop, nftables rule in chain PREROUTING of table ip raw (handle 4): drop, and 2 more; " +
					"packets that the edge forwards by eth0 do not meet them (prerouting)"},
			{fmt.Sprintf("iptables-legacy -A FORWARD -p udp --dport 9 -j DROP; iptables-legacy -A FORWARD -p udp -d %s --dport %d -j REJECT", b1, lab.PortUDP), "iptables-legacy -F FORWARD",
				"iptables-legacy rule in chain FORWARD of table filter (rule 2): REJECT; packets that the edge forwards by eth0 do not meet it (forward)"},
			{fmt.Sprintf("nft 'table ip t { chain c { type nat hook prerouting priority dstnat; udp dport %d redirect to :9; }; }'", nodePort), "nft delete table ip t",
				"nftables rule in chain c of table ip t (handle 2): redirect; packets that the edge forwards by eth0 do not meet it (nat prerouting)"},
		} {
			run(filter.do)
			begins := "1 warning.\nwarning  EdgeBypassesFilter: " + filter.want + "\n"
			w.eventually("status begins with "+begins, func() bool {
				text, _ := w.agent.CLI("status")
				return strings.HasPrefix(text, begins)
			})
			w.wantExit(4)
			w.wantServed("udp", to, "b1")
			run(filter.undo)
			w.eventually("the condition ends with the rule", func() bool {
				text, err := w.agent.CLI("status")
				return err == nil && strings.HasPrefix(text, "All is well.\n")
			})
		}
		// Packets to a backend on this node are not translated for conntrack, and meet the policy of forward.
		w.apply("web", objects(w.public("a1"))...)
		w.loses(to)
		nft("insert rule inet others b ip daddr " + w.Host("a1").Addr4.String() + " accept")
		w.wantServed("udp", to, "a1")
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
