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
	inEachDSR(t, func(t *testing.T, kind, mode string) {
		w := startDSR(t, kind, mode)
		w.apply("steady", objects(w.everywhere("steady", 2, "a1", "b1", "c1"))...)
		var transfers sync.WaitGroup
		for family, pod := range []string{"b1", "c1"} {
			w.apply("web", objects(w.everywhere("web", 1, pod))...)
			conn := w.open("tcp", w.address("ExternalIP", 1, family))
			transfers.Go(func() {
				if err := transfer(conn, pod, 50<<20); err != nil {
					t.Errorf("to %s: %v", pod, err)
				}
			})
		}
		ended := w.loadAt(5*time.Millisecond, []netip.AddrPort{w.address("LoadBalancer", 2, 0), w.address("LoadBalancer", 2, 1)})
		done := make(chan struct{})
		go func() { transfers.Wait(); close(done) }()
		victims := []string{"node-a", "node-b", "node-c"}
		for n := 0; ; n++ {
			w.apply("web", objects(w.everywhere("web", 1, [][]string{{"a1", "b1"}, {"b2"}, {"a2", "c3"}, {}}[n%4]...))...)
			if n < len(victims) {
				w.must(w.agents[victims[n]].Kill())
				w.apply("web", objects(w.everywhere("web", 1, "b3"))...)
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
