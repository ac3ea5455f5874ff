// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// K2, K3: a socket that connects, sends elsewhere, connects again and disconnects always has the name of its
// latest peer.
func TestUDPConnectedAgain(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("one", objects(w.udp("one", 1, "a2 b1"))...)
	w.apply("two", objects(w.udp("two", 2, "a3 b2"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		one, two, pod := f.clusterIP(1), f.clusterIP(2), f.pod(w.Host("b3"))
		s := f.datagrams(t, w.Host("a1"))
		s.mustConnect(one)
		s.exchangeConnected(one)

		s.mustConnect(two)
		s.wantPeer(two)
		s.exchangeConnected(two)

		s.mustConnect(pod)
		s.wantPeer(pod)
		s.exchangeConnected(pod)

		s.mustConnect(one)
		s.wantPeer(one)
		before := s.exchangeConnected(one).Pod
		for range 20 { // to the same Service again: the flow keeps its backend
			s.mustConnect(one)
			if got := s.exchangeConnected(one).Pod; got != before {
				t.Errorf("connected to %s again, the socket went from %s to %s", one, before, got)
			}
		}
		// A connected socket that names its peer in sendto.
		if got := s.exchange(one).Pod; got != before {
			t.Errorf("sendto on the connected socket went to %s, send to %s", got, before)
		}
		s.disconnect()
		if _, err := peerName(s.fd); err != unix.ENOTCONN {
			t.Errorf("getpeername after disconnecting: %v", err)
		}
		if !f.v4 {
			return // Linux 6.18 delivers nothing to such a socket, even without Beeline
		}
		if got := s.exchange(one).Pod; got != before {
			t.Errorf("after disconnecting, datagrams went from %s to %s", before, got)
		}
		s.exchange(two)
		s.exchange(pod)
		s.mustConnect(two)
		s.exchangeConnected(two)
	})
}

// K2: a socket connected to a pod has that pod's name, whatever it used before.
func TestUDPConnectedToAPodAfterItsService(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		c := f.datagrams(t, w.Host("a1"))
		c.exchange(f.clusterIP(1))
		pod := f.pod(w.Host("b1"))
		c.mustConnect(pod)
		c.wantPeer(pod)
		c.exchangeConnected(pod)
	})
}

// K3: a socket connected to a plain address keeps its peer, even if that becomes a Service's address: an
// AF_INET6 socket with an IPv4 peer passes the hook with each send(2).
func TestUDPConnectedSocketStaysWithItsPeer(t *testing.T) {
	w := startWorld(t, "node-a")
	inEachFamily(t, func(t *testing.T, f family) {
		pod := f.pod(w.Host("b1"))
		s := f.datagrams(t, w.Host("a1"))
		s.mustConnect(pod)
		s.exchangeConnected(pod)
		svc, slicesOf := w.udp("dns", 1, "b2")
		svc.Spec.Ports[0].Port = int32(lab.PortUDP)
		svc.Spec.ExternalIPs = []string{w.Host("b1").Addr4.String(), w.Host("b1").Addr6.String()}
		w.apply("dns", objects(svc, slicesOf)...)
		if got := s.exchangeConnected(pod).Pod; got != "b1" {
			t.Errorf("connected to b1, the socket reached %s", got)
		}
		if got := s.exchange(pod).Pod; got != "b1" {
			t.Errorf("connected to b1, sendto reached %s", got)
		}
		// A backend whose address is also a Service's.
		w.apply("other", objects(w.udp("other", 2, "b1"))...)
		c := f.datagrams(t, w.Host("a1"))
		c.mustConnect(f.clusterIP(2))
		if got := c.exchangeConnected(f.clusterIP(2)).Pod; got != "b1" {
			t.Errorf("connected through a Service of b1, the socket reached %s", got)
		}
		w.remove("other")
		w.remove("dns")
	})
}

// K2: a failed connect() leaves a UDP socket connected as before, and with its peer name, whether Beeline or
// the kernel refuses.
func TestUDPConnectThatFails(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("one", objects(w.udp("one", 1, "a2 a3 b1 b2"))...)
	w.apply("empty", objects(w.udp("empty", 2, ""))...)
	unreachable, slicesOf := w.udp("unreachable", 3, "b1")
	slicesOf[0].Endpoints[0].Addresses[0], slicesOf[1].Endpoints[0].Addresses[0] = "10.99.0.1", "fd00:99::1"
	w.apply("unreachable", objects(unreachable, slicesOf)...)
	a1 := w.Host("a1")
	w.unroute(a1, "10.99.0.0/24")
	w.unroute(a1, "fd00:99::/64")
	inEachFamily(t, func(t *testing.T, f family) {
		one := f.clusterIP(1)
		for to, want := range map[netip.AddrPort]error{
			f.clusterIP(2): unix.ECONNREFUSED,
			f.clusterIP(9): unix.EPERM,
			f.clusterIP(3): unix.EHOSTUNREACH,
		} {
			s := f.datagrams(t, a1)
			s.mustConnect(one)
			first := s.exchangeConnected(one).Pod
			if err := s.connect(to); err != want {
				t.Errorf("connect to %s: %v, want %v", to, err, want)
			}
			s.wantPeer(one)
			if got := s.exchangeConnected(one).Pod; got != first {
				t.Errorf("the socket went from %s to %s", first, got)
			}
			if got := s.exchange(one).Pod; got != first {
				t.Errorf("sendto on the socket went to %s, send to %s", got, first)
			}
		}
	})
}

// unroute removes a host's route to a network: connect(2) then fails.
func (w *world) unroute(host *lab.Host, network string) {
	w.t.Helper()
	nl, err := host.Netlink()
	w.must(err)
	defer nl.Close()
	p := netip.MustParsePrefix(network)
	w.must(nl.RouteAdd(&netlink.Route{
		Dst:  &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		Type: unix.RTN_UNREACHABLE,
	}))
}

// R21: connect(2) of a UDP socket sends nothing, and programs use it to learn their source address towards a
// Service, whatever its ports are. Datagrams to such a port are refused.
func TestUDPConnectToAnUnknownPortTellsTheSource(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...) // only TCP
	inEachFamily(t, func(t *testing.T, f family) {
		for _, port := range []uint16{80, 81, 53} {
			to := netip.AddrPortFrom(f.clusterIP(1).Addr(), port)
			s := f.datagrams(t, w.Host("a1"))
			s.mustConnect(to)
			s.wantPeer(to)
			if got := s.local().Addr(); got != f.of(w.Host("a1")) {
				t.Errorf("towards %s the address is %s", to, got)
			}
			if err := f.datagrams(t, w.Host("a1")).sendTo("who", to); err != unix.ECONNREFUSED {
				t.Errorf("sendto %s: %v", to, err)
			}
		}
	})
}

// K2: a connect() to the socket's very backend removes the Service's name from it, also that of an earlier
// connect().
func TestUDPConnectedToTheVeryBackend(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("one", objects(w.udp("one", 1, "b1"))...)
	w.apply("two", objects(w.udp("two", 2, "b2"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		pod := f.pod(w.Host("b1"))
		for _, services := range [][]netip.AddrPort{{f.clusterIP(1)}, {f.clusterIP(1), f.clusterIP(2)}} {
			s := f.datagrams(t, w.Host("a1"))
			for _, to := range services {
				s.mustConnect(to)
				s.exchangeConnected(to)
			}
			s.mustConnect(pod)
			s.wantPeer(pod)
			s.exchangeConnected(pod)
		}
	})
}
