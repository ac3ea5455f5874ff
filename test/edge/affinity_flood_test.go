// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
)

// R27: clients flood one Service, each sending once, with four times as many clients as the table has places.
// The flood evicts neither clients of other Services, even if they came only once, nor a pod, whose connections
// the socket hooks decide, nor the Service's own returning clients. With four endpoints all keep theirs by
// chance once in 4^36.
func TestAffinityOutlivesAFlood(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		const clients, services, flood = 12, 12, 4 * 600
		w := startWorld(t, "--edge-mode="+mode, "--max-affinity=480")
		w.lead()
		w.manyClients()
		for n := range 2 + services {
			name := fmt.Sprintf("web%d", n+1)
			s, all := w.everywhere(name, n+1, "a1", "a2", "b1", "b2")
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			w.apply(name, objects(s, all)...)
		}
		const flooded, quiet = 1, 2
		meet := func() (pods []string) {
			t.Helper()
			for n := range clients {
				for _, service := range []int{flooded, quiet} {
					answer, err := w.askFrom(nth(clientRanges[n%2], 16+n), "tcp", w.address("NodePort", service, n%2))
					w.must(err)
					pods = append(pods, answer.Pod)
				}
			}
			for n := range services {
				answer, err := w.askAs("a2", "tcp", w.address("ClusterIP", quiet+1+n, n%2))
				w.must(err)
				pods = append(pods, answer.Pod)
			}
			return pods
		}
		before := meet()
		time.Sleep(1100 * time.Millisecond) // another second of the clock
		for n := range clients {            // of the flooded Service: they return
			_, err := w.askFrom(nth(clientRanges[n%2], 16+n), "tcp", w.address("NodePort", flooded, n%2))
			w.must(err)
		}
		counted := w.status().Edge.Counters["new"]
		w.flood(w.address("NodePort", flooded, 0), flood)
		w.must(w.agent.WaitFor("with the flood counted", func(s *api.Status) bool { return s.Edge.Counters["new"] >= counted+flood*9/10 }))
		for i, pod := range meet() {
			if pod != before[i] {
				t.Errorf("after the flood connection %d goes to %s, want %s as before", i, pod, before[i])
			}
		}
	})
}

// flood sends SYNs from so many addresses.
func (w *world) flood(to netip.AddrPort, clients int) {
	w.t.Helper()
	fd, err := w.Host("client").Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	w.must(err)
	defer unix.Close(fd)
	for n := range clients {
		packet := make([]byte, 40)
		packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_TCP
		binary.BigEndian.PutUint16(packet[2:], 40)
		copy(packet[12:], []byte{44, 1, byte(n >> 8), byte(n)})
		copy(packet[16:], to.Addr().AsSlice())
		binary.BigEndian.PutUint16(packet[20:], 40000)
		binary.BigEndian.PutUint16(packet[22:], to.Port())
		packet[32], packet[33] = 5<<4, 2     // SYN
		sum := uint32(unix.IPPROTO_TCP + 20) // of the pseudo header: the rest is left to the device
		for at := 12; at < 20; at += 2 {
			sum += uint32(binary.BigEndian.Uint16(packet[at:]))
		}
		binary.BigEndian.PutUint16(packet[36:], uint16(sum&0xffff+sum>>16))
		w.must(unix.Sendto(fd, packet, 0, rawAddress(to.Addr())))
		if n%100 == 99 {
			time.Sleep(2 * time.Millisecond) // lets the queues drain
		}
	}
}
