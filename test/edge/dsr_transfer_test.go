// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"sync"
	"testing"
	"time"
)

// X2, X3, R30, R37: with DSR 30 MB arrive intact each way, while the Service's endpoints change, those of the
// transfers among them, and while the agents of the balancer and of the backends' nodes are killed and started
// again; no connection and no datagram of other clients is lost.
func TestDSRTransferWhileAllChanges(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		const steady = 11 // and the next ones
		var at []netip.AddrPort
		for i, kind := range dsrKinds {
			w.apply("steady-"+kind, w.ofKind(kind, "steady-"+kind, steady+i, "a1", "b1", "c1")...)
			at = append(at, w.address("LoadBalancer", steady+i, 0), w.address("LoadBalancer", steady+i, 1))
		}
		var transfers sync.WaitGroup
		for family, pod := range []string{"b1", "c1"} {
			w.applyKinds(pod)
			for i, kind := range dsrKinds {
				conn := w.open("tcp", w.address("ExternalIP", i+1, family))
				transfers.Go(func() {
					if err := transfer(conn, pod, 30<<20); err != nil {
						t.Errorf("%s, to %s: %v", kind, pod, err)
					}
				})
			}
		}
		ended := w.loadAt(5*time.Millisecond, at)
		done := make(chan struct{})
		go func() { transfers.Wait(); close(done) }()
		victims := []string{"node-a", "node-b", "node-c"}
		for n := 0; ; n++ {
			w.applyKinds([][]string{{"a1", "b1"}, {"b2"}, {"a2", "c3"}, {}}[n%4]...)
			if n < len(victims) {
				w.must(w.agents[victims[n]].Kill())
				w.applyKinds("b3")
				w.must(w.agents[victims[n]].Start())
				continue
			}
			select {
			case <-done:
				ended()
				return
			default:
			}
		}
	})
}
