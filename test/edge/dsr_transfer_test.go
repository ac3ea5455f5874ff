// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"sync"
	"testing"
	"time"
)

// X2, X3, R30, R37: with DSR 50 MB arrive intact each way, while the Service's endpoints change, those of the
// transfers among them, and while the agents of the balancer and of the backends' nodes are killed and started
// again; no connection and no datagram of other clients is lost.
func TestDSRTransferWhileAllChanges(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		for i, kind := range dsrKinds {
			t.Run(kind, func(t *testing.T) { w.in(t).transferWhileAllChanges(kind, 10*i+1) })
		}
	})
}

// transferWhileAllChanges makes Services n and n+1.
func (w *world) transferWhileAllChanges(kind string, n int) {
	w.t.Helper()
	web := func(pods ...string) { w.apply("web", w.ofKind(kind, "web", n, pods...)...) }
	w.apply("steady", w.ofKind(kind, "steady", n+1, "a1", "b1", "c1")...)
	var transfers sync.WaitGroup
	for family, pod := range []string{"b1", "c1"} {
		web(pod)
		conn := w.open("tcp", w.address("ExternalIP", n, family))
		transfers.Go(func() {
			if err := transfer(conn, pod, 50<<20); err != nil {
				w.t.Errorf("to %s: %v", pod, err)
			}
		})
	}
	ended := w.loadAt(5*time.Millisecond, []netip.AddrPort{w.address("LoadBalancer", n+1, 0), w.address("LoadBalancer", n+1, 1)})
	done := make(chan struct{})
	go func() { transfers.Wait(); close(done) }()
	victims := []string{"node-a", "node-b", "node-c"}
	for step := 0; ; step++ {
		web([][]string{{"a1", "b1"}, {"b2"}, {"a2", "c3"}, {}}[step%4]...)
		if step < len(victims) {
			w.must(w.agents[victims[step]].Kill())
			web("b3")
			w.must(w.agents[victims[step]].Start())
			continue
		}
		select {
		case <-done:
			ended()
			return
		default:
		}
	}
}
