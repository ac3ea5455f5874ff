// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// masquerade has the node masquerade its pods towards the client, with options such as "fully-random", as network
// plugins do.
func (w *world) masquerade(options string) {
	w.t.Helper()
	client := w.Host("client")
	w.firewall(fmt.Sprintf("table inet masq { chain post { type nat hook postrouting priority 100; ip daddr %s ip saddr 10.10.0.0/16 meta l4proto { tcp, udp } masquerade %s; ip6 daddr %s ip6 saddr fd00:10::/32 meta l4proto { tcp, udp } masquerade %s; }; }",
		client.Addr4, options, client.Addr6, options))
	// Under emulation explain takes longer than the 30 seconds for which conntrack keeps a UDP flow.
	w.must(w.Host("node-a").Command(w.t.Context(), "sysctl", "-qw", "net.netfilter.nf_conntrack_udp_timeout=600").Run())
}

// serveAtClient runs a server at the client's host until the test's end: it stands for what is outside the cluster.
func (w *world) serveAtClient() {
	w.t.Helper()
	w.must(w.Host("client").StartServer(lab.ServerOptions{}))
	w.t.Cleanup(func() { w.must(w.Host("client").StopServer()) })
}

var serverPorts = map[string]uint16{"tcp": lab.PortTCP, "udp": lab.PortUDP}

// connectFrom opens a connection of a host from one of its ports; 0: any.
func (w *world) connectFrom(host, network string, from, to netip.AddrPort) net.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := w.Host(host).DialWith(ctx, lab.DialOptions{Local: from}, network, to.String())
	if err != nil {
		w.t.Fatalf("%s, %s from %s to %s: %v; the edge counted %v", host, network, from, to, err, w.edgeCounters())
	}
	w.t.Cleanup(func() { conn.Close() })
	return conn
}

// wantPeer asks by a connection, and checks who answers, and what it sees as its peer. An invalid peer is not compared.
func (w *world) wantPeer(conn net.Conn, who string, peer netip.AddrPort) netip.AddrPort {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience/6)
	defer cancel()
	answer, err := lab.Ask(ctx, conn, "hello")
	if err != nil || answer.Pod != who || peer.IsValid() && answer.Peer != peer {
		w.t.Errorf("%s to %s: %+v, %v; want %s to answer %s; the edge counted %v", conn.LocalAddr(), conn.RemoteAddr(), answer, err, who, peer, w.edgeCounters())
	}
	return answer.Peer
}

// A pod is masqueraded from the number of a NodePort, whose backend is another tenant's, and of a HostPort. The pod
// gets the answers, and clients of the Service still reach its backends.
func TestAnswerToMasqueradedPod(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.serveAtClient()
		w.masquerade("")
		w.apply("web", append(objects(w.public("b1")), hostPortPod(w.Host("a1")))...)
		w.answersReachPods(nodePort, hostPort)
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			w.wantServed("tcp", to, "b1")
			w.wantServed("udp", to, "b1")
		}
		w.wantCounted("kernel_flow", "new")
	})
}

// answersReachPods has a pod of the node ask the client from each port, which the node keeps as it masquerades.
func (w *world) answersReachPods(ports ...uint16) {
	w.t.Helper()
	for _, port := range ports {
		for family, own := range addresses(w.Host("node-a"), port) {
			for _, network := range []string{"tcp", "udp"} {
				to := addresses(w.Host("client"), serverPorts[network])[family]
				conn := w.connectFrom("a2", network, addresses(w.Host("a2"), port)[family], to)
				w.wantPeer(conn, "client", own)
				w.wantPeer(conn, "client", own)
				if network == "udp" { // explain's packet of TCP is a SYN
					if e := w.explain(to.String(), own.String()+"/udp"); e.Reason != "kernel_flow" || e.Verdict != "pass" {
						w.t.Errorf("explain of the answer %s to %s: %s, %s", to, own, e.Verdict, e.Reason)
					}
				}
			}
		}
	}
}

// The same in a slot of libxdp's dispatcher.
func TestAnswerToMasqueradedPodAtASharedDevice(t *testing.T) {
	w := newShared(t, "--edge-xdp-dispatcher")
	w.tool("xdp-filter", "load", "eth0")
	w.must(w.agent.Start())
	w.serveAtClient()
	w.masquerade("")
	w.apply("web", objects(w.public("b1"))...)
	w.answersReachPods(nodePort)
	w.wantServedShared()
	w.wantCounted("kernel_flow")
}

// Masquerading to random ports, all of which are NodePorts, breaks no connection.
func TestMasqueradeToRandomNodePorts(t *testing.T) {
	const ports, workers, each = 100, 8, 25
	w := startWorld(t, "--edge-mode=tc")
	w.serveAtClient()
	w.masquerade(fmt.Sprintf("to :%d-%d fully-random", nodePort, nodePort+ports-1))
	s, all := w.public("b1")
	var wanted []node.Port
	for n := range int32(ports) {
		wanted = append(wanted, node.Port{Name: fmt.Sprint("tcp", n), Protocol: corev1.ProtocolTCP, Port: 1000 + n, Target: lab.PortTCP})
	}
	node.SetPorts(s, all, wanted...)
	for n := range s.Spec.Ports {
		s.Spec.Ports[n].NodePort = nodePort + int32(n)
	}
	w.apply("web", objects(s, all)...)
	to := netip.AddrPortFrom(w.Host("client").Addr4, lab.PortTCP)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for range each {
				answer, err := w.askAs("a1", "tcp", to)
				if err != nil || answer.Pod != "client" || answer.Peer.Port() < nodePort || answer.Peer.Port() >= nodePort+ports {
					t.Errorf("a pod asks %s: %+v, %v", to, answer, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// Sockets that the node had before their port was a Service's: a connected one gets its answers, without conntrack. An
// unconnected one, such as a resolver at *:53, does not keep clients from the Service, neither does what a client has
// sent before.
func TestSocketsBesideANodePort(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.serveAtClient()
		own := addresses(w.Host("node-a"), nodePort)
		var connected []net.Conn
		for family, from := range own {
			for _, network := range []string{"tcp", "udp"} {
				connected = append(connected, w.connectFrom("node-a", network, from, addresses(w.Host("client"), serverPorts[network])[family]))
			}
		}
		resolver, err := w.Host("node-a").ListenPacket("udp", fmt.Sprintf("[::]:%d", hostPort))
		w.must(err)
		t.Cleanup(func() { resolver.Close() })
		var early []net.Conn
		for _, to := range addresses(w.Host("node-a"), hostPort) {
			conn := w.connectFrom("client", "udp", netip.AddrPort{}, to)
			_, err := conn.Write([]byte("early"))
			w.must(err)
			early = append(early, conn)
		}
		w.apply("web", append(objects(w.public("b1")), hostPortPod(w.Host("a1")))...)
		for n, conn := range connected {
			w.wantPeer(conn, "client", own[n/2])
		}
		for _, conn := range early {
			w.wantPeer(conn, "a1", netip.AddrPort{})
		}
		for _, to := range addresses(w.Host("node-a"), hostPort) {
			w.wantServed("udp", to, "a1")
		}
		w.wantCounted("kernel_socket")
	})
}

// Flows of clients that netfilter had translated before the Service was Beeline's stay where they are: those of UDP
// until their backend no longer serves (R29), connections for as long as they last (R30). Also where a pure SYN goes to
// the Service's new backend meanwhile.
func TestFlowsTranslatedByNetfilter(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := newWorld(t, "--edge-mode="+mode)
		node, b1 := w.Host("node-a"), w.Host("b1")
		w.firewall(fmt.Sprintf(`table inet proxy {
			chain pre { type nat hook prerouting priority -100
				ip daddr %[1]s tcp dport %[5]d dnat ip to %[3]s:%[6]d
				ip daddr %[1]s udp dport %[5]d dnat ip to %[3]s:%[7]d
				ip6 daddr %[2]s tcp dport %[5]d dnat ip6 to [%[4]s]:%[6]d
				ip6 daddr %[2]s udp dport %[5]d dnat ip6 to [%[4]s]:%[7]d
			}
			chain post { type nat hook postrouting priority 100; ct status dnat masquerade; }
		}`, node.Addr4, node.Addr6, b1.Addr4, b1.Addr6, nodePort, lab.PortTCP, lab.PortUDP))
		var tcp, udp []net.Conn
		for _, to := range addresses(node, nodePort) {
			tcp = append(tcp, w.connectFrom("client", "tcp", netip.AddrPort{}, to))
			udp = append(udp, w.connectFrom("client", "udp", netip.AddrPort{}, to))
		}
		ask := func(conns []net.Conn, who string) {
			t.Helper()
			for _, conn := range conns {
				w.wantPeer(conn, who, netip.AddrPort{})
			}
		}
		askEarly := func(conns []net.Conn) { // no agent has counters yet
			t.Helper()
			for _, conn := range conns {
				ctx, cancel := context.WithTimeout(context.Background(), patience/6)
				if answer, err := lab.Ask(ctx, conn, "hello"); err != nil || answer.Pod != "b1" {
					t.Fatalf("by netfilter: %+v, %v", answer, err)
				}
				cancel()
			}
		}
		askEarly(tcp)
		askEarly(udp)
		w.must(w.folder.Put("web", objects(w.public("b1"))...))
		w.must(w.agent.Start())
		w.await()
		for i, conns := range [][]net.Conn{tcp, udp} {
			before := w.status().Edge.Counters["kernel_flow"]
			ask(conns, "b1")
			if w.status().Edge.Counters["kernel_flow"] == before {
				t.Errorf("no packet of %s was counted as kernel_flow", []string{"TCP", "UDP"}[i])
			}
		}
		w.apply("web", objects(w.public("a1"))...)
		ask(tcp, "b1")
		w.eventually("UDP leaves the backend that no longer serves (R29)", func() bool {
			return strings.Join(podsOf(udp), " ") == "a1 a1"
		})
		for _, to := range addresses(node, nodePort) {
			w.wantServed("tcp", to, "a1")
		}
	})
}

// podsOf asks by each connection, and returns who answered.
func podsOf(conns []net.Conn) (pods []string) {
	for _, conn := range conns {
		ctx, cancel := context.WithTimeout(context.Background(), patience/60)
		answer, _ := lab.Ask(ctx, conn, "hello")
		cancel()
		pods = append(pods, answer.Pod)
	}
	return pods
}

// outside is a Service whose endpoint is the client's host: not in the pod networks, so that pods that connect to it
// themselves are masqueraded to the node's address, like clients of the Service.
func (w *world) outside() {
	w.t.Helper()
	w.serveAtClient()
	s, all := w.public("b1")
	for family, slice := range all {
		slice.Endpoints[0].Addresses = []string{addresses(w.Host("client"), 0)[family].Addr().String()}
		slice.Endpoints[0].TargetRef, slice.Endpoints[0].NodeName = nil, nil
	}
	w.apply("web", objects(s, all)...)
}

// A SNAT port of the Service, and the port that netfilter masquerades a pod to, are never the same towards one remote
// end, whoever is first. Neither flow ends.
func TestSNATPortBesideMasquerade(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		const snat = 20000
		w := newWorld(t, "--edge-mode="+mode, fmt.Sprintf("--snat-ports=%d-%d", snat, snat+1))
		w.masquerade("")
		w.must(w.agent.Start())
		w.outside()
		for family, own := range addresses(w.Host("node-a"), nodePort) {
			server := addresses(w.Host("client"), lab.PortTCP)[family]
			service := w.connectFrom("b1", "tcp", netip.AddrPort{}, own)
			port := w.wantPeer(service, "client", netip.AddrPort{}).Port()
			if port != snat && port != snat+1 {
				t.Fatalf("the SNAT port is %d, want one of --snat-ports", port)
			}
			pod := w.connectFrom("a2", "tcp", addresses(w.Host("a2"), port)[family], server)
			if got := w.wantPeer(pod, "client", netip.AddrPort{}).Port(); got == port {
				t.Errorf("the pod is masqueraded to %d, which the Service's flow has", port)
			}
			w.wantPeer(service, "client", netip.AddrPort{})
			other := snat + snat + 1 - port
			first := w.connectFrom("a1", "tcp", addresses(w.Host("a1"), other)[family], server)
			w.wantPeer(first, "client", netip.AddrPortFrom(own.Addr(), other))
			service.Close()
			second := w.connectFrom("b1", "tcp", netip.AddrPort{}, own)
			if got := w.wantPeer(second, "client", netip.AddrPort{}).Port(); got != port {
				t.Errorf("the Service's flow has the port %d, want %d: the pod is masqueraded to %d", got, port, other)
			}
			for _, conn := range []net.Conn{first, pod, second} {
				w.wantPeer(conn, "client", netip.AddrPort{})
				conn.Close()
			}
		}
	})
}

// autobind sends a datagram to the client's server by a socket of the node that has not been bound, and returns the
// port that the kernel has chosen, and whether the answer has arrived in time.
func (w *world) autobind(to netip.AddrPort, timeout time.Duration) (port int, answered bool) {
	w.t.Helper()
	fd := -1
	w.must(w.Host("node-a").Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	w.t.Cleanup(func() { unix.Close(fd) }) // so that the next one gets another port
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	w.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	w.must(unix.Sendto(fd, []byte("hello"), 0, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
	own, err := unix.Getsockname(fd)
	w.must(err)
	_, _, err = unix.Recvfrom(fd, make([]byte, 1500), 0)
	return own.(*unix.SockaddrInet4).Port, err == nil
}

// The kernel chooses the number of a HostPort for a socket of the node, which no hook sees. A connected socket gets its
// answers, and an unconnected one, too, where conntrack is in use. Elsewhere a condition names the sysctl that helps.
func TestAutoboundSocketBesideAHostPort(t *testing.T) {
	const first = 41000
	w := startWorld(t, "--edge-mode=tc")
	w.serveAtClient()
	pod := hostPortPod(w.Host("a1")).(*corev1.Pod)
	for i := range pod.Spec.Containers[0].Ports {
		pod.Spec.Containers[0].Ports[i].HostPort = first
	}
	w.apply("hp", pod)
	w.must(w.Host("node-a").Command(t.Context(), "sysctl", "-qw", fmt.Sprintf("net.ipv4.ip_local_port_range=%d %d", first, first+1)).Run())
	to := netip.AddrPortFrom(w.Host("client").Addr4, lab.PortUDP)
	has := func(sysctl string) func() bool {
		return func() bool { return strings.Contains(w.status().Conditions.String(), sysctl) }
	}
	w.eventually("the condition names the sysctl", has(fmt.Sprintf("sysctl -w net.ipv4.ip_local_reserved_ports=%d", first)))
	for _, network := range []string{"tcp", "udp"} {
		seen, conns := map[uint16]bool{}, []net.Conn{}
		for range 2 {
			conn := w.connectFrom("node-a", network, netip.AddrPort{}, netip.AddrPortFrom(to.Addr(), serverPorts[network]))
			seen[w.wantPeer(conn, "client", netip.AddrPort{}).Port()] = true
			conns = append(conns, conn)
		}
		if !seen[first] || !seen[first+1] {
			t.Errorf("%s: the kernel has chosen %v, want both ports of the range", network, seen)
		}
		for _, conn := range conns {
			conn.Close()
		}
	}
	w.firewall("table inet t { chain c { type filter hook output priority 0; ct state new counter; }; }")
	unanswered := map[int]bool{}
	for range 2 {
		if port, answered := w.autobind(to, patience/6); !answered {
			unanswered[port] = true
		}
	}
	if len(unanswered) > 0 {
		t.Errorf("no answer to unconnected sockets at ports %v, although conntrack is in use", unanswered)
	}
	w.eventually("the condition ends where conntrack is in use", func() bool { return !has("ip_local_reserved_ports")() })
	w.wantServed("udp", netip.AddrPortFrom(w.Host("node-a").Addr4, first), "a1")
}
