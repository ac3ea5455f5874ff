// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	shortcut "beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

// filterAge is the shortest --pod-filter-age.
const filterAge = 10 * time.Second

// Without an agent, or with one that hangs, a rule has its effect on new flows --pod-filter-age after the last search
// at the latest. Restarts do not end the shortcut, and a new search begins it again.
func TestLeaseEnds(t *testing.T) {
	for _, test := range []struct {
		name        string
		end, resume func(w *world)
	}{
		{"agent killed", func(w *world) { w.must(w.agents["node-a"].Kill()) }, func(w *world) { w.must(w.agents["node-a"].Start()) }},
		{"agent stopped", func(w *world) { w.signal("node-a", syscall.SIGSTOP) }, func(w *world) { w.signal("node-a", syscall.SIGCONT) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := startWorld(t, lab.Shape{}, "--pod-filter-age="+filterAge.String())
			for range 2 {
				w.eventually("the shortcut is there", w.onShortcut) // a busy node may withhold all pods for a while
				w.must(w.agents["node-a"].Kill())
				w.wantNewFlows(true)
				w.must(w.agents["node-a"].Start())
				w.awaitPods("node-a", "a1", "a2", "a3")
			}
			w.eventually("the shortcut is there", w.onShortcut)

			test.end(w)
			w.wantNewFlows(true)
			w.rules("node-a", fmt.Sprintf(policy, lab.PortUDP))
			w.endsSoon(filterAge)
			w.wantNewFlows(false)

			test.resume(w)
			w.awaitFilters(map[string][]string{"a1": {"nftables rule in chain forward of table inet np: drop"}})
			w.run("node-a", "nft", "delete", "table", "inet", "np")
			w.awaitFilters(nil)
			w.eventually("the shortcut is back", w.onShortcut)
		})
	}
}

// signal sends a signal to a node's agent. It continues before the test ends.
func (w *world) signal(host string, s syscall.Signal) {
	w.t.Helper()
	pid := w.agents[host].PID()
	w.must(syscall.Kill(pid, s))
	w.t.Cleanup(func() { syscall.Kill(pid, syscall.SIGCONT) }) // fails if it has ended
}

// endsSoon asks a2 from a1 by new flows until a policy denies them.
func (w *world) endsSoon(bound time.Duration) {
	w.t.Helper()
	begin, last := time.Now(), time.Now()
	for time.Since(last) < 2*time.Second && time.Since(begin) < 2*bound+soon*load {
		ctx, cancel := context.WithTimeout(w.t.Context(), 200*time.Millisecond)
		if _, err := w.Host("a1").Request(ctx, "udp", netip.AddrPortFrom(w.Host("a2").Addr4, lab.PortUDP).String(), "hello"); err == nil {
			last = time.Now()
		}
		cancel()
		time.Sleep(20 * time.Millisecond)
	}
	w.t.Logf("new flows ended after %v", last.Sub(begin))
	if last.Sub(begin) > bound+2*soon {
		w.t.Errorf("new flows were served for %v after the policy was there", last.Sub(begin))
	}
}

// onShortcut sends by a new flow between pods of node-a that no policy concerns, and reports whether it took the
// shortcut.
func (w *world) onShortcut() bool {
	w.t.Helper()
	before := w.packets("node-a")
	if answer, err := w.ask("a3", "tcp", netip.AddrPortFrom(w.Host("a2").Addr4, lab.PortTCP)); err != nil || answer.Pod != "a2" {
		w.t.Errorf("a3 asks a2: %+v, %v", answer, err)
	}
	after := w.packets("node-a")
	return after["path_local"] > before["path_local"]
}

// wantNewFlows checks whether new flows take the shortcut.
func (w *world) wantNewFlows(want bool) {
	w.t.Helper()
	if got := w.onShortcut(); got != want {
		w.t.Errorf("a new flow takes the shortcut: %t; want %t", got, want)
	}
}

// packets are a node's counters, without its agent.
func (w *world) packets(host string) map[string]uint64 {
	w.t.Helper()
	counters, err := shortcut.ReadCounters(w.agents[host].BPFFS())
	w.must(err)
	return counters
}
