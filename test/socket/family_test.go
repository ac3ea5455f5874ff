// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A family is one of the ways in which a program uses an address.
type family struct {
	name   string
	domain int  // of its sockets
	v4     bool // uses an IPv4 address
	mapped bool // by an AF_INET6 socket and ::ffff:a.b.c.d
}

var (
	ipv4     = family{name: "IPv4", domain: unix.AF_INET, v4: true}
	ipv6     = family{name: "IPv6", domain: unix.AF_INET6}
	v4Mapped = family{name: "IPv4 in IPv6", domain: unix.AF_INET6, v4: true, mapped: true}

	families = []family{ipv4, ipv6, v4Mapped}
)

// inEachFamily runs a test once for each family, in order.
func inEachFamily(t *testing.T, test func(*testing.T, family)) {
	t.Helper()
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) { test(t, f) })
	}
}

// of is a host's address in the family.
func (f family) of(h *lab.Host) netip.Addr {
	if f.v4 {
		return h.Addr4
	}
	return h.Addr6
}

// pod is where a pod's server listens.
func (f family) pod(h *lab.Host) netip.AddrPort { return netip.AddrPortFrom(f.of(h), lab.PortTCP) }

// clusterIP is port 80 of the ClusterIP of number n.
func (f family) clusterIP(n uint8) netip.AddrPort {
	ip := node.ClusterIPs(n)[1]
	if f.v4 {
		ip = node.ClusterIPs(n)[0]
	}
	return netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
}

// choose returns the address for the family.
func (f family) choose(v4, v6 string, port uint16) netip.AddrPort {
	if f.v4 {
		v6 = v4
	}
	return netip.AddrPortFrom(netip.MustParseAddr(v6), port)
}

func (f family) sockaddr(a netip.AddrPort) unix.Sockaddr {
	if f.domain == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// A hostSocket is a socket of a host; the test makes its system calls directly.
type hostSocket struct {
	t  *testing.T
	f  family
	fd int
}

// socket makes a socket; flags are those of socket(2).
func (f family) socket(t *testing.T, host *lab.Host, flags int) *hostSocket {
	t.Helper()
	fd, err := host.Socket(f.domain, unix.SOCK_STREAM|flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &hostSocket{t, f, fd}
	t.Cleanup(s.close)
	return s
}

func (s *hostSocket) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
	}
	s.fd = -1
}

// bindReused is bind(2) with SO_REUSEADDR. Connections of an earlier socket may remain there, and for a moment
// even some that forbid it.
func (s *hostSocket) bindReused(to netip.AddrPort) error {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Bind(s.fd, s.f.sockaddr(to))
		if err != unix.EADDRINUSE || time.Now().After(deadline) {
			return err
		}
	}
}

// connect is one connect(2).
func (s *hostSocket) connect(to netip.AddrPort) error { return unix.Connect(s.fd, s.f.sockaddr(to)) }

// disconnect is connect(2) to AF_UNSPEC, which resets the socket.
func (s *hostSocket) disconnect() {
	s.t.Helper()
	unspec := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(s.fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
	if errno != 0 {
		s.t.Fatalf("connect to AF_UNSPEC: %v", errno)
	}
}

// reportUnreachable makes an ICMP error end a connection attempt at once, and not only when the SYN is
// retransmitted after a second: an error that arrives while connect(2) still holds the socket is queued, too.
func (s *hostSocket) reportUnreachable() {
	s.t.Helper()
	err := unix.SetsockoptInt(s.fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	if err == nil && s.f.domain == unix.AF_INET6 {
		err = unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// await polls until a connection attempt has ended, and returns its SO_ERROR.
func (s *hostSocket) await() error {
	s.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		poll := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(poll, 100); n < 1 {
			if err != nil && err != unix.EINTR {
				s.t.Fatalf("poll: %v", err)
			}
			continue
		}
		errno, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			s.t.Fatal(err)
		}
		if errno != 0 {
			return unix.Errno(errno)
		}
		if poll[0].Revents&unix.POLLOUT != 0 {
			return nil
		}
	}
	s.t.Fatalf("the connection attempt has not ended after %v", patience)
	return nil
}

// reach connects a socket of either kind, blocking or not.
func (s *hostSocket) reach(to netip.AddrPort) {
	s.t.Helper()
	err := s.connect(to)
	if err == unix.EINPROGRESS || err == unix.EINTR {
		err = s.await()
	}
	if err != nil {
		s.t.Fatalf("connect to %s: %v", to, err)
	}
}

// wantPeer checks getpeername(2), its family included.
func (s *hostSocket) wantPeer(want netip.AddrPort) {
	s.t.Helper()
	sa, err := unix.Getpeername(s.fd)
	got, err := addrPort(sa, err)
	if err != nil || got != want {
		s.t.Errorf("getpeername: %v (%v), want %v", got, err, want)
		return
	}
	if _, is4 := sa.(*unix.SockaddrInet4); is4 != (s.f.domain == unix.AF_INET) {
		s.t.Errorf("getpeername: %T, but the socket is one of %s", sa, s.f.name)
	}
}

// ask sends the peer a request, and returns its answer.
func (s *hostSocket) ask() lab.Answer {
	s.t.Helper()
	answer, err := askOn(s.fd)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer
}

// askOn sends a request on a connected socket, and leaves it open.
func askOn(fd int) (lab.Answer, error) {
	copied, err := unix.Dup(fd)
	if err != nil {
		return lab.Answer{}, err
	}
	f := os.NewFile(uintptr(copied), "socket")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return lab.Answer{}, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return lab.Ask(ctx, conn, "")
}

// local is getsockname(2).
func (s *hostSocket) local() netip.AddrPort {
	s.t.Helper()
	a, err := addrPort(unix.Getsockname(s.fd))
	if err != nil {
		s.t.Fatal(err)
	}
	return a
}

func peerName(fd int) (netip.AddrPort, error) { return addrPort(unix.Getpeername(fd)) }

// addrPort converts the kernel's result; IPv4 is unmapped.
func addrPort(sa unix.Sockaddr, err error) (netip.AddrPort, error) {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), err
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port)), err
	}
	if err == nil {
		err = fmt.Errorf("address %v of another family", sa)
	}
	return netip.AddrPort{}, err
}

func errnoName(errno error) string {
	if e, ok := errno.(unix.Errno); ok {
		return unix.ErrnoName(e)
	}
	return errno.Error()
}
