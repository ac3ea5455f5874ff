// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// R27: a client's address stays with its endpoint, whichever address and family of
// protocol it asks, as long as it comes back within the timeout; each connection
// begins that anew. Afterwards the endpoint is chosen again.
func TestAffinityFromOutside(t *testing.T) {
	inBothModes(t, func(t *testing.T, mode string) {
		const clients, timeout = 24, time.Second
		w := startWorld(t, "--edge-mode="+mode)
		w.lead()
		w.manyClients()
		s, all := w.everywhere("web", 1, "a1", "a2", "b1", "b2")
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(timeout.Seconds()))}}
		w.apply("web", objects(s, all)...)
		meet := func(n int, kind string, family int) string {
			t.Helper()
			answer, err := w.askFrom(nth(clientRanges[family], 16+n), "tcp", w.address(kind, 1, family))
			w.must(err)
			return answer.Pod
		}
		var first [clients]string
		met := map[string]bool{}
		for n := range first {
			family := n % 2
			first[n] = meet(n, "NodePort", family)
			met[first[n]] = true
			for _, kind := range kinds {
				if pod := meet(n, kind, family); pod != first[n] {
					t.Errorf("client %d is sent to %s at the %s, and was to %s", n, pod, kind, first[n])
				}
			}
		}
		if len(met) < 2 {
			t.Errorf("%d clients have all met %v", clients, met)
		}
		// Half of the clients come back all the while, for longer than the timeout.
		for deadline := time.Now().Add(2*timeout + time.Second); time.Now().Before(deadline); time.Sleep(timeout / 8) {
			for n := range clients / 2 {
				if pod := meet(n, "ExternalIP", n%2); pod != first[n] {
					t.Errorf("client %d, which comes back, is sent to %s, and was to %s", n, pod, first[n])
				}
			}
		}
		moved := 0
		for n := clients / 2; n < clients; n++ {
			if meet(n, "NodePort", n%2) != first[n] {
				moved++
			}
		}
		if moved == 0 { // by chance once in 4^12
			t.Errorf("%d clients are where they were, after the timeout", clients/2)
		}
	})
}
