// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// TestDNSGoesToTheProxy: queries by datagrams and connections to the name servers of the pod's resolv.conf, and the
// answers come from the address that was asked. Other servers answer themselves. The test is the proxy.
func TestDNSGoesToTheProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mesh-dns-port=15053", "--mesh-proxy-uid=4242", "--mesh-proxy-gid=4242")
	pod := w.Host("a1")
	service, slices := node.Service("dns", 10), node.Slices("dns", w.Host("b1"))
	node.SetPorts(service, slices, node.Port{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, Target: lab.PortUDP})
	w.must(w.folder.Put("dns", service, slices[0], slices[1]))
	w.answerDNS(pod)
	servers := []netip.AddrPort{
		netip.AddrPortFrom(w.Host("b1").Addr4, 53), netip.AddrPortFrom(w.Host("b1").Addr6, 53),
		netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("127.0.0.53:53"),
	}
	path := w.resolvConf(pod, 4242, servers)
	w.startAgent()
	for _, server := range servers {
		t.Run(server.String(), func(t *testing.T) {
			w := w.in(t)
			w.askConnected(pod, "udp", server)
			w.askConnected(pod, "tcp", server)
			w.askUnconnected(pod, server)
		})
	}
	t.Run("another server", func(t *testing.T) {
		w := w.in(t)
		w.answersItself(pod, w.Host("b2"), w.Host("b2").Addr4)
	})
	t.Run("of the proxy", func(t *testing.T) { w.in(t).askAsProxy(pod, "10.96.0.10") })
	t.Run("other ports", func(t *testing.T) {
		w := w.in(t)
		conn, err := pod.Dial(t.Context(), "udp", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortUDP).String())
		w.must(err)
		defer conn.Close()
		if answer := w.ask(conn); answer.Pod != "b1" {
			t.Errorf("a datagram to another port is answered by %+v", answer)
		}
	})
	if n := w.counts().Dns; n != 15 {
		t.Errorf("%d queries were redirected, want 15", n)
	}
	t.Run("after the proxy has restarted", func(t *testing.T) { w.in(t).restartsWithAnother(pod, path) })
}

// rulesForAllDNS are those of istio-iptables with --redirect-dns and --capture-all-dns, for a proxy of user 4242.
const rulesForAllDNS = `table inet istio {
	chain output {
		type nat hook output priority -100; policy accept;
		meta skuid 4242 return
		tcp dport 53 redirect to :15053
		udp dport 53 redirect to :15053
	}
}`

// TestDNSOfAllServers: with --mesh-dns-capture-all, queries to all servers go to the proxy of pod a1, as by Istio's
// rules in pod a2. The test is both proxies.
func TestDNSOfAllServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent.Flags = []string{"--edge-mode=off", "--mesh-cgroups=" + w.Host("a1").Cgroup, "--mesh-dns-port=15053", "--mesh-dns-capture-all", "--mesh-proxy-uid=4242", "--mesh-proxy-gid=4242"}
	service, slices := node.Service("dns", 10), node.Slices("dns", w.Host("b1"))
	node.SetPorts(service, slices, node.Port{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, Target: lab.PortUDP})
	w.must(w.folder.Put("dns", service, slices[0], slices[1]))
	w.run("a2", "nft", rulesForAllDNS)
	w.startAgent()
	for _, pod := range []*lab.Host{w.Host("a1"), w.Host("a2")} {
		w.answerDNS(pod)
		for _, server := range []netip.AddrPort{
			netip.AddrPortFrom(w.Host("b2").Addr4, 53), netip.AddrPortFrom(w.Host("b2").Addr6, 53), netip.AddrPortFrom(pod.Addr4, 53), netip.AddrPortFrom(pod.Addr6, 53),
			netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("127.0.0.53:53"), netip.MustParseAddrPort("127.0.0.1:53"), netip.MustParseAddrPort("[::1]:53"),
		} {
			t.Run(pod.Name+" to "+server.String(), func(t *testing.T) {
				w := w.in(t)
				w.askConnected(pod, "udp", server)
				w.askConnected(pod, "tcp", server)
				w.askUnconnected(pod, server)
			})
		}
		t.Run(pod.Name+", of the proxy", func(t *testing.T) { w.in(t).askAsProxy(pod, "10.96.0.10") })
	}
	t.Run("an excluded port", func(t *testing.T) {
		w := w.in(t)
		w.must(w.agent.Kill())
		w.agent.Flags = append(w.agent.Flags, "--mesh-exclude-outbound-ports=53")
		w.startAgent()
		w.answersItself(w.Host("a1"), w.Host("b2"), w.Host("b2").Addr6)
	})
}

// restartsWithAnother: when the proxy restarts, the pod's resolv.conf is read again.
func (w *world) restartsWithAnother(pod *lab.Host, path string) {
	w.t.Helper()
	former, server := netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.77:53")
	s := w.startProxyOf(haproxy, pod.Name, 4242)
	w.must(writeServers(path, []netip.AddrPort{server}))
	s.end()
	w.startProxyOf(haproxy, pod.Name, 4242)
	w.eventually("queries for the new server go to the proxy", func() bool { return w.proxyAnswers(pod, server) })
	if w.proxyAnswers(pod, former) {
		w.t.Errorf("queries for %s, which is not a server any more, go to the proxy", former)
	}
}

// proxyAnswers reports whether the proxy answers a query for a server that nobody has.
func (w *world) proxyAnswers(pod *lab.Host, server netip.AddrPort) bool {
	w.t.Helper()
	conn, err := pod.Dial(w.t.Context(), "udp", server.String())
	w.must(err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	_, err = conn.Write([]byte("query"))
	w.must(err)
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	return err == nil && string(buffer[:n]) == "proxy: query"
}

func writeServers(path string, servers []netip.AddrPort) error {
	var text strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&text, "nameserver %s\n", s.Addr())
	}
	return os.WriteFile(path, []byte(text.String()), 0o644)
}

// resolvConf starts a process of the proxy's user in a pod, whose root has a resolv.conf with these servers, and
// returns the path of that.
func (w *world) resolvConf(pod *lab.Host, user int, servers []netip.AddrPort) (path string) {
	w.t.Helper()
	path = filepath.Join(w.folderOf(user), "resolv.conf")
	w.must(writeServers(path, servers))
	ctx, cancel := context.WithCancel(context.Background())
	cmd := pod.Command(ctx, "unshare", "--mount", "sh", "-c", fmt.Sprintf("mount --bind %s /etc/resolv.conf && exec setpriv --reuid=%d --regid=%d --clear-groups sh -c 'echo ready; exec sleep 600'", path, user, user))
	out, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	w.t.Cleanup(func() { cancel(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		w.t.Fatalf("a process with a resolv.conf of its own: %q (%v)", line, err)
	}
	return path
}

// answersItself: a name server whose queries do not go to the proxy answers, to connected and to other sockets.
func (w *world) answersItself(pod, server *lab.Host, own netip.Addr) {
	w.t.Helper()
	address := netip.AddrPortFrom(own, 53)
	packets, err := server.ListenPacket("udp", address.String())
	w.must(err)
	defer packets.Close()
	go answerAs("itself", packets)
	conn, err := pod.Dial(w.t.Context(), "udp", address.String())
	w.must(err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	_, err = conn.Write([]byte("query"))
	w.must(err)
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	if err != nil || string(buffer[:n]) != "itself: query" {
		w.t.Errorf("the answer is %q (%v), want the server's own", buffer[:n], err)
	}
	socket, err := pod.ListenPacket("udp", netip.AddrPortFrom(unspecified(own), 0).String())
	w.must(err)
	defer socket.Close()
	socket.SetDeadline(time.Now().Add(patience))
	_, err = socket.WriteTo([]byte("query"), net.UDPAddrFromAddrPort(address))
	w.must(err)
	if n, _, err = socket.ReadFrom(buffer); err != nil || string(buffer[:n]) != "itself: query" {
		w.t.Errorf("the answer to a query by sendto is %q (%v), want the server's own", buffer[:n], err)
	}
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is6() {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// askAsProxy: the proxy's own query of a Service is translated as any other.
func (w *world) askAsProxy(pod *lab.Host, server string) {
	w.t.Helper()
	cmd := pod.Command(w.t.Context(), "timeout", "30", "bash", "-c", fmt.Sprintf("exec 3<>/dev/udp/%s/53; echo query >&3; head -c 12 <&3", server))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4242, Gid: 4242}}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != `{"pod":"b1",` {
		w.t.Errorf("the proxy's query is answered by %q (%v), want the Service's backend", out, err)
	}
}

// answerDNS answers each query by the query, at the port of the proxy.
func (w *world) answerDNS(pod *lab.Host) {
	w.t.Helper()
	for _, address := range []string{"127.0.0.1:15053", "[::1]:15053"} {
		packets, err := pod.ListenPacket("udp", address)
		w.must(err)
		w.t.Cleanup(func() { packets.Close() })
		go answerAs("proxy", packets)
		listener, err := pod.Listen("tcp", address)
		w.must(err)
		w.t.Cleanup(func() { listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				buffer := make([]byte, 1500)
				n, _ := conn.Read(buffer)
				conn.Write(append([]byte("proxy: "), buffer[:n]...))
				conn.Close()
			}
		}()
	}
}

func (w *world) askConnected(pod *lab.Host, network string, server netip.AddrPort) {
	w.t.Helper()
	conn, err := pod.Dial(w.t.Context(), network, server.String())
	w.must(err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write([]byte("query")); err != nil {
		w.t.Fatalf("%s: %v", network, err)
	}
	buffer := make([]byte, 1500)
	n, err := conn.Read(buffer)
	if err != nil || string(buffer[:n]) != "proxy: query" {
		w.t.Errorf("%s: the answer is %q (%v), want the proxy's", network, buffer[:n], err)
	}
	if peer := conn.RemoteAddr().String(); peer != server.String() {
		w.t.Errorf("%s: getpeername returns %s, want %s", network, peer, server)
	}
}

// askUnconnected asks by sendto, as resolvers do that ask several servers by one socket.
func (w *world) askUnconnected(pod *lab.Host, server netip.AddrPort) {
	w.t.Helper()
	socket, err := pod.ListenPacket("udp", netip.AddrPortFrom(unspecified(server.Addr()), 0).String())
	w.must(err)
	defer socket.Close()
	socket.SetDeadline(time.Now().Add(patience))
	if _, err := socket.WriteTo([]byte("query"), net.UDPAddrFromAddrPort(server)); err != nil {
		w.t.Fatal(err)
	}
	buffer := make([]byte, 1500)
	n, from, err := socket.ReadFrom(buffer)
	if err != nil || !strings.HasPrefix(string(buffer[:n]), "proxy: ") || from.String() != server.String() {
		w.t.Errorf("the answer to a query by sendto is %q from %v (%v), want the proxy's from %s", buffer[:n], from, err, server)
	}
}

// answerAs answers each datagram with a name and its content, until the socket is closed.
func answerAs(name string, packets net.PacketConn) {
	buffer := make([]byte, 1500)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		packets.WriteTo(append([]byte(name+": "), buffer[:n]...), from)
	}
}
