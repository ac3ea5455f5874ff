// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
)

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}

// The map forwards requests and replies of many connections, which begin before the backend's connection
// exists.
func TestSockmapBalancer(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	if err := l.StartServers(); err != nil {
		t.Fatal(err)
	}
	node := l.Host("node-a")
	balancer := startTestSockmap(t, l, 8003, lab.PortTCP)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const connections, questions = 20, 5
	payload := string(bytes.Repeat([]byte("x"), 8000)) // of several segments
	var asked uint64
	seen := map[string]int{}
	for range connections {
		conn, err := l.Host("client").Dial(ctx, "tcp", netip.AddrPortFrom(node.Addr4, 8003).String())
		if err != nil {
			t.Fatal(err)
		}
		for range questions {
			answer, err := lab.Ask(ctx, conn, payload)
			if err != nil {
				t.Fatalf("%v; counted %s", err, counted(balancer))
			}
			if answer.Peer.Addr() != node.Addr4 {
				t.Errorf("%s sees the client %s, want the balancer", answer.Pod, answer.Peer)
			}
			if answer.Payload != payload {
				t.Errorf("%s received %d bytes, want %d", answer.Pod, len(answer.Payload), len(payload))
			}
			asked += uint64(len(payload) + 1)
			seen[answer.Pod]++
		}
		conn.Close()
	}
	if seen["b1"] != connections/2*questions || seen["b2"] != seen["b1"] {
		t.Errorf("answers came from %v, want as many from b1 as from b2", seen)
	}
	// Each reply contains its request.
	if c, err := balancer.counters(); err != nil || c.Bytes < 2*asked || c.Lost > 0 {
		t.Errorf("the map sent on %+v (%v), want %d bytes and more", c, err, 2*asked)
	}
}

// startTestSockmap starts a balancer on node-a for a port of b1 and b2.
func startTestSockmap(t *testing.T, l *lab.Lab, port, to uint16) *sockmapBalancer {
	t.Helper()
	var backends []netip.AddrPort
	for _, pod := range []string{"b1", "b2"} {
		backends = append(backends, netip.AddrPortFrom(l.Host(pod).Addr4, to))
	}
	balancer, err := startSockmap(l.Host("node-a"), port, backends...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := balancer.close(); err != nil {
			t.Errorf("the balancer ended with %v", err)
		}
	})
	return balancer
}

// The end of a connection does not overtake earlier data, whichever side ends it.
func TestSockmapBalancerEnds(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	if err := l.StartServers(); err != nil {
		t.Fatal(err)
	}
	startTestSockmap(t, l, 8003, lab.PortTCP)
	startTestSockmap(t, l, 8004, lab.PortHTTP)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dial := func(port uint16) net.Conn {
		t.Helper()
		conn, err := l.Host("client").Dial(ctx, "tcp", netip.AddrPortFrom(l.Host("node-a").Addr4, port).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(5 * time.Minute))
		return conn
	}
	// The server closes after its reply.
	for range 200 {
		conn := dial(8004)
		if _, err := io.WriteString(conn, "GET /hello HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(conn); err != nil || !bytes.Contains(text, []byte("/hello")) {
			t.Fatalf("the answer is %q (%v)", text, err)
		}
	}
	// The client closes after its request.
	for range 50 {
		conn := dial(8003)
		if _, err := lab.Ask(ctx, conn, "first"); err != nil {
			t.Fatal(err)
		}
		question := append(bytes.Repeat([]byte("x"), 8000), '\n')
		if _, err := conn.Write(question); err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(conn); err != nil || len(text) < len(question) {
			t.Fatalf("the answer has %d bytes (%v)", len(text), err)
		}
	}
	// The server is killed.
	conn := dial(8003)
	answer, err := lab.Ask(ctx, conn, "who")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Host(answer.Pod).KillServer(); err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(5 * time.Minute))
	if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the backend is gone, but the client reads %d bytes (%v)", n, err)
	}
}

func counted(b *sockmapBalancer) string {
	c, err := b.counters()
	return fmt.Sprintf("%+v (%v)", c, err)
}
