// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// open opens a flow of the client that lasts until the end of the test.
func (w *world) open(network string, to netip.AddrPort) net.Conn {
	w.t.Helper()
	return w.openAs("client", network, to)
}

// openAs is open for another host.
func (w *world) openAs(host, network string, to netip.AddrPort) net.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := w.Host(host).Dial(ctx, network, to.String())
	w.must(err)
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// served returns the name of the pod that answers on an open flow.
func (w *world) served(conn net.Conn) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	answer, err := lab.Ask(ctx, conn, "hello")
	w.must(err)
	return answer.Pod
}

// The least --max-flows serves flow after flow: removed entries make room.
func TestFewestFlows(t *testing.T) {
	w := startWorld(t, "--max-flows=64")
	w.apply("web", objects(w.public("a1", "b1"))...)
	for _, to := range addresses(w.Host("node-a"), nodePort) {
		w.wantServed("tcp", to, "a1", "b1")
		w.wantServed("udp", to, "a1", "b1")
	}
}

// flows lists the flows that the command shows.
func (w *world) flows(args ...string) []conntrack.Flow {
	w.t.Helper()
	text, err := w.agent.CLI(append([]string{"flow", "list", "-o", "json"}, args...)...)
	w.must(err)
	var list struct{ Items []conntrack.Flow }
	w.must(json.Unmarshal([]byte(text), &list))
	return list.Items
}

// eventually polls until a condition holds.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for begun := time.Now(); ; {
		asked := time.Now()
		if ok() {
			return
		}
		if time.Since(begun) > patience {
			w.t.Fatalf("waited %v in vain for this: %s\n%s", patience, what, node.Says(slices.Collect(maps.Values(w.agents))...))
		}
		time.Sleep(node.PollPause(begun, asked))
	}
}

// A flow is listed with its client, address and backend, and the source that the backend sees, also when no
// agent is running; and is removed when it is flushed.
func TestFlowsAreListedAndFlushed(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.apply("web", objects(w.public("b1"))...)
	for _, to := range addresses(w.Host("node-a"), nodePort) {
		// A datagram's flow is established when it continues for two seconds.
		for network, state := range map[string]string{"tcp": "established", "udp": "answered"} {
			conn := w.open(network, to)
			w.served(conn)
			w.served(conn)
			client := conn.LocalAddr().String()
			found := 0
			for _, f := range w.flows("--service", "default/web") {
				if f.Client.String() != client || strings.ToLower(f.Protocol.String()) != network {
					continue
				}
				found++
				b1 := w.Host("b1").Addr4
				if to.Addr().Is6() {
					b1 = w.Host("b1").Addr6
				}
				if f.Address != to || f.Backend != netip.AddrPortFrom(b1, lab.PortTCP) || f.SeenAs.Addr() != to.Addr() ||
					f.State != state || f.Port != network || f.FromClient.Packets < 2 || f.ToClient.Packets < 2 {
					t.Errorf("%s from %s is listed as %+v", network, client, f)
				}
			}
			if found != 1 {
				t.Errorf("%s from %s is listed %d times: %+v", network, client, found, w.flows())
			}
		}
	}
	w.apply("other", objects(w.everywhere("other", 9, "b1"))...)
	if other := w.flows("--service", "default/other"); len(other) != 0 {
		t.Errorf("flows of a Service without clients: %+v", other)
	}
	w.must(w.agent.Stop())
	if n := len(w.flows()); n != 4 {
		t.Errorf("without an agent %d flows are listed, want 4", n)
	}
	b1 := w.Host("b1").Addr4
	for args, want := range map[string]int{
		b1.String(): 2, w.Host("b1").Addr6.String(): 2, w.Host("b2").Addr4.String(): 0,
		netip.AddrPortFrom(b1, lab.PortTCP).String(): 2, netip.AddrPortFrom(b1, lab.PortTCP+1).String(): 0,
	} {
		if got := w.flows("--backend", args); len(got) != want {
			t.Errorf("--backend %s lists %d flows, want %d: %+v", args, len(got), want, got)
		}
	}
	for states, want := range map[string]int{"established": 2, "answered": 2, "answered,established": 4, "closed": 0} {
		if got := w.flows("--state", states); len(got) != want {
			t.Errorf("--state %s lists %d flows, want %d: %+v", states, len(got), want, got)
		}
	}
	w.wantWrong("flow list --state establised", `did you mean "established"?`)
	for args, words := range map[string]string{"": "give --service, --backend or both", " --all --service default/web": "give --service, --backend or both", " --all --backend 10.0.0.1": "give --service, --backend or both",
		" --backend b1": "not an address or address:port"} {
		w.wantWrong("flow flush"+args, words)
	}
	if n := len(w.flows()); n != 4 {
		t.Errorf("after a refused command %d flows are left, want 4", n)
	}
	if out, err := w.agent.CLI("flow", "flush", "--backend", b1.String()); err != nil || out != "removed 2 flows\n" {
		t.Errorf("flush of a backend: %q, %v", out, err)
	}
	out, err := w.agent.CLI("flow", "flush", "--all")
	if err != nil || out != "removed 2 flows\n" {
		t.Errorf("flush: %q, %v", out, err)
	}
	if left := w.flows(); len(left) != 0 {
		t.Errorf("left after the flush: %+v", left)
	}
}

// R29, R30: when a backend is gone, the next datagram of its flows goes to another one, while a TCP connection
// keeps it.
func TestFlowsOfBackendThatLeaves(t *testing.T) {
	for _, pod := range []string{"a1", "b1"} {
		t.Run(pod, func(t *testing.T) {
			w := borrowWorld(t, "--edge-mode=tc")
			w.apply("web", objects(w.public(pod))...)
			type pair struct{ tcp, udp net.Conn }
			var pairs []pair
			for _, to := range addresses(w.Host("node-a"), nodePort) {
				p := pair{w.open("tcp", to), w.open("udp", to)}
				if tcp, udp := w.served(p.tcp), w.served(p.udp); tcp != pod || udp != pod {
					t.Fatalf("served by %s and %s, want %s", tcp, udp, pod)
				}
				pairs = append(pairs, p)
			}
			before := w.status().Edge.Conntrack.EndedUDPFlows
			w.apply("web", objects(w.public("b2"))...)
			w.eventually("the flows have ended", func() bool { return w.status().Edge.Conntrack.EndedUDPFlows == before+2 })
			for _, p := range pairs {
				if tcp, udp := w.served(p.tcp), w.served(p.udp); tcp != pod || udp != "b2" {
					t.Errorf("the connection is served by %s and the datagrams by %s, want %s and b2", tcp, udp, pod)
				}
			}
			w.wantDraining(pod)
		})
	}
}

// wantDraining: a pod that is no longer in any set stays visible while it has a connection, in each family.
func (w *world) wantDraining(pod string) {
	w.t.Helper()
	for _, addr := range []netip.Addr{w.Host(pod).Addr4, w.Host(pod).Addr6} {
		backend := netip.AddrPortFrom(addr, lab.PortTCP).String()
		for command, want := range map[string]string{"service show web": backend + "/TCP: draining, 1 connection left", "backend list": "draining, 1 connection left"} {
			out, err := w.agent.CLI(strings.Fields(command)...)
			if err != nil || !strings.Contains(out, backend) || !strings.Contains(out, want) {
				w.t.Errorf("%s (%v) does not contain %q for %s:\n%s", command, err, want, backend, out)
			}
		}
	}
}

// Idle flows expire.
func TestFlowsExpire(t *testing.T) {
	w := startWorld(t, "--conntrack-udp-timeout-stream=1s")
	w.apply("web", objects(w.public("b1"))...)
	tcp := w.open("tcp", addresses(w.Host("node-a"), nodePort)[0])
	udp := w.open("udp", addresses(w.Host("node-a"), nodePort)[0])
	w.served(tcp)
	w.served(udp)
	w.eventually("the UDP flow has expired", func() bool { return len(w.flows()) == 1 })
	if f := w.flows(); f[0].Protocol.String() != "TCP" {
		t.Errorf("left: %+v", f)
	}
	s := w.status().Edge.Conntrack
	w.eventually("one flow is counted as expired", func() bool { s = w.status().Edge.Conntrack; return s.ExpiredFlows > 0 }) // at the end of the GC pass
	if s.ExpiredFlows != 1 || s.Entries != 2 {
		t.Errorf("flows: %+v, want one expired and two conntrack entries", s)
	}
	w.served(tcp)
}
