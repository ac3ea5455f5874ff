// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/inspect"
)

// xfrmCases are XFRM policies of node-a, and whether they concern the flow of the client to a backend on another node.
var xfrmCases = []struct {
	policy  string
	concern bool
}{
	{"dir in src 192.168.200.1/32 dst 192.168.100.1/32 tmpl proto esp mode transport", true},
	{"dir fwd src 192.168.200.0/24 dst 0.0.0.0/0 proto udp dport 30080 tmpl proto esp mode tunnel", true},
	{"dir fwd src 192.168.200.0/24 dst 0.0.0.0/0 proto udp dport 30081 action block", false},
	{"dir fwd src 192.168.200.0/24 dst 0.0.0.0/0 proto tcp action block", false},
	{"dir out src 0.0.0.0/0 dst 192.168.200.1/32 action block", true},
	{"dir out src 192.168.100.1/32 dst 10.10.2.0/24 tmpl proto esp mode transport", true}, // after SNAT
	{"dir out src 192.168.200.1/32 dst 10.10.2.11/32 tmpl proto esp mode tunnel", true},   // before SNAT
	{"dir out src 192.168.100.1/32 dst 10.10.3.0/24 tmpl proto esp mode transport", false},
	{"dir out src 0.0.0.0/0 dst 0.0.0.0/0 mark 7 tmpl proto esp mode tunnel", false},
	{"dir out src 0.0.0.0/0 dst 0.0.0.0/0 if_id 7 tmpl proto esp mode tunnel", false},
	{"dir fwd src 192.168.200.0/24 dst 0.0.0.0/0 priority 7", false},
	{"dir fwd src fd00:200::/64 dst ::/0 action block", false},
}

// XFRM policies: the edge drops the first packet of a flow that a policy has encrypted, blocks, or accepts only
// encrypted, before or after translation, and the packets of such flows that began before the policy; status says so.
// It serves all other flows, and these again when the policy is gone, also one that was there before the agent.
func TestXFRMPolicies(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := newWorld(t, "--edge-mode="+mode)
		w.runOn("node-a", "ip", "xfrm", "policy", "setdefault", "fwd", "block")
		w.must(w.agent.Start())
		w.apply("web", objects(w.public("b1"))...)
		to := netip.AddrPortFrom(w.Host("node-a").Addr4, nodePort)
		w.wantWithheld("XFRM default policy dir fwd: block", to, true)
		w.runOn("node-a", "ip", "xfrm", "policy", "setdefault", "fwd", "accept")
		w.wantWithheld("", to, false)
		for _, c := range xfrmCases {
			existing := w.open("udp", to)
			if pod := w.served(existing); pod != "b1" {
				t.Fatalf("the flow before the policy is served by %q", pod)
			}
			w.runOn("node-a", append([]string{"ip", "xfrm", "policy", "add"}, strings.Fields(c.policy)...)...)
			words := strings.Fields(c.policy)
			message := "XFRM policy " + strings.Join(words[:2], " ")
			if strings.Contains(c.policy, "mark") || strings.Contains(c.policy, "if_id") || strings.Contains(c.policy, "priority") {
				message = ""
			}
			w.wantWithheld(message, to, c.concern)
			w.wantEnded(message, existing, c.concern)
			w.runOn("node-a", "ip", "xfrm", "policy", "flush")
			w.wantWithheld("", to, false)
		}
	})
}

// wantWithheld waits for the condition with a message, or for none, and checks whether a new flow of the client is
// dropped for XFRM policies.
func (w *world) wantWithheld(message string, to netip.AddrPort, concern bool) {
	w.t.Helper()
	w.must(w.agent.WaitFor("the condition about XFRM policies: "+message, func(s *inspect.Status) bool {
		for _, p := range s.Conditions {
			if p.Code == "EdgeWithheldByXFRM" {
				return message != "" && strings.Contains(p.Message, message)
			}
		}
		return message == ""
	}))
	if !concern {
		if answer, err := w.ask("udp", to); err != nil || answer.Pod != "b1" {
			w.t.Errorf("%q: %+v, %v; want an answer of b1", message, answer, err)
		}
		return
	}
	before := w.status().Edge.Counters
	w.forge(w.Host("client").Addr4, to)
	w.eventually("a packet is counted", func() bool {
		now := w.status().Edge.Counters
		if now["new"] > before["new"] {
			w.t.Fatalf("%q: the flow was served", message)
		}
		return now["drop_xfrm"] > before["drop_xfrm"]
	})
}

// wantEnded checks that packets of a flow that began before a policy are dropped if the policy concerns them.
func (w *world) wantEnded(policy string, existing net.Conn, concern bool) {
	w.t.Helper()
	if !concern {
		if pod := w.served(existing); pod != "b1" {
			w.t.Errorf("%q: the flow that it does not concern is served by %q", policy, pod)
		}
		return
	}
	w.eventually("a packet of the flow is dropped for "+policy, func() bool {
		before := w.status().Edge.Counters["drop_xfrm"]
		_, err := existing.Write([]byte("hello"))
		w.must(err)
		time.Sleep(20 * time.Millisecond)
		return w.status().Edge.Counters["drop_xfrm"] > before
	})
}
