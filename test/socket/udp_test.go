// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// K3: a datagram to a Service reaches a backend, which sees the client's own
// address, and the answer comes from the Service. So it does on a connected
// socket, with each of the calls that can tell where a datagram came from.
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
				t.Errorf("%s is seen as %s", host.Name, answer.Peer)
			}
			c := f.datagrams(t, host)
			c.mustConnect(to)
			c.wantPeer(to)
			answer = c.exchangeConnected(to)
			if answer.Peer != c.local() {
				t.Errorf("%s is seen as %s, and is %s", host.Name, answer.Peer, c.local())
			}
		}
	})
	if c := w.counters(w.agent()); c.FlowFailed+c.RecordFailed+c.DatagramFault+c.ConnectFault > 0 {
		t.Errorf("the hooks counted %+v", c)
	}
}

// K3: all datagrams of one socket to one Service go to one backend, whatever
// comes in between; other sockets have their own.
func TestUDPFlowKeepsItsBackend(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("one", objects(w.udp("one", 1, "a1 a2 a3 b1 b2 b3"))...)
	w.apply("two", objects(w.udp("two", 2, "a1 a2 a3 b1 b2 b3"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		for _, host := range w.hosts(clients) {
			s := f.datagrams(t, host)
			one, two := s.exchange(f.clusterIP(1)).Pod, s.exchange(f.clusterIP(2)).Pod
			for range 20 {
				s.exchange(f.pod(w.Host("b2")))
				if got := s.exchange(f.clusterIP(1)).Pod; got != one {
					t.Errorf("a datagram of %s went to %s, those before to %s", host.Name, got, one)
				}
				if got := s.exchange(f.clusterIP(2)).Pod; got != two {
					t.Errorf("a datagram of %s went to %s, those before to %s", host.Name, got, two)
				}
			}
		}
	})
}

// K3: one socket asks many Services and plain addresses at once; each answer has
// the name of what was asked, also where all have the same backends.
func TestUDPOneSocketAsksManyServices(t *testing.T) {
	const services = 40
	w := startWorld(t, "node-a")
	var all []netip.AddrPort
	for n := range uint8(services) {
		w.write("s"+string(rune('A'+n)), objects(w.udp("s"+string(rune('a'+n%26))+string(rune('a'+n/26)), n+1, "a1 a2 a3 b1 b2 b3"))...)
	}
	w.must(w.folder.Await(w.agents...))
	inEachFamily(t, func(t *testing.T, f family) {
		all = all[:0]
		for n := range uint8(services) {
			all = append(all, f.clusterIP(n+1))
		}
		all = append(all, f.pod(w.Host("b3")), f.pod(w.Host("a2")))
		s := f.datagrams(t, w.Host("a1"))
		pods := map[netip.AddrPort]string{}
		for range 3 {
			for _, to := range all {
				pod := s.exchange(to).Pod
				if known := pods[to]; known != "" && pod != known {
					t.Errorf("datagrams to %s went to %s and to %s", to, known, pod)
				}
				pods[to] = pod
			}
		}
		if c := w.counters(w.agent()); c.FlowEvicted > 0 {
			t.Errorf("%d flows made room for others", c.FlowEvicted)
		}
	})
}

// K2: what a socket asked is found again even with hundreds of Services, and
// what is too much pushes out what was used longest ago, and is counted.
func TestUDPMoreFlowsThanFit(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slices := w.udp("many", 1, "b1")
	const ports = 300
	s.Spec.Ports = nil
	for i := range int32(ports) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: "p" + string(rune('a'+i%26)) + string(rune('a'+i/26)), Protocol: corev1.ProtocolUDP, Port: 1000 + i,
		})
	}
	for _, slice := range slices {
		slice.Ports = nil
		for _, p := range s.Spec.Ports {
			name, port, protocol := p.Name, int32(lab.PortUDP), corev1.ProtocolUDP
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &protocol})
		}
	}
	w.apply("many", objects(s, slices)...)
	f := ipv4
	to := func(i int) netip.AddrPort { return netip.AddrPortFrom(f.clusterIP(1).Addr(), uint16(1000+i)) }
	c := f.datagrams(t, w.Host("a1"))
	for range 2 {
		for i := range 250 {
			c.exchange(to(i))
		}
	}
	if n := w.counters(w.agent()); n.FlowNew != 250 || n.FlowEvicted != 0 {
		t.Errorf("250 flows: %d new, %d evicted", n.FlowNew, n.FlowEvicted)
	}
	for i := range ports {
		c.exchange(to(i))
		for _, often := range []int{4, 100, min(i, 259)} { // wherever they are kept
			c.exchange(to(often))
		}
	}
	n := w.counters(w.agent())
	if n.FlowEvicted == 0 || n.FlowEvicted > ports || n.FlowFailed != 0 {
		t.Errorf("%d flows: %d evicted, %d failed", ports, n.FlowEvicted, n.FlowFailed)
	}
	for _, often := range []int{4, 100, 259, ports - 1} {
		c.exchange(to(often))
	}
	if w.counters(w.agent()).FlowNew != n.FlowNew {
		t.Error("a flow that was used just before has been forgotten")
	}
}

// K2: several questions are under way at once; where Services share their only
// backend, answers count in the order of the questions.
func TestUDPAnswersInFlight(t *testing.T) {
	w := startWorld(t, "node-a")
	for n := range uint8(3) {
		w.apply("s"+string(rune('a'+n)), objects(w.udp("s"+string(rune('a'+n)), n+1, "b1"))...)
	}
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.datagrams(t, w.Host("a1"))
		targets := []netip.AddrPort{f.clusterIP(1), f.clusterIP(2), f.pod(w.Host("b1")), f.clusterIP(3)}
		for range 5 {
			for _, to := range targets {
				w.must(s.sendTo(to.String(), to))
			}
			for _, to := range targets {
				s.wantAnswer(to.String(), to)
			}
			slices.Reverse(targets)
		}
	})
}

// R29: when a backend no longer serves, the next datagram goes to another one;
// one that serves on though it takes nothing new keeps what it has (R12).
func TestUDPFlowFollowsItsBackend(t *testing.T) {
	w := startWorld(t, "node-a")
	inEachFamily(t, func(t *testing.T, f family) {
		s, slicesOf := w.udp("dns", 1, "b1 b2")
		w.apply("dns", objects(s, slicesOf)...)
		to := f.clusterIP(1)
		c := f.datagrams(t, w.Host("a1"))
		first := w.Host(c.exchange(to).Pod)
		other := map[string]string{"b1": "b2", "b2": "b1"}[first.Name]

		set := func(ready, serving, terminating bool) {
			endpoints(slicesOf, first, func(e *discoveryv1.Endpoint) {
				e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
			})
			w.apply("dns", objects(s, slicesOf)...)
		}
		set(false, true, true)
		if got := c.exchange(to).Pod; got != first.Name {
			t.Errorf("%s serves, and the flow went to %s", first.Name, got)
		}
		w.wantMeetUDP(t, clients, f, to, other)
		set(false, false, true)
		if got := c.exchange(to).Pod; got != other {
			t.Errorf("%s does not serve, and the flow went to %s", first.Name, got)
		}
		set(true, true, false)
		if got := c.exchange(to).Pod; got != other {
			t.Errorf("the flow went back from %s to %s", other, got)
		}
	})
}

// R29: so it does when the policy would send it elsewhere, as long as the
// backend serves.
func TestUDPFlowOutlivesAPolicy(t *testing.T) {
	w := startWorld(t, "node-a")
	inEachFamily(t, func(t *testing.T, f family) {
		s, slicesOf := w.udp("dns", 1, "b1")
		w.apply("dns", objects(s, slicesOf)...)
		c := f.datagrams(t, w.Host("a1"))
		c.exchange(f.clusterIP(1))
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &local
		w.apply("dns", objects(s, slicesOf)...)
		w.wantMeetUDP(t, clients, f, f.clusterIP(1), "EPERM")
		if got := c.exchange(f.clusterIP(1)).Pod; got != "b1" {
			t.Errorf("the flow went to %s", got)
		}
	})
}

// R16, R21: what connect meets, datagrams meet.
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
				continue // connect sends nothing there: TestUDPConnectToAnUnknownPort...
			}
			if got := errnoName(f.datagrams(t, w.Host("a1")).connect(to)); got != want {
				t.Errorf("connect to %s: %s, want %s", to, got, want)
			}
		}
		// R28: the TCP port of the same number is another one.
		w.wantMeet(t, clients, f, f.clusterIP(1), rejected)
		// The socket is as good as before.
		s := f.datagrams(t, w.Host("a1"))
		if err := s.sendTo("x", f.clusterIP(9)); err != unix.EPERM {
			t.Errorf("sendto: %v", err)
		}
		s.exchange(f.clusterIP(1))
	})
}

// K2: the name of an answer is checked against the tables: a question is
// answered under the name it was asked, even if its backend has been taken away
// meanwhile; what follows, and what comes for a Service that is gone, is not.
func TestUDPNamesAreChecked(t *testing.T) {
	w := startWorld(t, "node-a")
	inEachFamily(t, func(t *testing.T, f family) {
		s, slicesOf := w.udp("dns", 1, "b1")
		w.apply("dns", objects(s, slicesOf)...)
		to, backend := f.clusterIP(1), netip.AddrPortFrom(f.of(w.Host("b1")), lab.PortUDP)
		c := f.datagrams(t, w.Host("a1"))
		held := func(change func()) { // two answers wait in the socket's queue
			w.must(c.sendTo("first", to))
			w.must(c.sendTo("second", to))
			c.awaitDatagrams(2)
			change()
		}
		held(func() {
			_, none := w.udp("dns", 1, "")
			w.apply("dns", objects(s, none)...)
		})
		c.wantAnswer("first", to)
		c.wantAnswer("second", backend)
		w.apply("dns", objects(s, slicesOf)...)
		held(func() { w.remove("dns") })
		c.wantAnswer("first", backend)
		c.wantAnswer("second", backend)
	})
}

// awaitDatagrams waits until a number of datagrams lie in the socket's queue.
func (s *udpSocket) awaitDatagrams(n int) {
	s.t.Helper()
	// FIONREAD says only how long the first is; peeking with an offset moves on.
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0); err != nil {
		s.t.Fatal(err)
	}
	for range n {
		// Without asking where it came from: that would be answered, and count.
		buffer := make([]byte, 4096)
		errno := unix.EINTR
		for errno == unix.EINTR {
			_, _, errno = unix.Syscall6(unix.SYS_RECVFROM, uintptr(s.fd), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), unix.MSG_PEEK, 0, 0)
		}
		if errno != 0 {
			s.t.Fatalf("wait for a datagram: %v", errno)
		}
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1); err != nil {
		s.t.Fatal(err)
	}
}

// K2, K3: a socket that connects, sends elsewhere, connects again and
// disconnects always has the names of what it asked last.
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
		// A connected socket that names its peer all the same.
		if got := s.exchange(one).Pod; got != before {
			t.Errorf("sendto on the connected socket went to %s, send to %s", got, before)
		}
		s.disconnect()
		if _, err := peerName(s.fd); err != unix.ENOTCONN {
			t.Errorf("getpeername after disconnecting: %v", err)
		}
		if !f.v4 {
			return // Linux 6.18 delivers nothing to such a socket, with or without Beeline
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

// K3: the flow that datagrams began is that of a later connect, too.
func TestUDPConnectAfterSendto(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("one", objects(w.udp("one", 1, "a1 a2 a3 b1 b2 b3"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		to := f.clusterIP(1)
		for range 10 {
			s := f.datagrams(t, w.Host("node-a"))
			first := s.exchange(to).Pod
			s.mustConnect(to)
			if got := s.exchangeConnected(to).Pod; got != first {
				t.Errorf("connected, the flow went from %s to %s", first, got)
			}
			s.close()
		}
	})
}

// K3: sendmmsg and recvmmsg are as many calls of each.
func TestUDPManyMessagesInOneCall(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("one", objects(w.udp("one", 1, "b1"))...)
	w.apply("two", objects(w.udp("two", 2, "b2"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		s := f.datagrams(t, w.Host("a1"))
		targets := []netip.AddrPort{f.clusterIP(1), f.pod(w.Host("b3")), f.clusterIP(2), f.clusterIP(1)}
		if err := s.sendMany(targets); err != nil {
			t.Fatal(err)
		}
		s.awaitDatagrams(len(targets))
		answered := map[netip.AddrPort]int{}
		for _, from := range s.receiveMany(len(targets)) {
			answered[from]++
		}
		for _, to := range targets {
			if answered[to]--; answered[to] < 0 {
				t.Errorf("asked %v; an answer from %s is missing", targets, to)
			}
		}
	})
}

// K3: IP_PKTINFO chooses the source of a datagram to a Service, and tells the
// address that an answer came to.
func TestUDPPacketInfo(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("dns", objects(w.udp("dns", 1, "b1"))...)
	node := w.Host("node-a")
	w.must(node.AddAddress("eth0", netip.MustParsePrefix("10.10.1.99/32")))
	w.must(node.AddAddress("eth0", netip.MustParsePrefix("fd00:10:1::99/128")))
	inEachFamily(t, func(t *testing.T, f family) {
		to, source := f.clusterIP(1), f.choose("10.10.1.99", "fd00:10:1::99", 0).Addr()
		s := f.datagrams(t, node)
		s.wantPacketInfo()
		if err := s.sendFrom(source, "who", to); err != nil {
			t.Fatal(err)
		}
		answer, from, came := s.receivePacketInfo()
		if answer.Peer.Addr() != source {
			t.Errorf("the server saw %s, want %s", answer.Peer, source)
		}
		if from != to || came != source {
			t.Errorf("the answer came from %s to %s, want from %s to %s", from, came, to, source)
		}
	})
}

// R27: a client's flows have one backend with session affinity, connected or
// not, of whatever socket.
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

// S1: a socket that asks no Service has no record and no other name, and what
// comes unasked keeps its own address.
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

// S2, S3, S5: the other ways in, by UDP.
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
			t.Errorf("a pod asked its own %s: %v, want ECONNREFUSED from the host", loopback, err)
		}
	})
}

// S3: the unspecified address is this host: with a NodePort, that of loopback.
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

// The agent's absence changes nothing for a flow, old or new (R37).
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

// R25: source ranges are checked where the source is known: by bind, or by
// IP_PKTINFO.
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

// R29, K3: a set that lies first of all in the tables is found like any other,
// also where pods have no decision: on loopback.
func TestUDPFlowOfTheFirstSet(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slicesOf := w.udp("dns", 1, "a2 b1")
	s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, nodePort
	w.apply("dns", objects(s, slicesOf)...)
	to := ipv4.loopbacks()[0]
	var connected []*connectedSocket
	for range 8 {
		c := ipv4.datagrams(t, w.Host("node-a"))
		first := c.exchange(to).Pod
		for range 20 {
			if got := c.exchange(to).Pod; got != first {
				t.Fatalf("the flow went from %s to %s", first, got)
			}
		}
		connected = append(connected, w.connectUDP(t, ipv4, w.Host("node-a"), to))
	}
	w.apply("other", objects(w.udp("other", 2, "b1 b2"))...)
	w.sweepsAfter(func() { w.apply("other", objects(w.udp("other", 2, "b1"))...) })
	wantUntouched(connected)
}

// K3: an external IP can be the address of one of its backends.
func TestUDPServiceIsItsOwnBackend(t *testing.T) {
	w := startWorld(t, "node-a")
	s, slicesOf := w.udp("dns", 1, "b1 b2")
	s.Spec.Ports[0].Port = int32(lab.PortUDP)
	s.Spec.ExternalIPs = []string{w.Host("b1").Addr4.String(), w.Host("b1").Addr6.String()}
	w.apply("dns", objects(s, slicesOf)...)
	inEachFamily(t, func(t *testing.T, f family) {
		for range 10 {
			c := f.datagrams(t, w.Host("a1"))
			first := c.exchange(f.pod(w.Host("b1"))).Pod
			for range 10 {
				if got := c.exchange(f.pod(w.Host("b1"))).Pod; got != first {
					t.Fatalf("the flow went from %s to %s", first, got)
				}
			}
		}
	})
}

// K2: a socket that is connected to a pod has that pod's name, whatever it asked
// before.
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

// K3: a socket that is connected to a plain address stays with its peer, also
// when that becomes a Service's address: an AF_INET6 socket with an IPv4 peer
// passes the hook with each send(2).
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
			t.Errorf("connected to b1, the socket asked %s", got)
		}
		if got := s.exchange(pod).Pod; got != "b1" {
			t.Errorf("connected to b1, sendto asked %s", got)
		}
		// A backend that is itself a Service's address.
		w.apply("other", objects(w.udp("other", 2, "b1"))...)
		c := f.datagrams(t, w.Host("a1"))
		c.mustConnect(f.clusterIP(2))
		if got := c.exchangeConnected(f.clusterIP(2)).Pod; got != "b1" {
			t.Errorf("connected by way of a Service of b1, the socket asked %s", got)
		}
		w.remove("other")
		w.remove("dns")
	})
}

// K2: a connect() that fails leaves a UDP socket with what it was connected to,
// and with its name, whether Beeline or the kernel refuses.
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

// unroute lets a host find no way to a network: connect(2) says so.
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

// R21: connect(2) of a UDP socket sends nothing, and programs use it to learn
// which address they have towards a Service, whatever its ports are. What is
// sent to such a port is refused.
func TestUDPConnectToAnUnknownPortTellsTheSource(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.web("web", 1, "b1"))...) // TCP alone
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

// K2: of two Services with the same only backend, answers count in the order of
// the questions, however many each of them was asked.
func TestUDPManyQuestionsInFlight(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("a", objects(w.udp("a", 1, "b1"))...)
	w.apply("b", objects(w.udp("b", 2, "b1"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		at := map[rune]netip.AddrPort{'a': f.clusterIP(1), 'b': f.clusterIP(2), 'p': f.pod(w.Host("b1"))}
		for _, order := range []string{"aabb", "abab", "ababab", "aab", "aap", "papapa", "aaaabbbb"} {
			s := f.datagrams(t, w.Host("a1"))
			s.exchange(at['a']) // the flow that makes the others be noted
			s.exchange(at['b'])
			for i, c := range order {
				w.must(s.sendTo(fmt.Sprint(order, i), at[c]))
			}
			for i, c := range order {
				s.wantAnswer(fmt.Sprint(order, i), at[c])
			}
		}
	})
}
