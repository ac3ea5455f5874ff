// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// Cases of connect(2), with Services 1 (pod b1), 2 (pod b2), 3 (no endpoints) and 4 (two endpoints that never
// answer).
func startConnectWorld(t *testing.T) *world {
	t.Helper()
	w := startWorld(t, "node-a")
	w.write("web", objects(w.web("web", 1, "b1"))...)
	w.write("other", objects(w.web("other", 2, "b2"))...)
	w.write("empty", objects(w.web("empty", 3, ""))...)
	silent, slices := w.web("silent", 4, "b1 b2")
	slices[0].Endpoints[0].Addresses = []string{"192.0.2.1"}
	slices[0].Endpoints[1].Addresses = []string{"192.0.2.2"}
	slices[1].Endpoints[0].Addresses = []string{"2001:db8::1"}
	slices[1].Endpoints[1].Addresses = []string{"2001:db8::2"}
	w.silence("192.0.2.0/24", "2001:db8::/32")
	w.apply("silent", objects(silent, slices)...)
	return w
}

// silence makes the fabric drop packets to networks without a reply.
func (w *world) silence(networks ...string) {
	w.t.Helper()
	nl, err := w.Host("fabric").Netlink()
	w.must(err)
	defer nl.Close()
	for _, n := range networks {
		to, err := netlink.ParseIPNet(n)
		w.must(err)
		w.must(nl.RouteAdd(&netlink.Route{Dst: to, Type: unix.RTN_BLACKHOLE}))
	}
}

// A second connect of a connected socket is the program's mistake; the kernel returns an error, and nothing
// changes.
func TestConnectTwice(t *testing.T) {
	w := startConnectWorld(t)
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.socket(t, w.Host("a1"), 0)
		s.reach(f.clusterIP(1))
		before := w.counters(w.agent())
		for _, to := range []netip.AddrPort{f.clusterIP(1), f.clusterIP(2), f.pod(w.Host("b3"))} {
			if err := s.connect(to); err != unix.EISCONN {
				t.Errorf("connect to %s when connected: %v, want EISCONN", to, err)
			}
		}
		if after := w.counters(w.agent()); after != before {
			t.Errorf("the hooks counted %+v, want %+v: the kernel refuses before them", after, before)
		}
		s.wantPeer(f.clusterIP(1))
		if got := s.ask(); got.Pod != "b1" {
			t.Errorf("%s answers, want b1", got.Pod)
		}
	})
}

// A socket whose connect was refused, by the hook or by a host, can connect again; its peer is that of the last
// connect.
func TestConnectAfterRefusal(t *testing.T) {
	w := startConnectWorld(t)
	b1 := w.Host("b1")
	inEachFamily(t, func(t *testing.T, f family) {
		nothing := netip.AddrPortFrom(f.of(b1), 9) // nobody listens
		for _, refused := range []netip.AddrPort{f.clusterIP(3), nothing} {
			for _, then := range []netip.AddrPort{f.clusterIP(1), f.pod(b1)} {
				s := f.socket(t, w.Host("a1"), 0)
				if err := s.connect(refused); err != unix.ECONNREFUSED {
					t.Errorf("connect to %s: %v, want ECONNREFUSED", refused, err)
				}
				if _, err := unix.Getpeername(s.fd); err != unix.ENOTCONN {
					t.Errorf("getpeername after a refusal by %s: %v, want ENOTCONN", refused, err)
				}
				s.reach(then)
				s.wantPeer(then)
				if got := s.ask(); got.Pod != "b1" {
					t.Errorf("%s answers on %s, want b1", got.Pod, then)
				}
			}
		}
	})
}

// AF_UNSPEC resets a socket. Its previous peer is forgotten, even if the next one is the very backend that the
// Service chose.
func TestDisconnectAndReconnect(t *testing.T) {
	w := startConnectWorld(t)
	b1, b2 := w.Host("b1"), w.Host("b2")
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.socket(t, w.Host("a1"), 0)
		for _, next := range []struct {
			to  netip.AddrPort
			pod string
		}{
			{f.clusterIP(1), "b1"},
			{f.pod(b1), "b1"},
			{f.clusterIP(2), "b2"},
			{f.clusterIP(1), "b1"},
			{f.pod(b2), "b2"},
			{f.pod(b1), "b1"},
		} {
			s.reach(next.to)
			s.wantPeer(next.to)
			if got := s.ask(); got.Pod != next.pod {
				t.Errorf("%s answers on %s, want %s", got.Pod, next.to, next.pod)
			}
			s.disconnect()
			if _, err := unix.Getpeername(s.fd); err != unix.ENOTCONN {
				t.Errorf("getpeername when disconnected: %v, want ENOTCONN", err)
			}
		}
		// A refusal in between does not restore the old peer either.
		s.reach(f.clusterIP(1))
		s.disconnect()
		if err := s.connect(f.clusterIP(3)); err != unix.ECONNREFUSED {
			t.Errorf("connect without endpoints: %v, want ECONNREFUSED", err)
		}
		s.reach(f.pod(b1))
		s.wantPeer(f.pod(b1))
	})
}

// A non-blocking connect is one decision, however often the program polls it.
func TestNonBlockingConnect(t *testing.T) {
	w := startConnectWorld(t)
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.socket(t, w.Host("a1"), unix.SOCK_NONBLOCK)
		before := w.counters(w.agent())
		if err := s.connect(f.clusterIP(1)); err != unix.EINPROGRESS {
			t.Fatalf("connect: %v, want EINPROGRESS", err)
		}
		if err := s.await(); err != nil {
			t.Fatalf("SO_ERROR: %v, want 0", err)
		}
		s.wantPeer(f.clusterIP(1))
		// Linux returns success once, and then EISCONN.
		if err := s.connect(f.clusterIP(1)); err != nil {
			t.Errorf("connect again: %v, want success", err)
		}
		if err := s.connect(f.clusterIP(1)); err != unix.EISCONN {
			t.Errorf("connect once more: %v, want EISCONN", err)
		}
		s.wantPeer(f.clusterIP(1))
		w.wantBalanced(t, before, 1)
	})
}

// A hanging attempt keeps the backend that was chosen for it.
func TestNonBlockingConnectInProgress(t *testing.T) {
	w := startConnectWorld(t)
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.socket(t, w.Host("a1"), unix.SOCK_NONBLOCK)
		before := w.counters(w.agent())
		if err := s.connect(f.clusterIP(4)); err != unix.EINPROGRESS {
			t.Fatalf("connect: %v, want EINPROGRESS", err)
		}
		for range 20 {
			if err := s.connect(f.clusterIP(4)); err != unix.EALREADY {
				t.Fatalf("connect again: %v, want EALREADY", err)
			}
		}
		if _, err := unix.Getpeername(s.fd); err != unix.ENOTCONN {
			t.Errorf("getpeername in between: %v, want ENOTCONN", err)
		}
		w.wantBalanced(t, before, 1)
		// The program gives up, and connects to a Service that answers.
		s.disconnect()
		s.reach(f.clusterIP(1))
		s.wantPeer(f.clusterIP(1))
		w.wantBalanced(t, before, 2)
	})
}

// wantBalanced checks the number of connections that the hooks have sent to a backend.
func (w *world) wantBalanced(t *testing.T, before counters, want uint64) {
	t.Helper()
	if got := w.counters(w.agent()).ConnectBalance - before.ConnectBalance; got != want {
		t.Errorf("the hooks sent %d connections to a backend, want %d", got, want)
	}
}

// SO_SNDTIMEO limits a blocking connect. It returns EINPROGRESS, and continues.
func TestBlockingConnectWithTimeout(t *testing.T) {
	w := startConnectWorld(t)
	inEachFamily(t, func(t *testing.T, f family) {
		socket := func(timeout time.Duration) *hostSocket {
			s, value := f.socket(t, w.Host("a1"), 0), unix.NsecToTimeval(timeout.Nanoseconds())
			if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &value); err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := socket(patience)
		if err := s.connectUndisturbed(f.clusterIP(1)); err != nil {
			t.Fatalf("connect: %v", err)
		}
		s.wantPeer(f.clusterIP(1))
		if err := socket(patience).connectUndisturbed(f.clusterIP(3)); err != unix.ECONNREFUSED {
			t.Errorf("connect without endpoints: %v, want ECONNREFUSED", err)
		}
		before := w.counters(w.agent())
		s = socket(50 * time.Millisecond)
		if err := s.connectUndisturbed(f.clusterIP(4)); err != unix.EINPROGRESS {
			t.Errorf("connect to what does not answer: %v, want EINPROGRESS", err)
		}
		if err := s.connectUndisturbed(f.clusterIP(4)); err != unix.EALREADY {
			t.Errorf("connect again: %v, want EALREADY", err)
		}
		w.wantBalanced(t, before, 1)
	})
}

// connectUndisturbed is connect without the signals by which the Go runtime interrupts threads: a connect with
// a timeout is not restarted after a signal (signal(7)).
func (s *hostSocket) connectUndisturbed(to netip.AddrPort) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, &before); err != nil {
		return err
	}
	defer unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	return s.connect(to)
}

// TCP Fast Open (RFC 7413) connects by sending.
func TestFastOpen(t *testing.T) {
	w := startConnectWorld(t)
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.socket(t, w.Host("a1"), 0)
		err := unix.Sendto(s.fd, []byte("first"), unix.MSG_FASTOPEN, f.sockaddr(f.clusterIP(1)))
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("net.ipv4.tcp_fastopen does not allow clients to use it")
		}
		if err != nil {
			t.Fatalf("sendto with MSG_FASTOPEN: %v", err)
		}
		s.wantPeer(f.clusterIP(1))
		if got, want := s.ask(), (lab.Answer{Pod: "b1", Peer: s.local(), Local: f.pod(w.Host("b1")), Payload: "first"}); got != want {
			t.Errorf("the server says %+v, want %+v", got, want)
		}
		refused := f.socket(t, w.Host("a1"), 0)
		err = unix.Sendto(refused.fd, []byte("first\n"), unix.MSG_FASTOPEN, f.sockaddr(f.clusterIP(3)))
		if err != unix.ECONNREFUSED {
			t.Errorf("sendto without endpoints: %v, want ECONNREFUSED", err)
		}
	})
}

// Multipath TCP (RFC 8684) connects a socket inside its socket. Services and refusals work as with TCP. Only
// getpeername, which reads the outer socket, returns the backend and not the Service.
func TestMultipathTCP(t *testing.T) {
	w := startConnectWorld(t)
	inEachFamily(t, func(t *testing.T, f family) {
		open := func() *hostSocket {
			fd, err := w.Host("a1").Socket(f.domain, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
			if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOPROTOOPT) {
				t.Skip("the kernel has no multipath TCP, or net.mptcp.enabled is off")
			}
			if err != nil {
				t.Fatal(err)
			}
			s := &hostSocket{t, f, fd}
			t.Cleanup(s.close)
			return s
		}
		s := open()
		s.reach(f.clusterIP(1))
		if got := s.ask(); got.Pod != "b1" {
			t.Errorf("%s answers, want b1", got.Pod)
		}
		if err := open().connect(f.clusterIP(3)); err != unix.ECONNREFUSED {
			t.Errorf("connect without endpoints: %v, want ECONNREFUSED", err)
		}
		if err := open().connect(f.clusterIP(9)); err != unix.EPERM {
			t.Errorf("connect to no Service: %v, want EPERM", err)
		}
	})
}

// A listed difference: two sockets of a pod that are bound to one port, and connect to two Services with the same only
// backend, would be one connection to the backend. The kernel refuses the second, as it does without Services.
// kube-proxy translates its port.
func TestOnePortToTwoServices(t *testing.T) {
	w := startConnectWorld(t)
	w.apply("again", objects(w.web("again", 5, "b1"))...)
	port := uint16(23456)
	inEachFamily(t, func(t *testing.T, f family) {
		first, second := f.socket(t, w.Host("a1"), 0), f.socket(t, w.Host("a1"), 0)
		port++ // earlier connections may be in TIME_WAIT
		w.must(first.bindReused(f.everywhere(port)))
		w.must(second.bindReused(f.everywhere(port)))
		first.reach(f.clusterIP(1))
		if err := second.connect(f.clusterIP(5)); err != unix.EADDRNOTAVAIL {
			t.Errorf("connect to the second Service: %v, want EADDRNOTAVAIL", err)
		}
		second.reach(f.clusterIP(2)) // another backend
	})
}
