// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

func TestConnectionCarriesManyRequests(t *testing.T) {
	l := newWithServers(t)
	conn, err := l.Host("client").Dial(withTimeout(t, patience), "tcp", port(l.Host("a3").Addr6, PortTCP))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, payload := range []string{"one", "two", "", "with blanks and \"quotes\""} {
		answer, err := Ask(withTimeout(t, patience), conn, payload)
		if err != nil || answer.Payload != payload || answer.Peer.String() != conn.LocalAddr().String() {
			t.Errorf("request %q: answer %v (%v)", payload, answer, err)
		}
	}
}

// A datagram is answered from its destination address, even if routing would choose another: the client's
// socket is connected and accepts no other.
func TestUDPAnswersFromTheAddressAsked(t *testing.T) {
	l := New(t)
	node := l.Host("node-a")
	if err := node.StartServer(ServerOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, extra := range []string{"192.0.2.7", "2001:db8::7"} {
		addr := netip.MustParseAddr(extra)
		if err := node.AddAddress("lo", single(addr)); err != nil {
			t.Fatal(err)
		}
		answer, err := l.Host("a1").Request(withTimeout(t, patience), "udp", port(addr, PortUDP), "x")
		if err != nil || answer.Local.Addr() != addr || answer.Pod != "node-a" {
			t.Errorf("%s: answer %v (%v)", addr, answer, err)
		}
	}
}

// A stopping server accepts no new connections, but serves existing ones for its drain time.
func TestStopServerDrains(t *testing.T) {
	l := New(t)
	pod := l.Host("b1")
	const drain = 5 * time.Second // for the requests meanwhile, on a busy machine
	if err := pod.StartServer(ServerOptions{Drain: drain}); err != nil {
		t.Fatal(err)
	}
	conn := dialServer(t, l, pod, PortTCP)
	if _, err := Ask(withTimeout(t, patience), conn, "before"); err != nil {
		t.Fatal(err)
	}
	start, stopped := time.Now(), make(chan error, 1)
	go func() { stopped <- pod.StopServer() }()
	eventually(t, "the stopping server refuses new connections", func() bool {
		conn, err := l.Host("a1").Dial(withTimeout(t, patience), "tcp", port(pod.Addr4, PortTCP))
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if answer, err := Ask(withTimeout(t, patience), conn, "after"); err != nil || answer.Payload != "after" {
		t.Errorf("while it drains: answer %v (%v), want one", answer, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took < drain {
		t.Errorf("it ended after %v with a connection open, want not before %v", took, drain)
	}
	if _, err := Ask(withTimeout(t, patience), conn, "late"); err == nil {
		t.Error("the connection is open after the server's end")
	}
	if pod.ServerRunning() {
		t.Error("the stopped server is said to run")
	}
}

// A draining server ends as soon as it has no connection.
func TestStopServerDoesNotWaitForNobody(t *testing.T) {
	l := New(t)
	pod := l.Host("b1")
	if err := pod.StartServer(ServerOptions{Drain: time.Minute}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []uint16{PortTCP, PortHTTP} {
		dialServer(t, l, pod, p).Close()
	}
	start := time.Now()
	if err := pod.StopServer(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("with no connection open it ended after %v", took)
	}
}

func TestKillServerClosesAtOnce(t *testing.T) {
	l := New(t)
	pod := l.Host("b1")
	if err := pod.StartServer(ServerOptions{Drain: time.Minute}); err != nil {
		t.Fatal(err)
	}
	conn := dialServer(t, l, pod, PortTCP)
	if _, err := Ask(withTimeout(t, patience), conn, "before"); err != nil {
		t.Fatal(err)
	}
	if err := pod.KillServer(); err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(withTimeout(t, patience), conn, "after"); err == nil {
		t.Error("the connection is open after the server was killed")
	}
	// And the pod can start another.
	if err := pod.StartServer(ServerOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Host("a1").Request(withTimeout(t, patience), "tcp", port(pod.Addr4, PortTCP), "x"); err != nil {
		t.Error(err)
	}
}

func dialServer(t *testing.T, l *Lab, pod *Host, p uint16) net.Conn {
	t.Helper()
	conn, err := l.Host("a1").Dial(withTimeout(t, patience), "tcp", port(pod.Addr4, p))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestStartServerTwice(t *testing.T) {
	l := New(t)
	pod := l.Host("a1")
	if err := pod.StopServer(); err != nil {
		t.Errorf("stopping no server: %v, want nothing", err)
	}
	if err := pod.StartServer(ServerOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pod.StartServer(ServerOptions{}); err == nil {
		t.Error("a second server started")
	}
	if err := l.StartServers(); err != nil {
		t.Errorf("StartServers with one running: %v", err)
	}
}

// A server that cannot serve says why.
func TestStartServerSaysWhatFailed(t *testing.T) {
	l := New(t)
	pod := l.Host("a1")
	listener, err := pod.Listen("tcp", "[::]:8081")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	err = pod.StartServer(ServerOptions{})
	if err == nil || !contains(err, "8081: bind: address already in use") {
		t.Errorf("error %v, want the port that is in use", err)
	}
}
