// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

// X3, L3: UDP of a Service annotated as stateless needs no conntrack entries at the balancer, and keeps its
// backend through another balancer.
func TestStatelessUDP(t *testing.T) {
	withECMP(t, func(t *testing.T, w *world) {
		const count = 60
		for i, kind := range dsrKinds {
			s, all := w.everywhere(kind, i+1, "c1", "c2", "c3")
			s.Annotations = map[string]string{service.AnnotationDSR: kind, service.AnnotationStateless: "true"}
			w.apply(kind, objects(s, all)...)
		}
		var flows []net.Conn
		var pods []string
		for n := range count {
			flows = append(flows, w.open("udp", w.address("ExternalIP", n/2%3+1, n%2)))
			pods = append(pods, w.served(flows[n]))
		}
		for _, host := range []string{"node-a", "node-b"} {
			join := w.cutOff(host)
			for n, conn := range flows {
				if pod := w.served(conn); pod != pods[n] {
					t.Errorf("flow %d is served by %s without %s, before by %s", n, pod, host, pods[n])
				}
			}
			join()
			if records := w.recordsOf(host); records != 0 {
				t.Errorf("%s has %d conntrack entries, want none", host, records)
			}
		}
		w.wantBothForward("untracked")
	})
}

// recordsOf is the number of a node's conntrack entries.
func (w *world) recordsOf(host string) int {
	w.t.Helper()
	s, err := w.statusOf(w.agents[host])
	w.must(err)
	return int(s.Edge.Conntrack.Entries) + int(s.Edge.Conntrack.HalfOpen)
}

// L3, X4: behind ECMP a router's error about a server's long packets may reach either balancer, also one that
// has not seen the connection; with Maglev it finds the backend anyway. Clients of many addresses each transfer
// 256 KB through a small MTU.
func TestPathMTUBehindECMP(t *testing.T) {
	withECMP(t, func(t *testing.T, w *world) {
		w.manyClients()
		w.narrowAll("client", narrowMTU)
		w.applyKinds("c1", "c2", "c3")
		w.awaitUntracked()
		for n := range 36 {
			family := n % 2
			conn := w.openFrom(nth(clientRanges[family], 256+n), "tcp", w.address("ExternalIP", n/2%3+1, family))
			if err := transfer(conn, w.served(conn), 256<<10); err != nil {
				t.Fatalf("connection %d: %v; node-a's counters: %v", n, err, w.edgeCounters())
			}
			conn.Close()
		}
		w.wantBothForward("untracked")
	})
}

// openFrom is open with one of the client's addresses.
func (w *world) openFrom(from netip.Addr, network string, to netip.AddrPort) net.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	options := lab.DialOptions{Local: netip.AddrPortFrom(from, 0), Control: anyAddress}
	conn, err := w.Host("client").DialWith(ctx, options, network, to.String())
	w.must(err)
	w.t.Cleanup(func() { conn.Close() })
	return conn
}
