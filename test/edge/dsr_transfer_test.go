// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"sync"
	"testing"
	"time"
)

// X2, X3, R30, R37: with each kind of DSR 20 MB arrive intact each way for each family, while the Services'
// endpoints change, those of the transfers among them, and while the agents of the balancer and of the backends'
// nodes are killed and started again; no connection and no datagram of other clients is lost.
func TestDSRTransferWhileAllChanges(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		var transfers sync.WaitGroup
		var loads []func()
		for i, kind := range dsrKinds {
			n := 10*i + 1
			w.apply("steady-"+kind, w.ofKind(kind, "steady-"+kind, n+1, "a1", "b1", "c1")...)
			for family, pod := range []string{"b1", "c1"} {
				w.applyWebs(pod)
				conn := w.open("tcp", w.address("ExternalIP", n, family))
				transfers.Go(func() {
					if err := transfer(conn, pod, 20<<20); err != nil {
						t.Errorf("%s to %s: %v", kind, pod, err)
					}
				})
			}
			loads = append(loads, w.loadAt(10*time.Millisecond, []netip.AddrPort{w.address("LoadBalancer", n+1, 0), w.address("LoadBalancer", n+1, 1)}))
		}
		done := make(chan struct{})
		go func() { transfers.Wait(); close(done) }()
		w.changeAll(done)
		for _, ended := range loads {
			ended()
		}
	})
}

// applyWebs applies Services 1, 11 and 21 with one kind of DSR each, all with these pods.
func (w *world) applyWebs(pods ...string) {
	w.t.Helper()
	for i, kind := range dsrKinds {
		name := "web-" + kind
		w.must(w.folder.Put(name, w.ofKind(kind, name, 10*i+1, pods...)...))
	}
	w.await()
}

// changeAll changes endpoints until transfers are done, and first kills each agent once.
func (w *world) changeAll(done <-chan struct{}) {
	w.t.Helper()
	victims := []string{"node-a", "node-b", "node-c"}
	for step := 0; ; step++ {
		w.applyWebs([][]string{{"a1", "b1"}, {"b2"}, {"a2", "c3"}, {}}[step%4]...)
		if step < len(victims) {
			w.must(w.agents[victims[step]].Kill())
			w.applyWebs("b3")
			w.must(w.agents[victims[step]].Start())
			continue
		}
		select {
		case <-done:
			return
		default:
		}
	}
}
