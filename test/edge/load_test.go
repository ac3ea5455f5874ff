// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
)

// manyFiles is locked by tests with so many connections that the limit of open files is too low for two of
// them.
var manyFiles sync.Mutex

// X1: 10,000 connections of one client to one Service are open at the same time, half of them over IPv6 and
// half of each to another node. Each has one entry per direction and no more, and each is answered.
func TestTenThousandConnections(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		const connections = 10000
		w := startWorld(t, "--edge-mode="+mode, fmt.Sprintf("--max-flows=%d", 4*connections))
		w.apply("web", objects(w.public("a1", "b1"))...)
		to := addresses(w.Host("node-a"), nodePort)
		manyFiles.Lock()
		defer manyFiles.Unlock()
		conns := make([]net.Conn, connections)
		pods := make([]string, connections)
		defer func() {
			for _, conn := range conns {
				if conn != nil {
					conn.Close()
				}
			}
		}()
		eachOf(t, connections, "connection", func(ctx context.Context, i int) (err error) {
			conns[i], err = w.Host("client").Dial(ctx, "tcp", to[i%2].String())
			return err
		})
		ask := func(ctx context.Context, i int) error {
			answer, err := lab.Ask(ctx, conns[i], fmt.Sprint(i))
			if err == nil && (answer.Payload != fmt.Sprint(i) || pods[i] != "" && pods[i] != answer.Pod) {
				err = fmt.Errorf("%+v, of %q", answer, pods[i])
			}
			pods[i] = answer.Pod
			return err
		}
		eachOf(t, connections, "question on connection", ask)
		if s := w.status().Edge.Conntrack; s.Entries != 2*connections || s.HalfOpen != 0 || s.Limit < 2*connections {
			t.Errorf("flows: %+v, want %d conntrack entries", s, 2*connections)
		}
		eachOf(t, connections, "second question on connection", ask)
		var local [2]int
		for i, pod := range pods {
			if pod == "a1" {
				local[i%2]++
			}
		}
		// Nine standard deviations of a fair coin.
		for family, n := range local {
			if n < connections/4-320 || n > connections/4+320 {
				t.Errorf("%d of %d connections to %s are served by a1, want half of them", n, connections/2, to[family])
			}
		}
	})
}

// eachOf calls a function for each of so many indices, several at a time, and fails the test if one fails.
func eachOf(t *testing.T, count int, what string, do func(ctx context.Context, i int) error) {
	t.Helper()
	const workers = 16
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var working sync.WaitGroup
	for first := range workers {
		working.Go(func() {
			for i := first; i < count; i += workers {
				if err := do(ctx, i); err != nil {
					t.Errorf("%s %d: %v", what, i, err)
					return
				}
			}
		})
	}
	working.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// X3: 20,000 flows of as many clients to one backend of another node have a SNAT port each, and keep it.
func TestTwentyThousandFlowsToOneBackend(t *testing.T) {
	const flows = 20000
	w := startWorld(t, "--max-flows=1000000") // so many that no set fills up by chance
	w.manyClients()
	w.apply("web", objects(w.public("b1"))...)
	to := addresses(w.Host("node-a"), nodePort)[0]
	conn, err := w.Host("client").ListenPacket("udp4", "0.0.0.0:0")
	w.must(err)
	defer conn.Close()
	udp := conn.(*net.UDPConn)
	w.must(udp.SetReadBuffer(4 << 20))
	round := func() map[int]netip.AddrPort {
		seen := map[int]netip.AddrPort{}
		const atOnce = 100
		for first := 0; first < flows; first += atOnce {
			for n := first; n < first+atOnce; n++ {
				from := nth(clientRanges[0], 16+n).As4()
				control := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from})
				if _, _, err := udp.WriteMsgUDPAddrPort([]byte(fmt.Sprint(n)), control, to); err != nil {
					t.Fatal(err)
				}
			}
			w.must(udp.SetReadDeadline(time.Now().Add(patience)))
			for range atOnce {
				readFlow(t, udp, seen)
			}
		}
		return seen
	}
	first := round()
	ports := map[uint16]bool{}
	for n, peer := range first {
		if peer.Addr() != to.Addr() || ports[peer.Port()] {
			t.Fatalf("b1 sees flow %d as %s, which is another flow's or not this node's", n, peer)
		}
		ports[peer.Port()] = true
	}
	if s := w.status().Edge.Conntrack; len(first) != flows || s.HalfOpen != 2*flows {
		t.Errorf("%d flows were answered, and have %d entries; want %d with two each", len(first), s.HalfOpen, flows)
	}
	for n, peer := range round() {
		if first[n] != peer {
			t.Fatalf("b1 saw flow %d as %s, and now as %s", n, first[n], peer)
		}
	}
}

// readFlow reads a reply, with the source that its backend saw.
func readFlow(t *testing.T, conn *net.UDPConn, seen map[int]netip.AddrPort) {
	t.Helper()
	buffer := make([]byte, 2048)
	size, err := conn.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	var answer lab.Answer
	var n int
	if err := json.Unmarshal(buffer[:size], &answer); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(answer.Payload, &n); err != nil {
		t.Fatal(err)
	}
	seen[n] = answer.Peer
}

// X3: if open connections use all SNAT ports for a backend, new ones are dropped and counted, status reports
// it, existing ones continue, and other backends are served. UDP has ports of its own, and its idle flows are
// evicted.
func TestNoPortIsLeft(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		// So few that a flow, which tries 64 of them at random, misses the last free one once in 10^8.
		const ports = 4
		w := startWorld(t, "--edge-mode="+mode, "--snat-ports=1024-1027")
		w.apply("web", objects(w.public("b1"))...)
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			var conns []net.Conn
			for range ports {
				conns = append(conns, w.open("tcp", to))
				if pod := w.served(conns[len(conns)-1]); pod != "b1" {
					t.Errorf("served by %s", pod)
				}
			}
			w.wantSilence("tcp", to, "drop_no_port")
			for range 2 * ports {
				if answer, err := w.ask("udp", to); err != nil || answer.Pod != "b1" {
					t.Errorf("a datagram while connections have the ports: %+v, %v", answer, err)
				}
			}
			for _, conn := range conns {
				if pod := w.served(conn); pod != "b1" {
					t.Errorf("a connection from before is served by %s", pod)
				}
			}
		}
		w.eventually("status reports it", func() bool {
			return w.status().Conditions.Has(condition.SNATPortsExhausted)
		})
		w.wantExit(3, "--snat-ports")
		w.apply("web", objects(w.public("b2"))...)
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			if answer, err := w.ask("udp", to); err != nil || answer.Pod != "b2" {
				t.Errorf("another backend: %+v, %v", answer, err)
			}
		}
	})
}
