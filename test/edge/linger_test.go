// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/test/lab"
)

// roleOf is the edge's role at a device, or "" if it is not there.
func roleOf(s *api.Status, device string) string {
	for _, d := range s.Edge.Devices {
		if d.Name == device {
			return d.Role
		}
	}
	return ""
}

// awaitRole waits until the edge has this role at a1's device.
func (w *world) awaitRole(role string) {
	w.t.Helper()
	w.must(w.agent.WaitFor("at the pod's device for "+role, func(s *api.Status) bool { return roleOf(s, "a1") == role }))
}

// hold opens connections of a1 to an address until each of these pods has one.
func (w *world) hold(to netip.AddrPort, pods ...string) map[string]net.Conn {
	w.t.Helper()
	held := map[string]net.Conn{}
	for range 5 * tries {
		if len(held) == len(pods) {
			break
		}
		conn := w.openAs("a1", "tcp", to)
		if pod := w.served(conn); held[pod] == nil {
			held[pod] = conn
		} else {
			conn.Close()
		}
	}
	for _, pod := range pods {
		if held[pod] == nil {
			w.t.Fatalf("%s: no connection to %s, but to %d others", to, pod, len(held))
		}
	}
	return held
}

// R30: connections that a pod has opened to its node's address continue when nothing requires the edge at the
// pod's device any more: its annotation, or a Service's source ranges, were removed. They survive the next
// agent, too. The edge leaves the device when they have ended.
func TestConnectionsOfPodsOutliveWhatAskedForThem(t *testing.T) {
	t.Parallel()
	backends := []string{"a1", "a2", "b1", "node-a"}
	for name, c := range map[string]struct {
		mode      string
		ask, lift func(w *world)
	}{
		"annotation": {
			mode: "xdp",
			ask: func(w *world) {
				w.optOut("a1")
				w.apply("web", objects(w.public(backends...))...)
			},
			lift: func(w *world) { w.must(w.folder.Remove("opted-out")); w.must(w.folder.Await(w.agent)) },
		},
		"source ranges": {
			mode: "tc",
			ask:  func(w *world) { w.applyRestricted(true, backends...) },
			lift: func(w *world) { w.applyRestricted(false, backends...) },
		},
	} {
		t.Run(name+", "+c.mode, func(t *testing.T) {
			w := startWorld(t, "--edge-mode="+c.mode, "--conntrack-udp-timeout-stream=1s")
			w.must(w.Host("node-a").StartServer(lab.ServerOptions{}))
			c.ask(w)
			w.awaitRole("pods")
			port := uint16(nodePort)
			if name == "source ranges" {
				port = 80
			}
			var all []map[string]net.Conn
			for _, to := range addresses(w.Host("node-a"), port) {
				all = append(all, w.hold(to, backends...))
			}
			wantServed := func(when string) {
				t.Helper()
				for _, held := range all {
					for pod, conn := range held {
						if got := w.served(conn); got != pod {
							t.Errorf("%s, the connection to %s is served by %s", when, pod, got)
						}
					}
				}
			}
			wantServed("at first")
			c.lift(w)
			w.awaitRole("flows")
			swept := w.status().Edge.Conntrack.LastGC
			for range 2 {
				w.must(w.agent.WaitFor("a GC pass", func(s *api.Status) bool { return s.Edge.Conntrack.LastGC.After(swept) }))
				swept = w.status().Edge.Conntrack.LastGC
				wantServed("after a GC pass")
			}
			w.must(w.agent.Stop())
			w.must(w.agent.Start())
			wantServed("with another agent")
			w.must(w.agent.WaitFor("a GC pass", func(s *api.Status) bool { return s.Edge.Conntrack.LastGC.After(swept) }))
			wantServed("after its sweep")
			w.awaitRole("flows")
			for _, held := range all {
				for _, conn := range held {
					conn.Close()
				}
			}
			w.awaitRole("")
			if flows := w.flows(); slices.ContainsFunc(flows, func(f conntrack.Flow) bool { return f.Client.Addr() == w.Host("a1").Addr4 && f.State == "established" }) {
				t.Errorf("the edge has left its device despite flows: %+v", flows)
			}
		})
	}
}

// R30: so do connections of clients at a device that --devices no longer names, even if XDP served them.
func TestConnectionsOfClientsOutliveTheirDevice(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.apply("web", objects(w.public("a1"))...)
		var conns []net.Conn
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			conns = append(conns, w.open("tcp", to))
		}
		wantServed := func(when string) {
			t.Helper()
			for _, conn := range conns {
				if pod := w.served(conn); pod != "a1" {
					t.Errorf("%s %s is served by %s", when, conn.LocalAddr(), pod)
				}
			}
		}
		wantServed("with the device")
		w.must(w.agent.Stop())
		w.agent.Flags = []string{"--edge-mode=" + mode, "--devices=a2"}
		w.must(w.agent.Start())
		for swept := w.status().Edge.Conntrack.LastGC; ; swept = w.status().Edge.Conntrack.LastGC {
			wantServed("without it")
			if role := roleOf(w.status(), "eth0"); role != "flows" {
				t.Errorf("the edge is at eth0 for %q, want flows", role)
			}
			if !swept.IsZero() {
				break
			}
			w.must(w.agent.WaitFor("a GC pass", func(s *api.Status) bool { return s.Edge.Conntrack.LastGC.After(swept) }))
		}
		for _, conn := range conns {
			conn.Close()
		}
		w.must(w.agent.WaitFor("without the edge at eth0", func(s *api.Status) bool { return roleOf(s, "eth0") == "" }))
	})
}

// applyRestricted applies a Service of type LoadBalancer at node-a's own addresses, with source ranges that
// admit its pods, or without.
func (w *world) applyRestricted(restricted bool, pods ...string) {
	w.t.Helper()
	s, slices := w.public(pods...)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	own, a1 := w.Host("node-a"), w.Host("a1")
	for _, ip := range []netip.Addr{own.Addr4, own.Addr6} {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip.String()})
	}
	if restricted {
		s.Spec.LoadBalancerSourceRanges = []string{netip.PrefixFrom(a1.Addr4, 32).String(), netip.PrefixFrom(a1.Addr6, 128).String()}
	}
	w.apply("web", objects(s, slices)...)
}
