// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// K3: a datagram to a Service reaches a backend, which sees the client's own address, and the reply comes from
// the Service. The same on a connected socket, with each of the calls that return where a datagram came from.
func TestUDPThroughAClusterIP(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("dns", objects(w.udp("dns", 1, "a2 b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		to := f.clusterIP(1)
		w.wantMeetUDP(t, clients, f, to, "a2 b1")
		for _, host := range w.hosts(clients) {
			s := f.datagrams(t, host)
			answer := s.exchange(to)
			if f.of(host) != answer.Peer.Addr() {
				t.Errorf("the server sees %s as %s", host.Name, answer.Peer)
			}
			c := f.datagrams(t, host)
			c.mustConnect(to)
			c.wantPeer(to)
			answer = c.exchangeConnected(to)
			if answer.Peer != c.local() {
				t.Errorf("the server sees %s as %s, want %s", host.Name, answer.Peer, c.local())
			}
		}
	})
	if c := w.counters(w.agent()); c.FlowFailed+c.RecordFailed+c.DatagramNoBackend+c.ConnectNoBackend > 0 {
		t.Errorf("the hooks counted %+v", c)
	}
}

// R16, R21: datagrams get the same results as connect.
func TestUDPRefusals(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
	w.apply("empty", objects(w.udp("empty", 2, ""))...)
	inEachFamily(t, func(t *testing.T, f family) {
		unknown := netip.AddrPortFrom(f.clusterIP(1).Addr(), 81)
		for to, want := range map[netip.AddrPort]string{
			f.clusterIP(2): "ECONNREFUSED",
			unknown:        "ECONNREFUSED",
			f.clusterIP(9): "EPERM",
		} {
			w.wantMeetUDP(t, clients, f, to, want)
			if to == unknown {
				continue // connect sends nothing: TestUDPConnectToAnUnknownPort...
			}
			if got := errnoName(f.datagrams(t, w.Host("a1")).connect(to)); got != want {
				t.Errorf("connect to %s: %s, want %s", to, got, want)
			}
		}
		// R28: TCP's port with the same number is a different one.
		w.wantMeet(t, clients, f, f.clusterIP(1), rejected)
		// The socket is still usable.
		s := f.datagrams(t, w.Host("a1"))
		if err := s.sendTo("x", f.clusterIP(9)); err != unix.EPERM {
			t.Errorf("sendto: %v", err)
		}
		s.exchange(f.clusterIP(1))
	})
}

// R27: with session affinity a client's flows have one backend, connected or not, from any socket.
func TestUDPAffinity(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slicesOf := w.udp("dns", 1, "a1 a2 a3 b1 b2 b3")
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	w.apply("dns", objects(s, slicesOf)...)
	inEachFamily(t, func(t *testing.T, f family) {
		for _, host := range w.hosts(clients) {
			seen := map[string]bool{}
			for i := range 20 {
				c := f.datagrams(t, host)
				if i%2 == 0 {
					seen[c.exchange(f.clusterIP(1)).Pod] = true
				} else {
					c.mustConnect(f.clusterIP(1))
					seen[c.exchangeConnected(f.clusterIP(1)).Pod] = true
				}
				c.close()
			}
			if len(seen) != 1 {
				t.Errorf("%s reached %v", host.Name, sortedKeys(seen))
			}
		}
	})
}

// S1: a socket that uses no Service has no state and no other peer name, and unsolicited datagrams keep their
// own source.
func TestUDPPlainTrafficIsUntouched(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		before := w.counters(w.agent())
		s := f.datagrams(t, w.Host("a1"))
		for _, pod := range []string{"a2", "b1"} {
			s.exchange(netip.AddrPortFrom(f.of(w.Host(pod)), lab.PortUDP))
		}
		after := w.counters(w.agent())
		if after.DatagramBalance != before.DatagramBalance || after.FlowNew != before.FlowNew || after.DatagramName != before.DatagramName {
			t.Errorf("before %+v, after %+v", before, after)
		}
		if after.DatagramPass < before.DatagramPass+2 {
			t.Errorf("the hooks saw %d datagrams, want 2 at least", after.DatagramPass-before.DatagramPass)
		}
	})
}

// S2, S3, S5: the other kinds of address, by UDP.
func TestUDPOtherWaysIn(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slicesOf := w.udp("dns", 1, "a2 b1")
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports[0].NodePort = 30053
	s.Spec.ExternalIPs = []string{"198.51.100.7", "2001:db8::7"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}, {IP: "2001:db8:1::9"}}
	w.apply("dns", objects(s, slicesOf)...)
	inEachFamily(t, func(t *testing.T, f family) {
		node := w.Host("node-a")
		for _, to := range []netip.AddrPort{
			netip.AddrPortFrom(f.of(node), 30053),
			f.choose("198.51.100.7", "2001:db8::7", 80),
			f.choose("203.0.113.9", "2001:db8:1::9", 80),
		} {
			w.wantMeetUDP(t, clients, f, to, "a2 b1")
		}
		loopback := f.choose("127.0.0.1", "::1", 30053)
		w.wantMeetUDP(t, "node-a", f, loopback, "a2 b1")
		if f.v4 {
			w.wantMeetUDP(t, "node-a", f, f.choose("127.8.8.8", "", 30053), "a2 b1")
		}
		// K4: a pod's loopback is its own. Nobody listens there.
		c := f.datagrams(t, w.Host("a1"))
		c.mustConnect(loopback)
		w.must(c.send("who"))
		if _, _, err := c.receive(); err != unix.ECONNREFUSED {
			t.Errorf("a pod sent to its own %s: %v, want ECONNREFUSED from the host", loopback, err)
		}
	})
}

// S3: the unspecified address means this host: with a NodePort, loopback.
func TestUnspecifiedAddressIsThisHost(t *testing.T) {
	w := startWorld(t, "node-a")
	tcp, tcpSlices := w.web("web", 1, "a2")
	tcp.Spec.Type, tcp.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
	w.apply("web", objects(tcp, tcpSlices)...)
	udp, udpSlices := w.udp("dns", 2, "a2")
	udp.Spec.Type, udp.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30053
	w.apply("dns", objects(udp, udpSlices)...)
	inEachFamily(t, func(t *testing.T, f family) {
		any, loopback := f.choose("0.0.0.0", "::", 30080), f.choose("127.0.0.1", "::1", 30080)
		s := f.socket(t, w.Host("node-a"), 0)
		s.reach(any)
		s.wantPeer(loopback)
		if got := s.ask().Pod; got != "a2" {
			t.Errorf("%s is %s", any, got)
		}
		d := f.datagrams(t, w.Host("node-a"))
		w.must(d.sendTo("who", f.choose("0.0.0.0", "::", 30053)))
		d.wantAnswer("who", f.choose("127.0.0.1", "::1", 30053))
	})
}

// Flows, old and new, work without an agent (R37).
func TestUDPWithoutAnAgent(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("dns", objects(w.udp("dns", 1, "a2 b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.datagrams(t, w.Host("a1"))
		first := s.exchange(f.clusterIP(1)).Pod
		w.must(w.agent().Kill())
		if got := s.exchange(f.clusterIP(1)).Pod; got != first {
			t.Errorf("the flow went from %s to %s", first, got)
		}
		w.wantMeetUDP(t, clients, f, f.clusterIP(1), "a2 b1")
		w.must(w.agent().Start())
		if got := s.exchange(f.clusterIP(1)).Pod; got != first {
			t.Errorf("the flow went from %s to %s", first, got)
		}
	})
}

// R25: source ranges are checked if the source is known: by bind, or by IP_PKTINFO.
func TestUDPSourceRanges(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slicesOf := w.udp("dns", 1, "b1")
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.LoadBalancerSourceRanges = []string{"192.168.100.0/24", "fd00:100::/64"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}, {IP: "2001:db8:1::9"}}
	w.apply("dns", objects(s, slicesOf)...)
	inEachFamily(t, func(t *testing.T, f family) {
		to := f.choose("203.0.113.9", "2001:db8:1::9", 80)
		for _, c := range []struct {
			host string
			want error
		}{{"node-a", nil}, {"a1", unix.EPERM}} {
			bound := f.datagrams(t, w.Host(c.host))
			w.must(bound.bindReused(netip.AddrPortFrom(f.of(w.Host(c.host)), 0)))
			if err := bound.sendTo("who", to); err != c.want {
				t.Errorf("%s, bound: %v, want %v", c.host, err, c.want)
			}
			told := f.datagrams(t, w.Host(c.host))
			if err := told.sendFrom(f.of(w.Host(c.host)), "who", to); err != c.want {
				t.Errorf("%s, by IP_PKTINFO: %v, want %v", c.host, err, c.want)
			}
			if c.want == nil {
				bound.wantAnswer("who", to)
				told.wantAnswer("who", to)
			}
		}
	})
}
