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
		const clients, timeout = 24, 2 * time.Second
		w := startWorld(t, "--edge-mode="+mode)
		w.lead()
		w.manyClients()
		s, all := w.everywhere("web", 1, "a1", "a2", "b1", "b2")
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(timeout.Seconds()))}}
		w.apply("web", objects(s, all)...)
		var came [clients]time.Time // before the last connection
		// meet connects, and says whether that is within the timeout: on a busy machine it need
		// not be, and then nothing holds the client.
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
				t.Errorf("client %d, which comes back, is sent to %s at the %s, and was to %s", n, pod, kind, first[n])
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
			t.Errorf("%d clients have all met %v", clients, met)
		}
		// Half of the clients come back all the while, for longer than the timeout.
		for deadline := time.Now().Add(2*timeout + time.Second); time.Now().Before(deadline); time.Sleep(timeout / 8) {
			for n := range clients / 2 {
				comesBack(n, "ExternalIP")
			}
		}
		if held < clients {
			t.Errorf("clients have come back within %v %d times: this machine is too busy to tell anything", timeout, held)
		}
		moved := 0
		for n := clients / 2; n < clients; n++ {
			if pod, _ := meet(n, "NodePort", n%2); pod != first[n] {
				moved++
			}
		}
		if moved == 0 { // by chance once in 4^12
			t.Errorf("%d clients are where they were, after the timeout", clients/2)
		}
	})
}
