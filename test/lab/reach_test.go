// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// newWithServers is a lab with a server in every pod.
func newWithServers(t *testing.T) *Lab {
	t.Helper()
	l := New(t)
	if err := l.StartServers(); err != nil {
		t.Fatal(err)
	}
	return l
}

// addrs are a host's addresses, one per family.
func (h *Host) addrs() []netip.Addr { return []netip.Addr{h.Addr4, h.Addr6} }

func port(addr netip.Addr, port uint16) string { return netip.AddrPortFrom(addr, port).String() }

// Every pod, node and the client reach every pod in both families; the server
// sees the caller's own address, the caller the server's.
func TestEveryHostReachesEveryPod(t *testing.T) {
	l := newWithServers(t)
	ctx := withTimeout(t, 2*patience)
	for _, from := range l.Hosts() {
		if from.Role == RoleFabric {
			continue
		}
		for _, to := range l.Pods() {
			for family, addr := range to.addrs() {
				for network, p := range map[string]uint16{"tcp": PortTCP, "udp": PortUDP} {
					answer, err := from.Request(ctx, network, port(addr, p), "hello")
					if err != nil {
						t.Errorf("%s to %s: %v", from.Name, to.Name, err)
						continue
					}
					want := Answer{
						Pod: to.Name, Payload: "hello", Local: netip.AddrPortFrom(addr, p),
						Peer: netip.AddrPortFrom(from.addrs()[family], answer.Peer.Port()),
					}
					if answer != want {
						t.Errorf("%s to %s by %s: answer %v, want %v", from.Name, to.Name, network, answer, want)
					}
				}
			}
		}
	}
}

func TestHTTP(t *testing.T) {
	l := newWithServers(t)
	client := http.Client{Transport: &http.Transport{DialContext: l.Host("client").Dial}}
	defer client.CloseIdleConnections()
	for _, addr := range l.Host("b2").addrs() {
		request, err := http.NewRequestWithContext(withTimeout(t, patience), "GET", "http://"+port(addr, PortHTTP)+"/path?q=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		var answer Answer
		if err == nil {
			err = json.Unmarshal(body, &answer)
		}
		if err != nil || answer.Pod != "b2" || answer.Payload != "/path?q=1" || answer.Local != netip.AddrPortFrom(addr, PortHTTP) {
			t.Errorf("answer %s (%v), want pod b2 at %s and the path", body, err, addr)
		}
	}
}

// A connection to a Service that no hook translates ends at the fabric: soon, with an errno that differs from a
// rejected Service's, and without a loop.
func TestServiceRangeEndsAtTheFabric(t *testing.T) {
	l := New(t)
	for i, prefix := range []netip.Prefix{ServiceRange4, ServiceRange6} {
		counter := []string{"IpExtInNoRoutes", "Ip6InNoRoutes"}[i]
		timeouts := []string{"IcmpOutTimeExcds", "Icmp6OutTimeExcds"}[i]
		address := port(prefix.Addr().Next(), 80)
		for _, name := range []string{"a1", "b1", "node-b", "client"} {
			before := l.Host("fabric").counter(t, counter)
			_, err := l.Host(name).Dial(withTimeout(t, patience), "tcp", address)
			if !errors.Is(err, syscall.ENETUNREACH) {
				t.Errorf("%s to %s: %v, want ENETUNREACH", name, address, err)
			}
			// A second one would be its retransmission, after 1 s.
			if n := l.Host("fabric").counter(t, counter) - before; n != 1 {
				t.Errorf("%s to %s: the fabric received the one SYN %d times", name, address, n)
			}
		}
		for _, h := range l.Hosts() {
			if n := h.counter(t, timeouts); n != 0 {
				t.Errorf("%s: %d packets looped until their hop limit", h.Name, n)
			}
		}
	}
}

// A packet to a pod that does not exist ends at its node.
func TestUnknownPodEndsAtItsNode(t *testing.T) {
	l := New(t)
	for address, want := range map[string]syscall.Errno{
		"10.10.1.99:80":      syscall.EHOSTUNREACH,
		"[fd00:10:1::99]:80": syscall.ENETUNREACH, // ICMPv6 says "no route", whatever the route's type
	} {
		before := l.Host("fabric").forwarded(t)
		_, err := l.Host("b1").Dial(withTimeout(t, patience), "tcp", address)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", address, err, want)
		}
		// The SYN, and the reply to it.
		if n := l.Host("fabric").forwarded(t) - before; n != 2 {
			t.Errorf("%s: the fabric forwarded %d packets, want 2", address, n)
		}
	}
	for _, h := range l.Hosts() {
		if n := h.counter(t, "IcmpOutTimeExcds") + h.counter(t, "Icmp6OutTimeExcds"); n != 0 {
			t.Errorf("%s: %d packets looped until their hop limit", h.Name, n)
		}
	}
}

// forwarded counts the packets that a host has forwarded, in both families.
func (h *Host) forwarded(t *testing.T) int {
	t.Helper()
	return h.counter(t, "IpForwDatagrams") + h.counter(t, "Ip6OutForwDatagrams")
}

// counter reads a counter of the host's namespace by its nstat name.
func (h *Host) counter(t *testing.T, name string) int {
	t.Helper()
	out, err := h.Command(t.Context(), "cat", "/proc/self/net/snmp", "/proc/self/net/netstat", "/proc/self/net/snmp6").Output()
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 2 && fields[0] == name { // snmp6: name value
			return atoi(t, fields[1])
		}
		proto, isTable := strings.CutSuffix(fields[0], ":")
		if !isTable {
			continue
		}
		// snmp, netstat: a line of names, then one of values
		if len(keys) == len(fields) && keys[0] == fields[0] {
			for i := range keys {
				if proto+keys[i] == name {
					return atoi(t, fields[i])
				}
			}
			keys = nil
		} else {
			keys = fields
		}
	}
	t.Fatalf("host %s has no counter %s", h.Name, name)
	return 0
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDialErrors(t *testing.T) {
	l := New(t)
	a1, b1 := l.Host("a1"), l.Host("b1")
	addr := port(b1.Addr4, 9)
	_, err := a1.Dial(withTimeout(t, patience), "tcp", addr)
	var opErr *net.OpError
	if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &opErr) || opErr.Addr.String() != addr {
		t.Errorf("closed port: %v, want ECONNREFUSED for %s", err, addr)
	}

	blackhole(t, l.Host("fabric"), "10.99.0.0/16")
	start := time.Now()
	_, err = a1.Dial(withTimeout(t, 200*time.Millisecond), "tcp", "10.99.0.1:80")
	var netErr net.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &netErr) || !netErr.Timeout() {
		t.Errorf("deadline: %v, want a timeout", err)
	}
	if took := time.Since(start); took < 200*time.Millisecond {
		t.Errorf("deadline of 200 ms ended the dial after %v", took)
	}

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err = a1.Dial(ctx, "tcp", "10.99.0.1:80"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v, want context.Canceled", err)
	}
}

// blackhole makes a router drop packets silently.
func blackhole(t *testing.T, h *Host, prefix string) {
	t.Helper()
	nl, err := h.Netlink()
	if err != nil {
		t.Fatal(err)
	}
	defer nl.Close()
	route := &netlink.Route{Dst: ipNet(netip.MustParsePrefix(prefix)), Type: unix.RTN_BLACKHOLE}
	if err := nl.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
}

func TestDialV4Mapped(t *testing.T) {
	l := newWithServers(t)
	address := port(l.Host("b1").Addr4, PortTCP)
	family := 0
	options := DialOptions{V4Mapped: true, Control: func(fd int) (err error) {
		family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		return err
	}}
	conn, err := l.Host("a1").DialWith(withTimeout(t, patience), options, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := Ask(withTimeout(t, patience), conn, "x")
	if err != nil {
		t.Fatal(err)
	}
	if family != unix.AF_INET6 {
		t.Errorf("socket of family %d, want AF_INET6", family)
	}
	if answer.Peer.Addr() != l.Host("a1").Addr4 || conn.RemoteAddr().String() != address {
		t.Errorf("peer %v, remote address %v, want %v and %v", answer.Peer, conn.RemoteAddr(), l.Host("a1").Addr4, address)
	}
	_, err = l.Host("a1").DialWith(withTimeout(t, patience), DialOptions{V4Mapped: true}, "tcp", port(ServiceRange4.Addr(), 80))
	if !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("to the Service range: %v, want ENETUNREACH", err)
	}
}

func TestDialFromLocalAddress(t *testing.T) {
	l := newWithServers(t)
	local := netip.AddrPortFrom(l.Host("a1").Addr6, 4711)
	conn, err := l.Host("a1").DialWith(withTimeout(t, patience), DialOptions{Local: local}, "tcp", port(l.Host("b1").Addr6, PortTCP))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if answer, err := Ask(withTimeout(t, patience), conn, ""); err != nil || answer.Peer != local {
		t.Errorf("peer %v (%v), want %v", answer.Peer, err, local)
	}
}

func TestListen(t *testing.T) {
	l := New(t)
	ctx := withTimeout(t, patience)
	listener, err := l.Host("b3").Listen("tcp", "[::]:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := listener.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for _, addr := range l.Host("b3").addrs() {
		conn, err := l.Host("client").Dial(ctx, "tcp", port(addr, 7000))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		if got := unmapped(accepted.RemoteAddr()); got.String() != conn.LocalAddr().String() {
			t.Errorf("accepted from %v, want %v", got, conn.LocalAddr())
		}
	}
	packets, err := l.Host("b3").ListenPacket("udp4", "0.0.0.0:7001")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	conn, err := l.Host("a2").Dial(ctx, "udp", port(l.Host("b3").Addr4, 7001))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	packets.SetReadDeadline(time.Now().Add(patience))
	if _, from, err := packets.ReadFrom(make([]byte, 9)); err != nil || from.String() != conn.LocalAddr().String() {
		t.Errorf("datagram from %v (%v), want %v", from, err, conn.LocalAddr())
	}
}
