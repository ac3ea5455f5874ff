// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/node"
)

// prefilter opens the prefilter of an agent, which need not run.
func (w *world) prefilter(a *node.Agent) *datapath.Prefilter {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(datapath.TablePath(a.BPFFS(), datapath.SockMapPrefilters), nil)
	w.must(err)
	defer m.Close()
	prefilter, err := datapath.MapPrefilter(m, func() error { return nil })
	w.must(err)
	return prefilter
}

func (w *world) awaitPrefilter(a *node.Agent) {
	w.t.Helper()
	prefilter := w.prefilter(a)
	for deadline := time.Now().Add(patience); !prefilter.Enabled(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("the prefilter is disabled after %s", patience)
		}
	}
}

// The prefilter is enabled with and without edge, over restarts that enable or disable the edge, and each Service is
// looked up: also those that an agent has published that sets no bits in the prefilter.
func TestPrefilterIsEnabledWithAndWithoutEdge(t *testing.T) {
	w := startWorld(t, "node-a")
	a := w.agent()
	w.apply("web", objects(w.web("web", 1, "a2 b1"))...)
	for i, mode := range []string{"off", "tc", "off", "off"} {
		if i > 0 {
			w.must(a.Kill())
			w.must(w.prefilter(a).Rebuild(func() error { return nil }))
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
