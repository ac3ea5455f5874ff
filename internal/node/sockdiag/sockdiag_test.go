// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/needs"
)

// ownNamespace moves the test into a network namespace with loopback, on a thread that ends with it.
func ownNamespace(t *testing.T) {
	t.Helper()
	needs.Root(t)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, domain, kind int) int {
	t.Helper()
	fd, err := unix.Socket(domain, kind, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func bound(t *testing.T, domain, kind int, to string) int {
	t.Helper()
	fd := open(t, domain, kind)
	must(t, unix.Bind(fd, sockaddr(domain, to)))
	return fd
}

func sockaddr(domain int, text string) unix.Sockaddr {
	a := netip.MustParseAddrPort(text)
	if domain == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// find returns the socket of a descriptor from List.
func find(t *testing.T, fd int, protocol uint8, states States) (Socket, bool) {
	t.Helper()
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	must(t, err)
	all, err := List(protocol, states)
	must(t, err)
	for _, s := range all {
		if s.Cookie == cookie {
			return s, true
		}
	}
	return Socket{}, false
}

// TestList: addresses have the socket's own family, and the other fields are correct.
func TestList(t *testing.T) {
	ownNamespace(t)
	for _, c := range []struct {
		domain, kind int
		address      string
		v6Only       bool
	}{
		{unix.AF_INET, unix.SOCK_STREAM, "0.0.0.0:1001", false},
		{unix.AF_INET, unix.SOCK_STREAM, "127.0.0.2:1002", false},
		{unix.AF_INET6, unix.SOCK_STREAM, "[::]:1003", false},
		{unix.AF_INET6, unix.SOCK_STREAM, "[::]:1004", true},
		{unix.AF_INET6, unix.SOCK_STREAM, "[::ffff:127.0.0.1]:1005", false},
		{unix.AF_INET, unix.SOCK_DGRAM, "127.0.0.1:1006", false},
		{unix.AF_INET6, unix.SOCK_DGRAM, "[::1]:1007", true},
		{unix.AF_INET6, unix.SOCK_DGRAM, "[::]:1008", false},
	} {
		fd := open(t, c.domain, c.kind)
		if c.v6Only {
			must(t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
		}
		must(t, unix.BindToDevice(fd, "lo"))
		must(t, unix.Bind(fd, sockaddr(c.domain, c.address)))
		protocol, state := uint8(unix.IPPROTO_UDP), Closed
		if c.kind == unix.SOCK_STREAM {
			must(t, unix.Listen(fd, 1))
			protocol, state = unix.IPPROTO_TCP, Listening
		}
		var st unix.Stat_t
		must(t, unix.Fstat(fd, &st))
		got, found := find(t, fd, protocol, Listening|Closed)
		want := Socket{
			Protocol: protocol, State: state,
			Local: netip.MustParseAddrPort(c.address), Remote: got.Remote,
			Device: 1, Cookie: got.Cookie, Inode: uint32(st.Ino), V6Only: c.v6Only,
		}
		if !found || got != want || !got.Remote.Addr().IsUnspecified() || got.Remote.Port() != 0 {
			t.Errorf("%s: %+v, want %+v", c.address, got, want)
		}
		if _, found := find(t, fd, protocol, Established); found {
			t.Errorf("%s: listed as established", c.address)
		}
	}
}

// connected returns a socket that is connected to a listener of the same kind.
func connected(t *testing.T, domain, kind int, to string) (client, server int) {
	t.Helper()
	server = bound(t, domain, kind, to)
	if kind == unix.SOCK_STREAM {
		must(t, unix.Listen(server, 1))
	}
	client = open(t, domain, kind)
	must(t, unix.Connect(client, sockaddr(domain, to)))
	return client, server
}

// TestDestroy: reads from the socket return ECONNABORTED; other sockets are not affected.
func TestDestroy(t *testing.T) {
	ownNamespace(t)
	for _, c := range []struct {
		domain, kind int
		to           string
	}{
		{unix.AF_INET, unix.SOCK_STREAM, "127.0.0.1:2001"},
		{unix.AF_INET6, unix.SOCK_STREAM, "[::1]:2002"},
		{unix.AF_INET6, unix.SOCK_STREAM, "[::ffff:127.0.0.1]:2003"},
		{unix.AF_INET, unix.SOCK_DGRAM, "127.0.0.1:2004"},
		{unix.AF_INET6, unix.SOCK_DGRAM, "[::1]:2005"},
		{unix.AF_INET6, unix.SOCK_DGRAM, "[::ffff:127.0.0.1]:2006"},
	} {
		protocol := uint8(unix.IPPROTO_UDP)
		if c.kind == unix.SOCK_STREAM {
			protocol = unix.IPPROTO_TCP
		}
		client, server := connected(t, c.domain, c.kind, c.to)
		other := open(t, c.domain, c.kind)
		must(t, unix.Connect(other, sockaddr(c.domain, c.to)))
		s, found := find(t, client, protocol, Established)
		if !found || s.Remote != netip.MustParseAddrPort(c.to) {
			t.Errorf("%s: listed is %+v", c.to, s)
			continue
		}
		wrong := s
		wrong.Cookie++
		mustDestroy(t, wrong, false) // another socket with these addresses: the requested one does not exist
		if _, found := find(t, client, protocol, Established); !found {
			t.Errorf("%s: a wrong cookie destroyed the socket", c.to)
		}
		mustDestroy(t, s, true)
		must(t, unix.SetNonblock(client, true))
		if _, err := unix.Read(client, make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("%s: read returns %v, want ECONNABORTED", c.to, err)
		}
		if _, found := find(t, client, protocol, Established); found {
			t.Errorf("%s: still established", c.to)
		}
		if _, found := find(t, other, protocol, Established); !found {
			t.Errorf("%s: the other connection was destroyed too", c.to)
		}
		mustDestroy(t, s, false) // destroyed before
		unix.Close(server)
	}
}

func mustDestroy(t *testing.T, s Socket, want bool) {
	t.Helper()
	ended, err := Destroy(s)
	must(t, err)
	if ended != want {
		t.Errorf("destroyed %s: %t, want %t", s, ended, want)
	}
}

// TestNoProtocol: List returns ErrNoProtocol for a protocol that the kernel cannot list.
func TestNoProtocol(t *testing.T) {
	ownNamespace(t)
	if _, err := List(unix.IPPROTO_DCCP, AllStates); !errors.Is(err, ErrNoProtocol) {
		t.Errorf("list DCCP: %v", err)
	}
}

// TestListManySockets: more sockets than fit into one netlink message.
func TestListManySockets(t *testing.T) {
	ownNamespace(t)
	var want []netip.AddrPort
	for range 500 {
		l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		must(t, err)
		defer l.Close()
		want = append(want, l.LocalAddr().(*net.UDPAddr).AddrPort())
	}
	begin := time.Now()
	all, err := List(unix.IPPROTO_UDP, Closed)
	must(t, err)
	t.Logf("%d sockets in %v", len(all), time.Since(begin))
	for _, a := range want {
		if !slices.ContainsFunc(all, func(s Socket) bool { return s.Local == a }) {
			t.Fatalf("%s is not listed", a)
		}
	}
}
