// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	"beeline.io/beeline/test/lab"
)

// P1, P2: packets between pods of one node, and of two nodes, skip the stack in both directions, with the addresses of
// the pods. The kernel's conntrack sees none of them, so nothing is invalid.
func TestPodsTalkPastTheStack(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	for _, between := range [][2]string{{"a1", "a2"}, {"a1", "b1"}, {"b2", "a3"}} {
		w.wantPings(between[0], between[1])
		for i, network := range []string{"tcp", "udp"} {
			port := []uint16{lab.PortTCP, lab.PortUDP}[i]
			for family, to := range addresses(w.Host(between[1]), port) {
				answer, err := w.ask(between[0], network, to)
				w.must(err)
				if from := addresses(w.Host(between[0]), 0)[family].Addr(); answer.Pod != between[1] || answer.Peer.Addr() != from {
					t.Errorf("%s by %s to %s: %s saw %s, want %s", between[0], network, to, answer.Pod, answer.Peer, from)
				}
			}
		}
	}
	for host := range w.agents {
		s := w.pods(host)
		t.Logf("%s: %v", host, s.Packets)
		for _, path := range []string{"path_in", "path_out"} {
			if s.Packets[path] == 0 {
				t.Errorf("%s: no packet took %s", host, path)
			}
		}
		if s.Packets["stack_kernel_flow"] > 0 || s.Packets["stack_route"] > 0 {
			t.Errorf("%s: packets between pods took the stack: %v", host, s.Packets)
		}
		if n := w.invalid(host); n > 0 {
			t.Errorf("%s dropped %d packets as invalid", host, n)
		}
	}
	if w.pods("node-a").Packets["path_local"] == 0 {
		t.Error("no packet between two pods of node-a took the shortcut")
	}
}

// wantPings has a pod ping another one in both families, by the shortcut of node-a in both directions.
func (w *world) wantPings(from, to string) {
	w.t.Helper()
	there, back := "path_out", "path_in"
	switch {
	case from[0] == to[0]:
		there, back = "path_local", "path_local"
	case from[0] != 'a':
		there, back = back, there
	}
	for _, addr := range addresses(w.Host(to), 0) {
		before := w.pods("node-a").Packets
		w.pings(from, addr.Addr())
		after := w.pods("node-a").Packets
		if after[there] == before[there] || after[back] == before[back] || there == back && after[there] < before[there]+2 {
			w.t.Errorf("%s pings %s: before %v, after %v", from, addr.Addr(), before, after)
		}
	}
}
