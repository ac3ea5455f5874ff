// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const nodePort = 30080

// web is a Service of type NodePort for TCP and UDP whose endpoints are on these hosts.
func (w *world) web(hosts ...string) []runtime.Object {
	w.t.Helper()
	return node.Objects(node.Public("web", 1, nodePort, w.hosts(hosts...)...))
}

// optOut opts a pod out of the socket hooks: its packets reach Services at its device.
func (w *world) optOut(name string) {
	w.t.Helper()
	w.apply("opted-out", node.OptedOut(w.Host(name)))
	w.must(w.agents[w.Host(name).Node.Name].AwaitOptedOut(name))
}

// rounds is how many requests find each of three backends: one is missed with a probability below 10^-6.
const rounds = 40

// wantServed sends requests from a host to an address until each of these has served one, and none else.
func (w *world) wantServed(host, network string, to netip.AddrPort, by ...string) {
	w.t.Helper()
	seen := map[string]bool{}
	for n := 0; n < rounds && len(seen) < len(by); n++ {
		answer, err := w.ask(host, network, to)
		if err != nil {
			w.t.Errorf("%s by %s to %s: %v", host, network, to, err)
			return
		}
		seen[answer.Pod] = true
	}
	for _, name := range by {
		if !seen[name] {
			w.t.Errorf("%s by %s to %s: not served by %s", host, network, to, name)
		}
	}
	if len(seen) != len(by) {
		w.t.Errorf("%s by %s to %s: served by %v, want %v", host, network, to, seen, by)
	}
}

// wantNoneInvalid checks that the rules of the nodes have dropped nothing.
func (w *world) wantNoneInvalid() {
	w.t.Helper()
	for host := range w.agents {
		if n := w.invalid(host); n > 0 {
			w.t.Errorf("%s dropped %d packets as invalid", host, n)
		}
	}
}

// P2, R16, R19: whether the client is outside, a pod of the node without socket hooks, or one of another node, and
// whether backends are pods of this node, of the other, or on the node itself: each Service is reached, and rules that
// drop what conntrack finds invalid drop nothing; with the shortcut at all pods, at some, and without it.
func TestServicesBesideTheShortcut(t *testing.T) {
	for _, mode := range []string{"tc", "xdp"} {
		for _, devices := range []string{"auto", "a1,b1", "a2", "off"} {
			t.Run(fmt.Sprint(mode, "/", devices), func(t *testing.T) {
				w := newWorld(t, lab.Shape{}, "--edge-mode="+mode, "--pod-devices="+devices)
				if mode == "xdp" {
					w.must(w.ReadyForXDP())
				}
				for _, a := range w.agents {
					w.must(a.Start())
				}
				w.must(w.Host("node-a").StartServer(lab.ServerOptions{}))
				w.optOut("a1")
				for _, set := range []string{"a1 a2 b1", "a2 node-a", "b1 b2"} {
					backends := strings.Fields(set)
					w.apply("web", w.web(backends...)...)
					for _, network := range []string{"tcp", "udp"} {
						for family, ip := range node.ClusterIPs(1) {
							clusterIP := netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
							atNode := addresses(w.Host("node-a"), nodePort)[family]
							w.wantServed("a1", network, clusterIP, backends...)
							w.wantServed("a1", network, atNode, backends...)
							w.wantServed("a3", network, clusterIP, backends...)
							w.wantServed("b3", network, atNode, backends...)
							w.wantServed("client", network, atNode, backends...)
							if slices.Contains(backends, "a2") {
								w.direct("a1", network, "a2", family)
							}
						}
					}
				}
				w.wantNoneInvalid()
			})
		}
	}
}

// R16, P2: a pod connects to a backend directly, from the port of a closed connection to a Service that the edge has
// translated. The answer has the backend's address, also when the decision about the handshake (50 ms) has expired and
// only the flow's entry is left.
func TestBackendFromThePortOfAClosedFlow(t *testing.T) {
	for _, mode := range []string{"tc", "xdp"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, lab.Shape{}, "--edge-mode="+mode, "--pod-devices=auto")
			if mode == "xdp" {
				w.must(w.ReadyForXDP())
			}
			for _, a := range w.agents {
				w.must(a.Start())
			}
			w.awaitAllPods()
			w.optOut("a1")
			port := uint16(20000)
			for _, pod := range []string{"a2", "b1"} {
				w.apply("web", w.web(pod)...)
				for family, ip := range node.ClusterIPs(1) {
					service := netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
					direct := addresses(w.Host(pod), lab.PortTCP)[family]
					for _, reset := range []bool{false, true} {
						port++
						w.askSlowly("a1", port, service, reset, pod)
						w.askSlowly("a1", port, direct, reset, pod)
					}
				}
			}
			w.wantNoneInvalid()
		})
	}
}

// askSlowly connects from a port, sends a request only after the pod shortcut has forgotten its decision about the
// handshake, wants this pod to answer, and closes or resets the connection.
func (w *world) askSlowly(host string, port uint16, to netip.AddrPort, reset bool, want string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience/4)
	defer cancel()
	from := netip.AddrPortFrom(w.Host(host).Addr4, port)
	if to.Addr().Is6() {
		from = netip.AddrPortFrom(w.Host(host).Addr6, port)
	}
	conn, err := w.Host(host).DialWith(ctx, lab.DialOptions{Local: from, Control: func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}}, "tcp", to.String())
	w.must(err)
	defer conn.Close()
	if reset {
		w.must(conn.(*net.TCPConn).SetLinger(0))
	}
	time.Sleep(100 * time.Millisecond)
	if answer, err := lab.Ask(ctx, conn, "hello"); err != nil || answer.Pod != want {
		w.t.Fatalf("%s from port %d to %s, reset afterwards: %t: %q answers, %v, want %s", host, port, to, reset, answer.Pod, err, want)
	}
}

// direct sends a request straight to a pod.
func (w *world) direct(host, network, pod string, family int) {
	w.t.Helper()
	port := map[string]uint16{"tcp": lab.PortTCP, "udp": lab.PortUDP}[network]
	if answer, err := w.ask(host, network, addresses(w.Host(pod), port)[family]); err != nil || answer.Pod != pod {
		w.t.Errorf("%s by %s to %s: %v, %v", host, network, pod, answer, err)
	}
}

// P1: packets of a client outside to a pod of the node that serves it, and the pod's replies, skip the node's stack;
// conntrack sees neither. So do those of a pod without socket hooks to another pod, of its node or not, and ICMP errors
// about all of these, which conntrack could not relate to anything.
func TestServiceFlowsTakeTheShortcut(t *testing.T) {
	for _, mode := range []string{"tc", "xdp"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, lab.Shape{}, "--edge-mode="+mode, "--pod-devices=auto")
			if mode == "xdp" {
				w.must(w.ReadyForXDP())
			}
			for _, a := range w.agents {
				w.must(a.Start())
			}
			w.awaitPods("node-a", "a1", "a2", "a3")
			w.optOut("a1")
			closed := node.Objects(node.Public("closed", 2, nodePort+1, w.hosts("a2")...))
			closed[0].(*corev1.Service).Spec.Ports[1].NodePort = nodePort + 1
			for _, slice := range closed[1:] {
				*slice.(*discoveryv1.EndpointSlice).Ports[1].Port = closedPort
			}
			w.apply("closed", closed...)
			for _, c := range []struct{ backend, client, there, back, to string }{
				{"a2", "client", "path_in", "path_out", "node"},
				{"a2", "b1", "path_in", "path_out", "node"},
				{"a2", "a1", "path_local", "path_local", "cluster"},
				{"a2", "a1", "path_local", "path_local", "node"},
				{"b1", "a1", "path_out", "path_in", "cluster"},
			} {
				w.apply("web", w.web(c.backend)...)
				for family, ip := range node.ClusterIPs(1) {
					to := netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
					if c.to == "node" {
						to = addresses(w.Host("node-a"), nodePort)[family]
					}
					for _, network := range []string{"tcp", "udp"} {
						w.wantServiceFlow(c.client, network, to, c.backend, c.there, c.back)
					}
				}
			}
			w.wantErrors()
			w.wantNoneInvalid()
		})
	}
}

// wantServiceFlow has a client ask a Service. node-a counts packets on these paths, and the backend sees the client.
func (w *world) wantServiceFlow(client, network string, to netip.AddrPort, backend, there, back string) {
	w.t.Helper()
	before := w.pods("node-a").Packets
	answer, err := w.ask(client, network, to)
	w.must(err)
	after := w.pods("node-a").Packets
	if after[there] == before[there] || after[back] == before[back] || after["stack_kernel_flow"] > before["stack_kernel_flow"] {
		w.t.Errorf("%s by %s to %s: before %v, after %v", client, network, to, before, after)
	}
	if from := addresses(w.Host(client), 0)[map[bool]int{true: 1}[to.Addr().Is6()]].Addr(); answer.Pod != backend || answer.Peer.Addr() != from {
		w.t.Errorf("%s by %s to %s: %s saw %s, want %s and %s", client, network, to, answer.Pod, answer.Peer, backend, from)
	}
}

// closedPort is a port at which no pod listens.
const closedPort = 9

// wantErrors has ICMP errors arrive: of a pod at which nothing listens, and of a router with a smaller MTU about
// requests of a pod and about replies to a client.
func (w *world) wantErrors() {
	w.t.Helper()
	for family, ip := range node.ClusterIPs(2) {
		for client, to := range map[string]netip.AddrPort{
			"client": addresses(w.Host("node-a"), nodePort+1)[family], "a1": netip.AddrPortFrom(netip.MustParseAddr(ip), 80),
		} {
			if _, err := w.ask(client, "udp", to); !errors.Is(err, unix.ECONNREFUSED) {
				w.t.Errorf("%s asks %s, where nothing listens: %v, want ECONNREFUSED", client, to, err)
			}
		}
	}
	long := strings.Repeat("x", 20_000)
	for _, c := range []struct{ client, backend, device string }{{"a1", "b1", "node-b"}, {"client", "a2", "client"}} {
		w.apply("web", w.web(c.backend)...)
		w.must(w.Host("fabric").Narrow(c.device, 1400))
		for family, ip := range node.ClusterIPs(1) {
			to := netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
			if c.client == "client" {
				to = addresses(w.Host("node-a"), nodePort)[family]
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience/4)
			if answer, err := w.Host(c.client).Request(ctx, "tcp", to.String(), long); err != nil || len(answer.Payload) != len(long) {
				w.t.Errorf("%d octets from %s to %s by a link with a small MTU: %v", len(long), c.client, to, err)
			}
			cancel()
		}
		w.must(w.Host("fabric").Narrow(c.device, 0))
	}
}
