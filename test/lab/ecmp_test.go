// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// vips are addresses on the loopback of balanced's hosts.
var vips = []netip.Addr{netip.MustParseAddr("198.19.0.1"), netip.MustParseAddr("2001:db8:e::1")}

// balanced is a lab in which node-a and node-b both have vips, and each runs a UDP server.
func balanced(t *testing.T) *Lab {
	t.Helper()
	l := NewOf(t, Shape{ThreeNodes: true})
	var hosts []*Host
	for _, name := range []string{"node-a", "node-b"} {
		h := l.Host(name)
		hosts = append(hosts, h)
		for _, vip := range vips {
			if err := h.AddAddress("lo", single(vip)); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.StartServer(ServerOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Balance([]netip.Prefix{netip.MustParsePrefix("198.19.0.0/16"), single(vips[1])}, hosts...); err != nil {
		t.Fatal(err)
	}
	return l
}

// whoServes sends UDP requests from so many ports, always the same ones, and returns who answers each.
func whoServes(t *testing.T, l *Lab, vip netip.Addr) (pods []string) {
	t.Helper()
	own := l.Host("client").Addr4
	if vip.Is6() {
		own = l.Host("client").Addr6
	}
	for i := range 32 {
		conn, err := l.Host("client").DialWith(withTimeout(t, patience), DialOptions{Local: netip.AddrPortFrom(own, uint16(20000+i))}, "udp", port(vip, PortUDP))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := Ask(withTimeout(t, patience), conn, "x")
		conn.Close()
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, answer.Pod)
	}
	return pods
}

// Two hosts share flows, each flow keeps its host; all go to the other one while one is cut off, in either
// order, and return when it has joined again.
func TestBalanceAndCutOff(t *testing.T) {
	l := balanced(t)
	before := map[netip.Addr][]string{}
	for _, vip := range vips {
		before[vip] = whoServes(t, l, vip)
		for _, name := range []string{"node-a", "node-b"} {
			if !strings.Contains(strings.Join(before[vip], " "), name) {
				t.Errorf("%s: %s serves no flow", vip, name)
			}
		}
	}
	for _, name := range []string{"node-a", "node-b"} {
		join, err := l.CutOff(l.Host(name))
		if err != nil {
			t.Fatal(err)
		}
		for _, vip := range vips {
			if got := strings.Join(whoServes(t, l, vip), " "); strings.Contains(got, name) {
				t.Errorf("%s is served by %s while %s is cut off", vip, got, name)
			}
		}
		if err := join(); err != nil {
			t.Fatal(err)
		}
		for _, vip := range vips {
			if got, want := strings.Join(whoServes(t, l, vip), " "), strings.Join(before[vip], " "); got != want {
				t.Errorf("%s, when %s has joined again, is served by\n%s, before by\n%s", vip, name, got, want)
			}
		}
		// What used only the device works again.
		for i, addr := range l.Host(name).addrs() {
			if answer, err := l.Host("client").Request(withTimeout(t, patience), "udp", port(addr, PortUDP), "x"); err != nil || answer.Pod != name {
				t.Errorf("%s: %+v, %v", addr, answer, err)
			}
			pod := l.Host(name).Pods()[0].addrs()[i]
			if _, err := l.Host("client").Dial(withTimeout(t, patience), "tcp", port(pod, 9)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s: %v, want it refused by the pod", pod, err)
			}
		}
	}
}

// A packet that is too long for a route's MTU is answered with it, in both families; packets from there may be
// longer.
func TestNarrow(t *testing.T) {
	l := newWithServers(t)
	if err := l.Host("fabric").Narrow("node-b", 1400); err != nil {
		t.Fatal(err)
	}
	for i, addr := range append(l.Host("b1").addrs(), l.Host("node-b").addrs()...) {
		headers, level := 28, i%2
		if level == 1 {
			headers = 48
		}
		conn, err := l.Host("client").DialWith(withTimeout(t, patience), DialOptions{Control: func(fd int) error {
			if level == 0 {
				return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			}
			return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
		}}, "udp", port(addr, PortUDP))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(make([]byte, 1401-headers)); err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.EMSGSIZE) {
			t.Errorf("%s: %v, want EMSGSIZE", addr, err)
		}
		if i >= 2 {
			continue
		}
		// The answer is longer than the request.
		if answer, err := Ask(withTimeout(t, patience), conn, strings.Repeat("x", 1400-headers)); err != nil || answer.Pod != "b1" {
			t.Errorf("%s: a datagram that fits: %q, %v", addr, answer.Pod, err)
		}
	}
}

// A capture has received and sent packets, with addresses and lengths, and fails if some are missing.
func TestCapture(t *testing.T) {
	l := newWithServers(t)
	start := func(options CaptureOptions) *Capture {
		t.Helper()
		options.Devices = []string{"client", "node-b"}
		c, err := l.Host("fabric").Capture(options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Stop() })
		return c
	}
	isUDP := func(p *CapturedPacket) bool { return p.Layers().TransportLayer() != nil }
	c, few := start(CaptureOptions{Keep: isUDP}), start(CaptureOptions{Keep: isUDP, Limit: 3})
	for i, addr := range l.Host("b1").addrs() {
		if _, err := l.Host("client").Request(withTimeout(t, patience), "udp", port(addr, PortUDP), "hello"); err != nil {
			t.Fatal(err)
		}
		got, err := c.Packets()
		if err != nil {
			t.Fatal(err)
		}
		passed := map[string]bool{}
		for _, p := range got {
			ends := p.Layers().NetworkLayer().NetworkFlow()
			direction := "came by"
			if p.Sent {
				direction = "was sent by"
			}
			passed[strings.Join([]string{ends.String(), direction, p.Device}, " ")] = true
			if asked := ends.Dst().String() == addr.String(); asked && p.Length != []int{33, 53}[i] {
				t.Errorf("the request has a length of %d", p.Length)
			}
		}
		client := l.Host("client").addrs()[i].String()
		for _, want := range []string{
			client + "->" + addr.String() + " came by client", client + "->" + addr.String() + " was sent by node-b",
			addr.String() + "->" + client + " came by node-b", addr.String() + "->" + client + " was sent by client",
		} {
			if !passed[want] {
				t.Errorf("not captured: %s; but %v", want, passed)
			}
		}
		if len(got) != 4 {
			t.Errorf("%d packets, want 4", len(got))
		}
	}
	if rest, err := c.Stop(); err != nil || len(rest) > 0 {
		t.Errorf("left: %v, %v", rest, err)
	}
	if got, err := few.Stop(); err == nil || len(got) != 3 {
		t.Errorf("with a limit of 3: %d packets, %v", len(got), err)
	}
}
