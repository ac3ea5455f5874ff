// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// TestDNSGoesToTheProxy: queries by datagrams and connections, whatever the name server, and the answers come from the
// address that was asked. The test is the proxy.
func TestDNSGoesToTheProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mesh-dns-port=15053", "--mesh-proxy-uid=4242", "--mesh-proxy-gid=4242")
	pod := w.Host("a1")
	service, slices := node.Service("dns", 10), node.Slices("dns", w.Host("b1"))
	node.SetPorts(service, slices, node.Port{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, Target: lab.PortUDP})
	w.must(w.folder.Put("dns", service, slices[0], slices[1]))
	w.answerDNS(pod)
	w.startAgent()
	for _, server := range []netip.AddrPort{
		netip.AddrPortFrom(w.Host("b1").Addr4, 53), netip.AddrPortFrom(w.Host("b1").Addr6, 53),
		netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("192.0.2.1:53"),
	} {
		t.Run(server.String(), func(t *testing.T) {
			w := w.in(t)
			w.askConnected(pod, "udp", server)
			w.askConnected(pod, "tcp", server)
			w.askUnconnected(pod, server)
		})
	}
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
	if n := w.counts().Dns; n != 12 {
		t.Errorf("%d queries were redirected, want 12", n)
	}
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
		go func() {
			buffer := make([]byte, 1500)
			for {
				n, from, err := packets.ReadFrom(buffer)
				if err != nil {
					return
				}
				packets.WriteTo(append([]byte("proxy: "), buffer[:n]...), from)
			}
		}()
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
	address := "0.0.0.0:0"
	if server.Addr().Is6() {
		address = "[::]:0"
	}
	socket, err := pod.ListenPacket("udp", address)
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
