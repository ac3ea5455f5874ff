// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
)

// xfrm runs `ip xfrm` on a host.
func (w *world) xfrm(host, arguments string) {
	w.t.Helper()
	w.run(host, append([]string{"ip", "xfrm"}, strings.Fields(arguments)...)...)
}

// XFRM policies have their effect on packets of pods that took the shortcut: those that block, and those that require
// ESP, without which the stack drops packets. Pods that no policy concerns keep the shortcut. Policies that allow, that
// match other networks, marks or the packets of the node itself concern none.
func TestXFRMPolicies(t *testing.T) {
	w := newWorld(t, lab.Shape{}, "--pod-devices=auto")
	agent := w.agents["node-a"]
	for _, harmless := range []string{
		"dir fwd src 10.10.0.0/16 dst 10.10.0.0/16 priority 1000",
		"dir out src 10.10.0.0/16 dst 10.99.0.0/16 tmpl src 192.0.2.1 dst 192.0.2.2 proto esp mode tunnel",
		"dir fwd src 10.10.0.0/16 dst 10.10.0.0/16 mark 7 action block",
		"dir in src 10.10.0.0/16 dst 10.10.0.0/16 action block",
		"dir out src 10.10.0.0/16 dst 10.10.0.0/16 if_id 9 tmpl proto esp mode tunnel",
	} {
		w.xfrm("node-a", "policy add "+harmless)
	}
	w.must(agent.Start())
	w.awaitPods("node-a", "a1", "a2", "a3")
	w.awaitFilters(nil)
	w.wantDatagrams(true)

	block := "dir fwd src 10.10.1.11/32 dst 10.10.1.12/32 proto udp"
	w.endsFlow(func() { w.xfrm("node-a", "policy add "+block+" action block") })
	filter := []string{"XFRM policy dir fwd src 10.10.1.11/32 dst 10.10.1.12/32 proto 17: block"}
	w.awaitFilters(map[string][]string{"a1": filter, "a2": filter})
	w.wantDatagrams(false)
	text, err := agent.CLI("status", "-v")
	if err != nil || !strings.Contains(text, "PodShortcutWithheld: a1") || !strings.Contains(text, filter[0]) {
		t.Errorf("status -v: %v:\n%s", err, text)
	}
	w.xfrm("node-a", "policy delete "+block)
	w.awaitFilters(nil)
	w.wantDatagrams(true)

	w.endsFlow(func() {
		w.xfrm("node-a", "policy add dir out src 10.10.0.0/16 dst 10.10.1.12/32 tmpl proto esp mode transport")
	})
	filter = []string{"XFRM policy dir out src 10.10.0.0/16 dst 10.10.1.12/32: esp transport"}
	w.awaitFilters(map[string][]string{"a1": filter, "a2": filter, "a3": filter})
	w.wantDatagrams(false)

	// One that comes while no agent runs.
	w.xfrm("node-a", "policy flush")
	w.awaitFilters(nil)
	w.must(agent.Stop())
	w.xfrm("node-a", "policy setdefault fwd block")
	w.must(agent.Start())
	filter = []string{"XFRM default policy dir fwd: block"}
	w.awaitFilters(map[string][]string{"a1": filter, "a2": filter, "a3": filter})
	w.wantDatagrams(false)
	w.xfrm("node-a", "policy setdefault fwd accept")
	w.awaitFilters(nil)
	w.wantDatagrams(true)
	if conn, err := w.Host("a1").Dial(t.Context(), "tcp", netip.AddrPortFrom(w.Host("a2").Addr4, lab.PortTCP).String()); err != nil {
		t.Error(fmt.Errorf("after all policies are gone: %w", err))
	} else {
		conn.Close()
	}
}
