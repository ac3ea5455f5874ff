// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// optOut opts a pod of the lab out of the socket hooks.
func (w *world) optOut(name string) {
	w.t.Helper()
	w.apply("opted-out", node.OptedOut(w.Host(name)))
	w.must(w.agent.AwaitOptedOut(name))
}

// filterReversePaths has a node drop packets that arrive by another device than the route to their source, as
// many distributions and network plugins do, until the end of the test.
func (w *world) filterReversePaths(node string, devices ...string) {
	w.t.Helper()
	w.must(w.Host(node).Do(func() error {
		for _, device := range devices {
			file := "/proc/sys/net/ipv4/conf/" + device + "/rp_filter"
			before, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			w.t.Cleanup(func() {
				w.must(w.Host(node).Do(func() error { return os.WriteFile(file, before, 0o644) }))
			})
			if err := os.WriteFile(file, []byte("1"), 0o644); err != nil {
				return err
			}
		}
		return nil
	}))
}

// R16, R19: a pod without socket hooks reaches a ClusterIP, by TCP and UDP: backends see its own address, and the pod
// itself the Service's.
func TestOptedOutPodIsServedByPacket(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.filterReversePaths("node-a", "eth0", "a1", "a2")
	w.optOut("a1")
	w.awaitRole("pods")
	w.apply("web", objects(w.public("a1", "a2", "b1"))...)
	for _, network := range []string{"tcp", "udp"} {
		for _, ip := range node.ClusterIPs(1) {
			to := netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
			seen := map[string]bool{}
			for range 3 * tries {
				answer, err := w.askAs("a1", network, to)
				if err != nil {
					t.Fatalf("%s to %s: %v; the edge counted %v", network, to, err, w.edgeCounters())
				}
				want := w.Host("a1").Addr4
				if to.Addr().Is6() {
					want = w.Host("a1").Addr6
				}
				if answer.Pod == "a1" {
					want = to.Addr()
				}
				if answer.Peer.Addr() != want {
					t.Fatalf("%s to %s: %s sees %s, want %s", network, to, answer.Pod, answer.Peer, want)
				}
				seen[answer.Pod] = true
			}
			if got := strings.Join(slices.Sorted(maps.Keys(seen)), " "); got != "a1 a2 b1" {
				t.Errorf("%s to %s is served by %s", network, to, got)
			}
		}
	}
}

// R17, R19: it also reaches the NodePorts of its own node, with packets that never leave the node: with a
// backend on this node, on another, the node itself, and the pod itself, which alone sees another address than the
// pod's own.
func TestOptedOutPodAsksItsNode(t *testing.T) {
	for _, mode := range []string{"tc", "xdp"} {
		t.Run(mode, func(t *testing.T) {
			w := borrowWorld(t, "--edge-mode="+mode)
			w.optOut("a1")
			w.apply("web", objects(w.public("a1", "a2", "node-a", "b1"))...)
			w.serveOnNodes()
			w.awaitRole("pods")
			a1, own := w.Host("a1"), w.Host("node-a")
			for _, network := range []string{"tcp", "udp"} {
				for _, ips := range [][2]netip.Addr{{own.Addr4, a1.Addr4}, {own.Addr6, a1.Addr6}} {
					sees := map[string]netip.Addr{"a1": ips[0], "b1": ips[1], "a2": ips[1], "node-a": ips[1]}
					seen := map[string]bool{}
					for range 5 * tries {
						answer, err := w.askAs("a1", network, netip.AddrPortFrom(ips[0], nodePort))
						if err != nil {
							t.Fatalf("%s to %s: %v; the edge counted %v", network, ips[0], err, w.edgeCounters())
						}
						if want := sees[answer.Pod]; answer.Peer.Addr() != want {
							t.Fatalf("%s to %s: %s sees %s, want %s", network, ips[0], answer.Pod, answer.Peer, want)
						}
						seen[answer.Pod] = true
					}
					if got := strings.Join(slices.Sorted(maps.Keys(seen)), " "); got != "a1 a2 b1 node-a" {
						t.Errorf("%s to %s is served by %s", network, ips[0], got)
					}
				}
			}
			for _, what := range []string{"packet", "connect"} {
				for _, to := range []string{own.Addr4.String() + ":30080", node.ClusterIPs(1)[0] + ":80"} {
					a := w.explained(what, a1.Addr4.String()+":45678", to+"/tcp")
					if a.Verdict != "balance" || a.Service != "default/web" || a.ClientClass != "pod" || a.Device != "a1" || a.Hook != "tc" {
						t.Errorf("explain %s %s: %+v, want the Service, decided by tc at a1", what, to, a)
					}
				}
			}
		})
	}
}

// R16, R21: it is refused like others, and gets no reply to dropped packets.
func TestOptedOutPodIsRefusedByPacket(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.optOut("a1")
	w.apply("web", objects(w.public())...)
	local, slices := w.public("b1")
	local.Name, local.Spec.Type = "local", corev1.ServiceTypeClusterIP
	policy := corev1.ServiceInternalTrafficPolicyLocal
	local.Spec.InternalTrafficPolicy = &policy
	local.Spec.ClusterIPs = node.ClusterIPs(2)
	local.Spec.ClusterIP = local.Spec.ClusterIPs[0]
	for i := range local.Spec.Ports {
		local.Spec.Ports[i].NodePort = 0
	}
	for _, s := range slices {
		s.Name, s.Labels = "local-"+s.Name, map[string]string{"kubernetes.io/service-name": "local"}
	}
	w.apply("local", objects(local, slices)...)
	for i := range 2 {
		refused := netip.MustParseAddr(node.ClusterIPs(1)[i])
		for _, port := range []uint16{80, 81} {
			for _, network := range []string{"tcp", "udp"} {
				if _, err := w.askAs("a1", network, netip.AddrPortFrom(refused, port)); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%s to %s, port %d: %v, want ECONNREFUSED", network, refused, port, err)
				}
			}
		}
		for counter, addr := range map[string]string{"drop_policy": node.ClusterIPs(2)[i], "drop_no_service": node.ClusterIPs(77)[i]} {
			w.wantSilenceAs("a1", "tcp", netip.AddrPortFrom(netip.MustParseAddr(addr), 80), counter)
		}
	}
}

// A pod whose connection to a Service was translated by the edge connects to a backend directly, from the same
// port: the reply has the backend's address, whatever entry remains of the connection before.
func TestPodAsksABackendFromTheSamePort(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.optOut("a1")
	w.awaitRole("pods")
	port := uint16(45000)
	for _, pod := range []string{"b1", "a2"} {
		w.apply("web", objects(w.public(pod))...)
		for family, ip := range node.ClusterIPs(1) {
			for _, how := range []string{"FIN", "RST"} {
				port++
				// ask returns the number of retransmitted packets.
				ask := func(to netip.AddrPort, reset bool) uint32 {
					t.Helper()
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					options := lab.DialOptions{Local: addresses(w.Host("a1"), port)[family], Control: func(fd int) error {
						return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
					}}
					conn, err := w.Host("a1").DialWith(ctx, options, "tcp", to.String())
					if err != nil {
						t.Fatalf("%s, after %s: %v; the edge counted %v", to, how, err, w.edgeCounters())
					}
					defer conn.Close()
					if reset {
						w.must(conn.(*net.TCPConn).SetLinger(0))
					}
					answer, err := lab.Ask(ctx, conn, "hello")
					if err != nil || answer.Pod != pod {
						t.Fatalf("%s, after %s: %q answers, %v", to, how, answer.Pod, err)
					}
					var info *unix.TCPInfo
					control(t, conn.(*net.TCPConn), func(fd int) (err error) {
						info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
						return err
					})
					return info.Total_retrans
				}
				ask(netip.AddrPortFrom(netip.MustParseAddr(ip), 80), how == "RST")
				before := w.resets("a1")
				// A refused packet may be the end of the connection before; then no
				// retransmission is needed.
				again := ask(addresses(w.Host(pod), lab.PortTCP)[family], false)
				if n := w.resets("a1") - before; n > 0 && again > 0 {
					t.Errorf("%s, after %s: the pod has refused %d packets, and sent %d again", pod, how, n, again)
				}
			}
		}
	}
}

// The same for datagrams, which have no end: the flow to the Service still exists when the pod sends to the
// backend directly from the same port.
func TestDatagramToABackendFromTheSamePort(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.optOut("a1")
	w.awaitRole("pods")
	for n, pod := range []string{"b1", "a2"} {
		w.apply("web", objects(w.public(pod))...)
		for family, ip := range node.ClusterIPs(1) {
			options := lab.DialOptions{Local: addresses(w.Host("a1"), uint16(46000+n))[family]}
			service := netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
			direct := addresses(w.Host(pod), lab.PortUDP)[family]
			for _, to := range []netip.AddrPort{service, direct, service, direct} {
				w.wantDatagramServed("a1", options, to, pod)
			}
		}
	}
}

// wantDatagramServed has a host send a datagram from a connected socket, which accepts replies from that
// address only.
func (w *world) wantDatagramServed(host string, options lab.DialOptions, to netip.AddrPort, pod string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience/4)
	defer cancel()
	conn, err := w.Host(host).DialWith(ctx, options, "udp", to.String())
	// A process started by another test holds a copy of this port's last socket until its exec.
	for ; errors.Is(err, unix.EADDRINUSE) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		conn, err = w.Host(host).DialWith(ctx, options, "udp", to.String())
	}
	if err != nil {
		w.t.Fatalf("%s: %v", to, err)
	}
	defer conn.Close()
	if answer, err := lab.Ask(ctx, conn, "hello"); err != nil || answer.Pod != pod {
		w.t.Errorf("%s: %q answers, %v; the edge counted %v", to, answer.Pod, err, w.edgeCounters())
	}
}

// resets is the number of RSTs that a host has sent.
func (w *world) resets(host string) (n int) {
	w.t.Helper()
	w.must(w.Host(host).Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var rows [][]string // names, and values
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); fields[0] == "Tcp:" {
				rows = append(rows, fields)
			}
		}
		if len(rows) != 2 || !slices.Contains(rows[0], "OutRsts") {
			return fmt.Errorf("no TCP counters in %q", text)
		}
		n, err = strconv.Atoi(rows[1][slices.Index(rows[0], "OutRsts")])
		return err
	}))
	return n
}

// R26: with --refuse-foreign-external-ips pods and the node reach the owner of the address, by socket and by
// packet; external clients are served.
func TestForeignExternalIPsAtTheEdge(t *testing.T) {
	w := startWorld(t, "--refuse-foreign-external-ips")
	w.lead()
	w.optOut("a1")
	w.awaitRole("pods")
	other := w.Host("client")
	w.must(other.StartServer(lab.ServerOptions{TCP: 80, HTTP: 81, UDP: 80}))
	s, slices := w.everywhere("web", 1, "a2", "b1")
	s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, other.Addr4.String(), other.Addr6.String())
	w.apply("web", objects(s, slices)...)
	for _, network := range []string{"tcp", "udp"} {
		for family, addr := range []netip.Addr{other.Addr4, other.Addr6} {
			for _, from := range []string{"a1", "a3", "node-a"} {
				if answer, err := w.askAs(from, network, netip.AddrPortFrom(addr, 80)); err != nil || answer.Pod != "client" {
					t.Errorf("%s to %s over %s: %s answers (%v), want the owner of the address", from, addr, network, answer.Pod, err)
				}
			}
			if answer, err := w.askAs("client", network, w.address("ExternalIP", 1, family)); err != nil || answer.Pod == "client" {
				t.Errorf("a client from outside over %s: %s answers (%v), want a pod of the Service", network, answer.Pod, err)
			}
		}
	}
}
