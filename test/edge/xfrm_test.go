// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
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
	{"dir fwd src ::/0 dst ::/0 action block", false}, // IPv4 addresses are mapped to IPv6 ones in the programs
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
		w.must(w.agent.WaitFor("a note before packets come", func(s *api.Status) bool { return s.Conditions.HasCode("EdgeWithheldByXFRM") }))
		w.wantExit(0)
		w.wantWithheld("XFRM default policy dir fwd: block", to, true)
		w.wantExit(4, "EdgeDropsByXFRM", "XFRM default policy dir fwd: block")
		w.runOn("node-a", "ip", "xfrm", "policy", "setdefault", "fwd", "accept")
		w.wantWithheld("", to, false)
		w.wantExit(0)
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
	w.must(w.agent.WaitFor("the condition about XFRM policies: "+message, func(s *api.Status) bool {
		for _, p := range s.Conditions {
			if p.Code == "EdgeWithheldByXFRM" || p.Code == "EdgeDropsByXFRM" {
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

// With DSR, policies also concern flows that have no conntrack entry, and outer headers, at the balancer and at the
// backend's node: packets of flows that began before the policy are dropped, too.
func TestXFRMPoliciesWithDSR(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		flags := []string{"--edge-mode=" + mode, "--dsr=geneve", "--algorithm=maglev", "--maglev-table-size=251"}
		w := newWorld(t, flags...)
		w.agentOn("node-b", flags...)
		w.startAgents()
		w.lead()
		w.apply("web", objects(w.everywhere("web", 1, "b1"))...)
		to := w.address("ExternalIP", 1, 0)
		w.eventually("connections have no entries", func() bool {
			before := w.status().Edge.Counters["new"]
			w.served(w.open("tcp", to))
			return w.status().Edge.Counters["new"] == before
		})
		a, b := w.Host("node-a").Addr4.String(), w.Host("node-b").Addr4.String()
		for _, c := range []struct {
			host, policy string
			concern      []string // networks
		}{
			{"node-a", "dir fwd src 192.168.200.0/24 dst 0.0.0.0/0 proto tcp action block", []string{"tcp"}},
			{"node-a", "dir out src 192.168.200.0/24 dst 10.10.2.0/24 proto tcp tmpl proto esp mode tunnel", []string{"tcp"}},
			{"node-a", "dir out src " + a + " dst " + b + " tmpl proto esp mode transport", []string{"tcp", "udp"}},
			{"node-b", "dir in src " + a + " dst " + b + " tmpl proto esp mode transport", []string{"tcp", "udp"}},
			{"node-b", "dir in src " + a + " dst " + b + " proto tcp tmpl proto esp mode transport", nil},
		} {
			existing := map[string]net.Conn{}
			for _, network := range []string{"tcp", "udp"} {
				existing[network] = w.open(network, to)
				w.served(existing[network])
			}
			w.runOn(c.host, append([]string{"ip", "xfrm", "policy", "add"}, strings.Fields(c.policy)...)...)
			agent := w.agents[c.host]
			w.must(agent.WaitFor("the condition about XFRM policies", func(s *api.Status) bool {
				return s.Conditions.HasCode("EdgeWithheldByXFRM") || s.Conditions.HasCode("EdgeDropsByXFRM")
			}))
			for network, conn := range existing {
				if !slices.Contains(c.concern, network) {
					if pod := w.served(conn); pod != "b1" {
						t.Errorf("%s: %s is served by %q", c.policy, network, pod)
					}
					continue
				}
				w.eventually(network+" is dropped for "+c.policy, func() bool {
					s, err := w.statusOf(agent)
					w.must(err)
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					defer cancel()
					if answer, err := lab.Ask(ctx, conn, "hello"); err == nil {
						t.Logf("%s: %s is still served by %s", c.policy, network, answer.Pod)
						return false
					}
					now, err := w.statusOf(agent)
					w.must(err)
					return now.Edge.Counters["drop_xfrm"] > s.Edge.Counters["drop_xfrm"]
				})
			}
			w.runOn(c.host, "ip", "xfrm", "policy", "flush")
			for _, network := range []string{"tcp", "udp"} {
				w.eventually(network+" is served again after "+c.policy, func() bool {
					answer, err := w.ask(network, to)
					return err == nil && answer.Pod == "b1"
				})
			}
		}
	})
}
