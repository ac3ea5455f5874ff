// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
)

// R29, R30, X2: with DSR, too, the next datagram of a flow whose backend is gone goes to another one, on
// another node or on the same, while a TCP connection stays.
func TestDSRFlowsOfBackendThatLeaves(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.applyKinds("b1")
		var tcp, udp []net.Conn
		for i := range dsrKinds {
			for family := range 2 {
				tcp = append(tcp, w.open("tcp", w.address("ExternalIP", i+1, family)))
				udp = append(udp, w.open("udp", w.address("ExternalIP", i+1, family)))
			}
		}
		for _, pod := range []string{"b1", "b2", "c1", "a1", "b3"} {
			w.applyKinds(pod)
			for i := range tcp {
				w.eventually(fmt.Sprintf("datagrams of %s over IPv%d go to %s", dsrKinds[i/2], 4+i%2*2, pod), func() bool {
					// A datagram in flight as its flow ends may be lost.
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					answer, err := lab.Ask(ctx, udp[i], "hello")
					return err == nil && answer.Pod == pod
				})
				if got := w.served(tcp[i]); got != "b1" {
					t.Errorf("with %s, the connection of %s over IPv%d is served by %s", pod, dsrKinds[i/2], 4+i%2*2, got)
				}
			}
		}
	})
}

// X4: a backend without a listener refuses: its RST and its ICMP port unreachable reach the client in the
// Service's name.
func TestDSRRefused(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.applyKinds("b1")
		w.must(w.Host("b1").StopServer())
		for i := range dsrKinds {
			for _, address := range external {
				for family := range 2 {
					w.wantRefused("tcp", w.address(address, i+1, family))
					w.wantRefused("udp", w.address(address, i+1, family))
				}
			}
		}
	})
}

// X2: if pods are behind an overlay, packets of DSR reach them through the overlay or directly between the
// nodes; replies leave their node by its own route to the client. TCP transfers 5 MB each way, although the
// pods assume an MTU of 1500.
func TestDSROverOverlay(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		// Packets through the overlay have the Node's address, which node-b knows.
		w := newWorldOf(t, overlay, "--edge-mode="+mode)
		w.agentOn("node-b", "--edge-mode="+mode)
		w.startAgents()
		w.lead()
		w.setMTU("b1", "eth0", fabricMTU)
		w.setMTU("node-b", "b1", fabricMTU)
		for _, pods := range [][]string{{"a1", "b1"}, {"b1"}} {
			w.applyKinds(pods...)
			for i, kind := range dsrKinds {
				for family := range 2 {
					to := w.address("ExternalIP", i+1, family)
					for _, network := range []string{"tcp", "udp"} {
						for _, answer := range w.wantServed(network, to, pods...) {
							if answer.Peer.Addr() != w.clientOf(family) {
								t.Errorf("%s, %s to %s: %s sees %s, want the client's address", kind, network, to, answer.Pod, answer.Peer)
							}
						}
					}
					if len(pods) > 1 {
						continue
					}
					if err := transfer(w.open("tcp", to), "b1", 5<<20); err != nil {
						t.Errorf("%s, to %s: %v; node-a's counters: %v", kind, to, err, w.edgeCounters())
					}
				}
			}
		}
	})
}

// X2, X3: if the balancer or the backend's node loses a flow's entry, it creates the entry again from the
// client's next packet.
func TestDSRRecordsAreLost(t *testing.T) {
	withEachDSR(t, nil, func(t *testing.T, w *world) {
		w.applyKinds("b1", "b2", "c1", "c2")
		type flow struct {
			net.Conn
			network, pod string
		}
		var flows []flow
		for n := range 48 {
			network := []string{"tcp", "udp"}[n%2]
			conn := w.open(network, w.address("ExternalIP", n%3+1, n/6%2))
			flows = append(flows, flow{conn, network, w.served(conn)})
		}
		for _, hosts := range [][]string{{"node-a"}, {"node-b", "node-c"}, {"node-a", "node-b", "node-c"}} {
			for _, host := range hosts {
				_, err := w.agents[host].CLI("flow", "flush", "--all")
				w.must(err)
			}
			for n, f := range flows {
				if pod := w.served(f); pod != f.pod {
					t.Errorf("%s of %s, when %v had forgotten all flows, is served by %s, before by %s", f.network, dsrKinds[n%3], hosts, pod, f.pod)
				}
			}
		}
	})
}
