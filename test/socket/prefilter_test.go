// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/node"
)

// prefilter returns the contents of an agent's prefilter, and the table. The agent need not run.
func (w *world) prefilter(a *node.Agent) (*bpf.EdgeTCPrefilter, *ebpf.Map) {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(a.BPFFS(), bpf.SockMapPrefilters), nil)
	w.must(err)
	contents := new(bpf.EdgeTCPrefilter)
	w.must(m.Lookup(uint32(0), contents))
	return contents, m
}

// awaitPrefilterThat waits until the prefilter of an agent is enabled, and fulfils a condition.
func (w *world) awaitPrefilterThat(a *node.Agent, what string, ok func(*bpf.Prefilter) bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		contents, m := w.prefilter(a)
		m.Close()
		if p := bpf.NewPrefilter(contents, nil); p.Enabled() && ok(p) {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("the prefilter of %s: not %s after %s", a.Host.Name, what, patience)
		}
	}
}

func (w *world) awaitPrefilter(a *node.Agent) {
	w.t.Helper()
	w.awaitPrefilterThat(a, "enabled", func(*bpf.Prefilter) bool { return true })
}

// The prefilter is enabled with and without edge, over restarts that enable or disable the edge, also without audits.
// Each Service is looked up, even if the agent that published it has set no bits of it.
func TestPrefilterIsEnabledWithAndWithoutEdge(t *testing.T) {
	w := newWorld(t, "node-a")
	a := w.agent()
	a.Flags = []string{"--audit-interval=0"}
	w.start()
	w.apply("web", objects(w.web("web", 1, "a2 b1"))...)
	for i, mode := range []string{"off", "tc", "off", "off"} {
		if i > 0 {
			w.must(a.Kill())
			contents, m := w.prefilter(a)
			contents.Bits = [len(contents.Bits)]uint64{}
			w.must(m.Put(uint32(0), contents))
			m.Close()
			a.EdgeMode = mode
			w.start()
		}
		w.awaitPrefilter(a)
		w.wantMeet(t, clients, ipv4, ipv4.clusterIP(1), "a2 b1")
		w.wantMeet(t, clients, ipv6, ipv6.clusterIP(1), "a2 b1")
		name := fmt.Sprint("more", i)
		w.apply(name, objects(w.web(name, uint8(2+i), "b2"))...)
		w.wantMeet(t, clients, ipv6, ipv6.clusterIP(uint8(2+i)), "b2")
	}
}

// Without an edge, audits clear the bits that no Service needs.
func TestPrefilterIsRebuiltByAudits(t *testing.T) {
	w := newWorld(t, "node-a")
	a := w.agent()
	a.Flags = []string{"--audit-interval=300ms"}
	w.start()
	w.apply("web", objects(w.web("web", 1, "a2"))...)
	_, m := w.prefilter(a)
	defer m.Close()
	memory, err := bpf.MapPrefilter(m, nil)
	w.must(err)
	nobodys := bpf.FrontendKey{Address: bpf.Address{Bytes: [16]byte{0: 0xfd, 15: 1}}, Port: 1}
	memory.Add(nobodys)
	w.awaitPrefilterThat(a, "without bits that no Service needs", func(p *bpf.Prefilter) bool { return !p.Contains(nobodys) })
	w.wantMeet(t, clients, ipv4, ipv4.clusterIP(1), "a2")
}
