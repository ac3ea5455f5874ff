// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// K2: the program sees the Service that it connected to; the server sees the client and itself, as if there
// were no Service.
func TestPeerIsTheServiceForTheClientOnly(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...)
	b1 := w.Host("b1")
	for _, from := range w.hosts("a1 node-a") {
		t.Run(from.Name, func(t *testing.T) {
			inEachFamily(t, func(t *testing.T, f family) {
				s := f.socket(t, from, 0)
				s.reach(f.clusterIP(1))
				s.wantPeer(f.clusterIP(1))
				local := s.local()
				if local.Addr() != f.of(from) {
					t.Errorf("getsockname: %v, want the host's own address %v", local, f.of(from))
				}
				want := lab.Answer{Pod: "b1", Peer: local, Local: f.pod(b1)}
				if got := s.ask(); got != want {
					t.Errorf("the server says %+v, want %+v", got, want)
				}
			})
		})
	}
}

// R19: a pod reaches itself through its Service. The socket shortcut needs no masquerading for that.
func TestPodReachesItself(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "a1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.socket(t, w.Host("a1"), 0)
		s.reach(f.clusterIP(1))
		s.wantPeer(f.clusterIP(1))
		if got := s.ask(); got.Pod != "a1" || got.Peer.Addr() != f.of(w.Host("a1")) {
			t.Errorf("the server says %+v, want a1 on both ends", got)
		}
	})
}

// R31: endpoints on the host network are like others, on this node and on another. They see the pod that
// connects.
func TestHostNetworkEndpoint(t *testing.T) {
	w := startWorld(t, "node-a")
	for n, name := range []string{"node-a", "node-b"} {
		host := w.Host(name)
		w.must(host.StartServer(lab.ServerOptions{}))
		number := uint8(n + 1)
		w.apply(name, objects(w.web(name, number, name))...)
		inEachFamily(t, func(t *testing.T, f family) {
			s := f.socket(t, w.Host("a1"), 0)
			s.reach(f.clusterIP(number))
			s.wantPeer(f.clusterIP(number))
			want := lab.Answer{Pod: name, Peer: s.local(), Local: f.pod(host)}
			if got := s.ask(); got != want || s.local().Addr() != f.of(w.Host("a1")) {
				t.Errorf("the server says %+v, want %+v", got, want)
			}
		})
	}
}

// S1: a connection to a pod's address is not handled, even if the pod is a Service's backend.
func TestDirectConnectionIsUntouched(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		before := w.counters(w.agent())
		s := f.socket(t, w.Host("a1"), 0)
		s.reach(f.pod(w.Host("b1")))
		s.wantPeer(f.pod(w.Host("b1")))
		if got := s.ask(); got.Pod != "b1" {
			t.Errorf("%s answers, want b1", got.Pod)
		}
		want := before
		want.ConnectPass++
		if after := w.counters(w.agent()); after != want {
			t.Errorf("the hooks counted %+v, want %+v: one connection passed", after, want)
		}
	})
}

// K2: an accepted socket has its own peer, even if the listening socket was connected to a Service earlier, and
// to a backend with the peer's address and port.
func TestAcceptedSocketIsUntouched(t *testing.T) {
	w := startWorld(t, "node-a")
	a1, b1 := w.Host("a1"), w.Host("b1")
	const port = 7100
	service, slices := w.web("web", 1, "b1")
	for _, slice := range slices {
		*slice.Ports[0].Port = port
	}
	w.apply("web", objects(service, slices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		backend, err := b1.Listen("tcp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		listener := f.socket(t, a1, 0)
		listener.reach(f.clusterIP(1))
		listener.disconnect()
		backend.Close()
		if err := unix.Listen(listener.fd, 1); err != nil {
			t.Fatal(err)
		}

		client := f.socket(t, b1, unix.SOCK_NONBLOCK)
		if err := client.bindReused(netip.AddrPortFrom(f.of(b1), port)); err != nil {
			t.Fatal(err)
		}
		client.reach(netip.AddrPortFrom(f.of(a1), listener.local().Port()))
		fd, from, err := unix.Accept(listener.fd)
		if err != nil {
			t.Fatal(err)
		}
		accepted := &hostSocket{t, f, fd}
		defer accepted.close()
		if peer, err := addrPort(from, nil); err != nil || peer != client.local() {
			t.Errorf("accept: %v (%v), want %v", peer, err, client.local())
		}
		accepted.wantPeer(client.local())
	})
}

// A bound socket keeps its address and port.
func TestBoundSocketKeepsItsAddress(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		a1 := w.Host("a1")
		s := f.socket(t, a1, 0)
		if err := s.bindReused(netip.AddrPortFrom(f.of(a1), 0)); err != nil {
			t.Fatal(err)
		}
		bound := s.local()
		s.reach(f.clusterIP(1))
		s.wantPeer(f.clusterIP(1))
		if local, got := s.local(), s.ask(); local != bound || got.Peer != bound {
			t.Errorf("getsockname says %v and the server %v, want %v", local, got.Peer, bound)
		}
	})
}

// The peer belongs to the connection, whichever descriptor or process asks for it.
func TestDuplicateAndChildSeeTheSamePeer(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.socket(t, w.Host("a1"), 0)
		s.reach(f.clusterIP(1))
		fd, err := unix.Dup(s.fd)
		if err != nil {
			t.Fatal(err)
		}
		copied := &hostSocket{t, f, fd}
		defer copied.close()
		copied.wantPeer(f.clusterIP(1))
		s.close()
		copied.wantPeer(f.clusterIP(1))

		// A child on another host: only the socket matters.
		for _, host := range w.hosts("a1 b2") {
			got := bequeath(t, host, copied)
			if want := (legacy{Peer: f.clusterIP(1), Pod: "b1"}); got != want {
				t.Errorf("a child on %s has %+v, want %+v", host.Name, got, want)
			}
		}
	})
}

// partHeir is the name of a child process that inherits a connected socket as descriptor 3 and reports what it
// finds, a legacy.
const partHeir = "beeline-test-heir"

type legacy struct {
	Peer netip.AddrPort
	Pod  string
}

// bequeath starts a child on a host and returns what it found.
func bequeath(t *testing.T, host *lab.Host, s *hostSocket) legacy {
	t.Helper()
	fd, err := unix.Dup(s.fd)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := host.Command(ctx, "/proc/self/exe")
	cmd.Args, cmd.ExtraFiles = []string{partHeir}, []*os.File{file}
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	var found legacy
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	if err != nil {
		t.Fatalf("child on %s: %v: %s%s", host.Name, err, out, &errOut)
	}
	return found
}

// inherit is the child.
func inherit() {
	const fd = 3
	peer, err := peerName(fd)
	var answer lab.Answer
	if err == nil {
		answer, err = askOn(fd)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(legacy{peer, answer.Pod})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
