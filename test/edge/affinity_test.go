// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// R27: a client's address keeps its endpoint, at whichever address and family of protocol it asks, if it
// returns within the timeout, which each connection renews. After the timeout the endpoint is chosen again.
func TestAffinityFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		const clients, timeout = 24, 2 * time.Second
		w := borrowWorld(t, "--edge-mode="+mode)
		w.lead()
		w.manyClients()
		s, all := w.everywhere("web", 1, "a1", "a2", "b1", "b2")
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(timeout.Seconds()))}}
		w.apply("web", objects(s, all)...)
		var came [clients]time.Time // of the last connection
		// meet connects, and reports whether that was within the timeout: on a busy machine it may be
		// late, and then any endpoint is right.
		meet := func(n int, kind string, family int) (pod string, kept bool) {
			t.Helper()
			before := came[n]
			came[n] = time.Now()
			answer, err := w.askFrom(nth(clientRanges[family], 16+n), "tcp", w.address(kind, 1, family))
			w.must(err)
			return answer.Pod, time.Since(before) < timeout
		}
		var first [clients]string
		met := map[string]bool{}
		held := 0
		comesBack := func(n int, kind string) {
			t.Helper()
			pod, kept := meet(n, kind, n%2)
			if kept && pod != first[n] {
				t.Errorf("returning client %d is sent to %s at the %s, before to %s", n, pod, kind, first[n])
			}
			if first[n] = pod; kept {
				held++
			}
		}
		for n := range first {
			first[n], _ = meet(n, "NodePort", n%2)
			met[first[n]] = true
			for _, kind := range kinds {
				comesBack(n, kind)
			}
		}
		if len(met) < 2 {
			t.Errorf("all %d clients were sent to %v", clients, met)
		}
		// Half of the clients return again and again, for longer than the timeout.
		for deadline := time.Now().Add(2*timeout + time.Second); time.Now().Before(deadline); time.Sleep(timeout / 8) {
			for n := range clients / 2 {
				comesBack(n, "ExternalIP")
			}
		}
		if held < clients {
			t.Errorf("clients returned within %v only %d times: this machine is too busy for this test", timeout, held)
		}
		moved := 0
		for n := clients / 2; n < clients; n++ {
			if pod, _ := meet(n, "NodePort", n%2); pod != first[n] {
				moved++
			}
		}
		if moved == 0 { // by chance once in 4^12
			t.Errorf("all %d clients still have their endpoints after the timeout", clients/2)
		}
	})
}
