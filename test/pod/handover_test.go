// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	shortcut "beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

// longestStall is how long an open connection may stand still on a busy machine when its path changes. What is not
// handed over stands still for good.
const longestStall = 2 * time.Second

// denyIngress is what a NetworkPolicy without rules does to a1: connections that are open go on, others to it are
// denied.
const denyIngress = `table inet np {
	chain forward {
		type filter hook forward priority 1; policy accept;
		ct state established,related accept
		ct state invalid drop
		ip daddr 10.10.1.11 drop
		ip6 daddr fd00:10:1::11 drop
	}
}`

// A policy that allows open connections does not end or stall them, when its pod leaves the shortcut and when it
// returns: whoever opened them and whoever sends, also if conntrack picks up no connections and drops what is invalid.
// New connections are denied.
func TestPolicyKeepsConnections(t *testing.T) {
	for _, layout := range []lab.PodLayout{lab.PodsRouted, lab.PodsBridge} {
		t.Run(string(layout), func(t *testing.T) {
			w := startWorld(t, lab.Shape{Pods: layout})
			w.noPickup()
			flows := w.openFlows()
			w.wantOnShortcut(flows)

			w.rules("node-a", denyIngress)
			w.awaitWithheld("a1")
			w.wantAlive(flows, "withheld")
			w.wantDenied("b1", "a1")
			w.wantOnStack(flows)

			w.run("node-a", "nft", "delete", "table", "inet", "np")
			w.awaitFilters(nil)
			w.wantAlive(flows, "returned")
			w.wantOnShortcut(flows)
			w.finishFlows(flows)
			if n := w.invalid("node-a") + w.invalid("node-b"); n > 0 {
				t.Errorf("%d packets were dropped as invalid", n)
			}
		})
	}
}

// Flows that were handed over return although the agent has restarted meanwhile.
func TestFlowsReturnAfterRestart(t *testing.T) {
	w := startWorld(t, lab.Shape{})
	w.noPickup()
	flows := w.openFlows()
	w.wantOnShortcut(flows)
	w.rules("node-a", denyIngress)
	w.awaitWithheld("a1")
	w.wantOnStack(flows)
	w.must(w.agents["node-a"].Stop())
	w.must(w.agents["node-a"].Start())
	w.awaitWithheld("a1")
	w.wantAlive(flows, "after the restart")
	w.wantOnStack(flows)
	w.run("node-a", "nft", "delete", "table", "inet", "np")
	w.awaitFilters(nil)
	w.wantAlive(flows, "returned")
	w.wantOnShortcut(flows)
	w.finishFlows(flows)
	if n := w.invalid("node-a") + w.invalid("node-b"); n > 0 {
		t.Errorf("%d packets were dropped as invalid", n)
	}
}

// The same for connections of clients outside through a Service, and of a pod without socket hooks: with an agent,
// without one, and when the shortcut is switched off.
func TestPolicyKeepsServiceFlows(t *testing.T) {
	for _, test := range []struct {
		name string
		path func(w *world)
	}{
		{"withheld", func(w *world) {
			w.rules("node-a", denyIngress)
			w.awaitWithheld("a1")
		}},
		{"agent killed", func(w *world) {
			w.must(w.agents["node-a"].Kill())
			w.rules("node-a", denyIngress)
			time.Sleep(filterAge + soon)
		}},
		{"cleanup", func(w *world) {
			w.must(w.agents["node-a"].Stop())
			w.rules("node-a", denyIngress)
			w.must(w.endLease())
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := startWorld(t, lab.Shape{}, "--pod-filter-age="+filterAge.String())
			w.optOut("a3")
			w.apply("web", w.web("a1")...)
			w.noPickup()
			asks := w.openToService("client", "a3")
			w.wantAnswers(asks, "on the shortcut")
			test.path(w)
			w.wantAnswers(asks, "afterwards")
			for _, to := range addresses(w.Host("node-a"), nodePort) {
				for _, network := range []string{"tcp", "udp"} {
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					if answer, err := w.Host("client").Request(ctx, network, to.String(), "hello"); err == nil {
						t.Errorf("a new %s connection to %s is answered by %s", network, to, answer.Pod)
					}
					cancel()
				}
			}
		})
	}
}

// endLease does what cleanup does before it detaches the programs: afterwards the edge would serve nobody.
func (w *world) endLease() error {
	return w.Host("node-a").Do(func() error { return shortcut.End(w.agents["node-a"].BPFFS()) })
}

// openToService opens connections to a Service at node-a.
func (w *world) openToService(from ...string) map[string]net.Conn {
	w.t.Helper()
	all := map[string]net.Conn{}
	for _, host := range from {
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			for _, network := range []string{"tcp", "udp"} {
				conn, err := w.Host(host).Dial(w.t.Context(), network, to.String())
				w.must(err)
				w.t.Cleanup(func() { conn.Close() })
				all[fmt.Sprintf("%s of %s to %s", network, host, to)] = conn
			}
		}
	}
	return all
}

func (w *world) wantAnswers(all map[string]net.Conn, when string) {
	w.t.Helper()
	for name, conn := range all {
		ctx, cancel := context.WithTimeout(w.t.Context(), longestStall)
		if _, err := lab.Ask(ctx, conn, "hello"); err != nil {
			w.t.Errorf("%s: %s: %v", when, name, err)
		}
		cancel()
	}
}

// The same without an agent: a policy has its effect on new connections when the lease has ended, and open ones go on,
// with ICMP errors about them.
func TestPolicyKeepsConnectionsWithoutAgent(t *testing.T) {
	for _, test := range []struct {
		name        string
		end, resume func(w *world)
	}{
		{"agent killed", func(w *world) { w.must(w.agents["node-a"].Kill()) }, func(w *world) { w.must(w.agents["node-a"].Start()) }},
		{"agent stopped", func(w *world) { w.signal("node-a", syscall.SIGSTOP) }, func(w *world) { w.signal("node-a", syscall.SIGCONT) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := startWorld(t, lab.Shape{}, "--pod-filter-age="+filterAge.String())
			w.noPickup()
			single := w.openFlow("a1", "a2", "udp", 0, true, idle)
			flows := w.openFlows()
			test.end(w)
			w.rules("node-a", denyIngress)
			time.Sleep(filterAge + soon)
			w.wantDenied("b1", "a1")
			w.wantAlive(flows, "without an agent")
			single.far.Close()
			w.eventually("an ICMP error about an open flow arrives", func() bool {
				_, err := single.near.Write([]byte("hello"))
				return errors.Is(err, unix.ECONNREFUSED)
			})

			test.resume(w)
			w.awaitWithheld("a1")
			w.wantAlive(flows, "withheld")
			w.wantDenied("b1", "a1")
			w.wantOnStack(flows)
			w.run("node-a", "nft", "delete", "table", "inet", "np")
			w.awaitFilters(nil)
			w.wantAlive(flows, "returned")
			w.wantOnShortcut(flows)
			w.finishFlows(flows)
		})
	}
}

// The same when the shortcut is switched off: by cleanup, by other patterns of devices, and by --pod-devices=off.
func TestSwitchingOffKeepsConnections(t *testing.T) {
	for _, test := range []struct {
		name string
		off  func(w *world)
	}{
		{"cleanup", func(w *world) {
			_, err := w.agents["node-a"].CLI("cleanup")
			w.must(err)
		}},
		{"other devices", func(w *world) { w.startWith("--pod-devices=none*") }},
		{"off", func(w *world) { w.startWith("--pod-devices=off") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := startWorld(t, lab.Shape{})
			w.noPickup()
			flows := w.openFlows()
			w.wantOnShortcut(flows)
			w.must(w.agents["node-a"].Stop())
			w.rules("node-a", denyIngress)
			test.off(w)
			w.wantAlive(flows, "switched off")
			w.wantDenied("b1", "a1")
			w.finishFlows(flows)
		})
	}
}

// startWith starts node-a's agent with another --pod-devices.
func (w *world) startWith(devices string) {
	w.t.Helper()
	a := w.agents["node-a"]
	a.Flags = []string{devices}
	w.must(a.Start())
}

// noPickup has conntrack of both nodes find connections invalid whose beginning it has not seen.
func (w *world) noPickup() {
	w.t.Helper()
	for host := range w.agents {
		w.run(host, "sysctl", "-q", "-w", "net.netfilter.nf_conntrack_tcp_loose=0")
	}
}

// awaitWithheld waits until a pod takes the stack because of a filter.
func (w *world) awaitWithheld(pod string) {
	w.t.Helper()
	w.eventually(pod+" is withheld", func() bool {
		for _, d := range w.pods("node-a").Devices {
			if d.Name == pod && !d.Shortcut {
				return true
			}
		}
		return false
	})
}

// wantDenied checks that a new connection is denied.
func (w *world) wantDenied(from, to string) {
	w.t.Helper()
	for network, port := range map[string]uint16{"tcp": lab.PortTCP, "udp": lab.PortUDP} {
		for _, addr := range addresses(w.Host(to), port) {
			ctx, cancel := context.WithTimeout(w.t.Context(), 300*time.Millisecond)
			if answer, err := w.Host(from).Request(ctx, network, addr.String(), "hello"); err == nil {
				w.t.Errorf("a new %s connection of %s to %s is answered by %s", network, from, addr, answer.Pod)
			}
			cancel()
		}
	}
}
