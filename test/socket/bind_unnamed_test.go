// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// choosePorts sets the range from which the kernel chooses ports of a host's sockets.
func (w *world) choosePorts(host *lab.Host, first, last uint16) {
	w.t.Helper()
	w.must(host.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "%d %d", first, last), 0o644)
	}))
}

// portTaken is in that range.
const portTaken = 40001

// startHostPortWorld has a HostPort in the range, in which a test lets the kernel choose.
func startHostPortWorld(t *testing.T) *world {
	t.Helper()
	w := startWorld(t, "node-a")
	w.apply("a1", podWithPort(w.Host("a1"), "", portTaken))
	return w
}

// K5: bind() to port 0 returns three of the four ports in the kernel's range. It may fail from time to time,
// because the range is so short.
func TestBindToPortZero(t *testing.T) {
	w := startHostPortWorld(t)
	host := w.Host("node-a")
	w.choosePorts(host, portTaken-1, portTaken+2)
	inEachFamily(t, func(t *testing.T, f family) {
		for _, tr := range []transport{tcp, udp} {
			for _, to := range []netip.AddrPort{f.everywhere(0), f.on(host, 0), netip.AddrPortFrom(f.loopbacks()[0].Addr(), 0)} {
				given := map[uint16]int{}
				for range 100 { // a port of four is missed with a probability of 4 * (3/4)^100 < 2e-12
					s, err := tr.bind(t, host, f, to)
					if err != nil && err != refused {
						t.Fatalf("bind %s %s: %v", tr.name, to, err)
					}
					if err == nil {
						given[s.local().Port()]++
					}
					s.close()
				}
				if given[portTaken] > 0 || len(given) == 0 {
					t.Errorf("bind %s %s got ports %v; %d is a HostPort", tr.name, to, given, portTaken)
				}
			}
		}
	})
}

// K5: with no other port left, bind() returns EADDRINUSE. A connection's own port receives no other
// connections, so connect() without bind() may use the port, and so may a bind() that leaves the choice to
// connect().
func TestBindToPortZeroWithoutAFreePort(t *testing.T) {
	w := startHostPortWorld(t)
	host, server := w.Host("node-a"), w.Host("b1")
	w.choosePorts(host, portTaken, portTaken)
	inEachFamily(t, func(t *testing.T, f family) {
		wantBind(t, host, f, f.everywhere(0), refused)
		wantBind(t, host, f, f.on(host, 0), refused)
		for _, tr := range []transport{tcp, udp} {
			for _, bound := range []bool{false, true} {
				fd, err := host.Socket(f.domain, tr.kind, tr.protocol)
				w.must(err)
				s := &hostSocket{t, f, fd}
				t.Cleanup(s.close)
				if bound {
					w.must(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
					if err := unix.Bind(fd, f.sockaddr(f.on(host, 0))); err != nil {
						t.Errorf("%s bind with IP_BIND_ADDRESS_NO_PORT: %v", tr.name, err)
						continue
					}
				}
				// Without TIME_WAIT, which would occupy the only port.
				w.must(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
				if err := s.connect(f.pod(server)); err != nil || s.local().Port() != portTaken {
					t.Errorf("%s connect, bound %v: %v; from %s", tr.name, bound, err, s.local())
				}
				s.close()
			}
		}
	})
	w.choosePorts(host, portTaken, portTaken+1)
	w.remove("a1")
	w.eventually("the port is free", func() bool {
		return tcp.try(t, host, ipv4, ipv4.everywhere(portTaken)) == allowed && udp.try(t, host, ipv6, ipv6.everywhere(portTaken)) == allowed
	})
	w.choosePorts(host, portTaken, portTaken)
	inEachFamily(t, func(t *testing.T, f family) { wantBind(t, host, f, f.everywhere(0), allowed) })
}

// K5: state of an unfinished bind() to port 0 does not affect later ones.
func TestBindAfterAnUnfinishedOne(t *testing.T) {
	w := startWorld(t, "node-a")
	host, extra := w.Host("node-a"), netip.MustParseAddr("203.0.113.7")
	w.addAddress(host, extra)
	w.apply("a1", podWithPort(w.Host("a1"), extra.String(), hostPort)) // only IPv4
	for _, tr := range []transport{tcp, udp} {
		s, err := tr.bind(t, host, ipv6, ipv6.choose("", "2001:db8::1", 0))
		if err != unix.EADDRNOTAVAIL {
			t.Fatalf("%s bind to a foreign address: %v", tr.name, err)
		}
		w.must(unix.SetsockoptInt(s.fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
		if err := unix.Bind(s.fd, ipv6.sockaddr(ipv6.everywhere(hostPort))); err != nil {
			t.Errorf("%s bind for IPv6 only, after a failed one: %v", tr.name, err)
		}
	}
}

// K5: a pod may get any port that its kernel chooses.
func TestBindToPortZeroInAPod(t *testing.T) {
	w := startHostPortWorld(t)
	pod := w.Host("a2")
	w.choosePorts(pod, portTaken, portTaken)
	inEachFamily(t, func(t *testing.T, f family) { wantBind(t, pod, f, f.everywhere(0), allowed) })
}
