// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
)

// A connectedSocket is a UDP socket that has got a reply.
type connectedSocket struct {
	*udpSocket
	what string
	to   netip.AddrPort
	pod  string
}

// connectUDP connects a new socket of a host to an address.
func (w *world) connectUDP(t *testing.T, f family, host *lab.Host, to netip.AddrPort) *connectedSocket {
	t.Helper()
	s := &connectedSocket{udpSocket: f.datagrams(t, host), to: to}
	s.mustConnect(to)
	s.pod = s.exchangeConnected(to).Pod
	s.what = fmt.Sprintf("the socket of %s to %s (%s, %s)", host.Name, to, f.name, s.pod)
	return s
}

// connectToEach connects sockets of all families and askers to Service n until each of two backends has some of
// each.
func (w *world) connectToEach(t *testing.T, n uint8, one, two string) (first, second []*connectedSocket) {
	t.Helper()
	for _, f := range families {
		for _, host := range w.hosts(askers) {
			for has := map[string]bool{}; len(has) < 2; {
				s := w.connectUDP(t, f, host, f.clusterIP(n))
				has[s.pod] = true
				switch s.pod {
				case one:
					first = append(first, s)
				case two:
					second = append(second, s)
				default:
					t.Fatalf("%s has a backend other than %s and %s", s.what, one, two)
				}
			}
		}
	}
	return first, second
}

// wantEnded waits until the socket was aborted, and checks the program's error.
func (s *connectedSocket) wantEnded() {
	s.t.Helper()
	poll := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, int(patience.Milliseconds()))
	for err == unix.EINTR {
		n, err = unix.Poll(poll, int(patience.Milliseconds()))
	}
	if err != nil || n != 1 || poll[0].Revents&unix.POLLERR == 0 {
		s.t.Errorf("%s: poll says %#x (%v), want POLLERR", s.what, poll[0].Revents, err)
		return
	}
	if _, err := unix.Read(s.fd, make([]byte, 1)); err != unix.ECONNABORTED {
		s.t.Errorf("%s: recv says %v, want ECONNABORTED", s.what, err)
	}
	if err := s.send("x"); err != unix.EDESTADDRREQ {
		s.t.Errorf("%s is still connected: send says %v, want EDESTADDRREQ", s.what, err)
	}
}

func wantAllEnded(all []*connectedSocket) {
	for _, s := range all {
		s.t.Helper()
		s.wantEnded()
	}
}

// wantUntouched checks that sockets have no error, and still their peer and their backend.
func wantUntouched(all []*connectedSocket) {
	for _, s := range all {
		s.t.Helper()
		errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || errno != 0 {
			s.t.Errorf("%s: SO_ERROR says %v (%v)", s.what, unix.Errno(errno), err)
			continue
		}
		s.wantPeer(s.to)
		if got := s.exchangeConnected(s.to).Pod; got != s.pod {
			s.t.Errorf("%s has %s now", s.what, got)
		}
	}
}

// sockets is the status of socket GC.
func (w *world) sockets() api.SocketTermination {
	w.t.Helper()
	status, err := w.agent().Status()
	w.must(err)
	return status.SocketTermination
}

// quiet waits until no GC pass is pending.
func (w *world) quiet() {
	w.t.Helper()
	w.eventually("no GC pass is pending", func() bool { return !w.sockets().Pending })
}

// sweepsAfter makes a change that needs a GC pass, and waits until all passes after it have ended.
func (w *world) sweepsAfter(change func()) {
	w.t.Helper()
	w.quiet()
	before := w.sockets().Passes
	change()
	w.eventually("there was a GC pass", func() bool { return w.sockets().Passes > before })
	w.quiet()
}

// churnNamespaces creates and removes network namespaces until stop.
func (w *world) churnNamespaces() (stop func()) {
	ended := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
			}
			thread := make(chan error)
			go func() {
				runtime.LockOSThread() // ends with the goroutine, and the namespace with it
				thread <- unix.Unshare(unix.CLONE_NEWNET)
			}()
			if err := <-thread; err != nil {
				w.t.Errorf("unshare: %v", err)
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(ended)
		group.Wait()
	})
}
