// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

// K3: all datagrams of one socket to one Service go to one backend, whatever happens in between; other sockets
// have their own. Two Services of one socket do not share a backend: each is selected up to four times, so of six
// backends one is shared by one of 1296 sockets; by one of six if it were selected once.
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
					t.Errorf("a datagram of %s went to %s, earlier ones to %s", host.Name, got, one)
				}
				if got := s.exchange(f.clusterIP(2)).Pod; got != two {
					t.Errorf("a datagram of %s went to %s, earlier ones to %s", host.Name, got, two)
				}
			}
		}
		const sockets, most = 200, 8
		shared := 0
		for range sockets {
			s := f.datagrams(t, w.Host("a1"))
			if s.exchange(f.clusterIP(1)).Pod == s.exchange(f.clusterIP(2)).Pod {
				shared++
			}
			s.close()
		}
		if shared > most {
			t.Errorf("two Services share a backend on %d of %d sockets, want at most %d", shared, sockets, most)
		}
	})
}

// K3: one socket sends to many Services and plain addresses at once; each reply has the name of its request's
// destination, even if all share the same backends.
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
			t.Errorf("%d flows were evicted", c.FlowEvicted)
		}
	})
}

// K2: a socket's flows are found even with hundreds of Services; beyond the limit the least recently used one
// is evicted, and counted.
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
		for _, often := range []int{4, 100, min(i, 259)} { // wherever they are stored
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
		t.Error("a flow that was just used was evicted")
	}
}

// R29: when a backend no longer serves, the next datagram goes to another one; one that still serves, though it
// takes no new flows, keeps its own (R12).
func TestUDPFlowFollowsItsBackend(t *testing.T) {
	w := startWorld(t, "node-a")
	inEachFamily(t, func(t *testing.T, f family) {
		for _, algorithm := range service.Algorithms {
			t.Run(algorithm, func(t *testing.T) { w.udpFlowFollows(t, f, algorithm) })
		}
	})
}

func (w *world) udpFlowFollows(t *testing.T, f family, algorithm string) {
	s, slicesOf := w.udp("dns", 1, "b1 b2")
	s.Annotations = map[string]string{service.AnnotationAlgorithm: algorithm}
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
		t.Errorf("%s serves, but the flow went to %s", first.Name, got)
	}
	w.wantMeetUDP(t, clients, f, to, other)
	set(false, false, true)
	if got := c.exchange(to).Pod; got != other {
		t.Errorf("%s does not serve, but the flow went to %s", first.Name, got)
	}
	set(true, true, false)
	if got := c.exchange(to).Pod; got != other {
		t.Errorf("the flow went back from %s to %s", other, got)
	}
}

// R29: the same if the policy would send it elsewhere, while the backend serves.
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

// K3: a later connect uses the flow that datagrams began.
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

// R29, K3: the very first set in the tables is found like any other, even if pods have no decision: on
// loopback.
func TestUDPFlowOfTheFirstSet(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("dns", objects(w.publicUDP("dns", 1, "a2 b1"))...)
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
