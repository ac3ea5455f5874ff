// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const sctpPort = 3868

// sctpService is Service n with SCTP only, with an address of each kind.
func (w *world) sctpService(name string, n int, pods ...string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	w.t.Helper()
	s, all := w.everywhere(name, n, pods...)
	node.SetPorts(s, all, node.Port{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: sctpPort, Target: sctpPort})
	s.Spec.Ports[0].NodePort = int32(nodePort + n)
	return s, all
}

// sctpAddress is the address of a kind, with its SCTP port.
func (w *world) sctpAddress(kind string, n, family int) netip.AddrPort {
	to := w.address(kind, n, family)
	if kind != "NodePort" {
		to = netip.AddrPortFrom(to.Addr(), sctpPort)
	}
	return to
}

// withoutSCTP skips a test that plays both ends of SCTP itself.
func (w *world) withoutSCTP() {
	w.t.Helper()
	if fd, err := w.Host("client").Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP); err == nil {
		unix.Close(fd)
		w.t.Skip("this kernel has SCTP, which would answer the packets that this test makes: see TestSCTPSockets, which uses sockets")
	}
}

// R16, R17, R28: SCTP to each address of a Service that has the endpoints' port, end to end with correct
// checksums: to a remote backend in the node's name and from the client's own port, and to a local one with the
// client's address.
func TestSCTPFromOutside(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.withoutSCTP()
		w.lead()
		s, all := w.sctpService("diameter", 1, "a1", "b1")
		w.apply("diameter", objects(s, all)...)
		for family := range 2 {
			client := w.raw(w.Host("client"), family, unix.IPPROTO_SCTP)
			here, there := w.raw(w.Host("a1"), family, unix.IPPROTO_SCTP), w.raw(w.Host("b1"), family, unix.IPPROTO_SCTP)
			for i, kind := range []string{"ExternalIP", "LoadBalancer", "ClusterIP"} {
				to := w.sctpAddress(kind, 1, family)
				seen := map[string]bool{}
				for n := 0; n < tries && len(seen) < 2; n++ {
					port := uint16(36000 + 100*i + n)
					seen[w.associate(client, to, port, here, there)] = true
				}
				if !seen["a1"] || !seen["b1"] {
					t.Errorf("%s is served by %v, want a1 and b1", to, seen)
				}
			}
		}
	})
}

// associate plays the beginning and the end of an association, and returns its backend.
func (w *world) associate(client *rawSocket, to netip.AddrPort, port uint16, backends ...*rawSocket) (pod string) {
	w.t.Helper()
	client.send(to.Addr(), sctpPacket(port, to.Port(), sctpInit, "0123456789abcdef"))
	by, _, from := first(w.t, sctpIs(port, sctpPort, sctpInit), backends...)
	want := client.own
	if by.host[0] != 'a' {
		want = addresses(w.Host("node-a"), 0)[map[bool]int{true: 1}[want.Is6()]].Addr()
	}
	if from != want {
		w.t.Errorf("%s sees %s, want %s", by.host, from, want)
	}
	by.send(from, sctpPacket(sctpPort, port, sctpInitAck, "0123456789abcdef"))
	if _, _, from := first(w.t, sctpIs(to.Port(), port, sctpInitAck), client); from != to.Addr() {
		w.t.Errorf("%s answers as %s, want %s", by.host, from, to)
	}
	w.wantSCTPFlow(client, to, port, "answered")
	client.send(to.Addr(), sctpPacket(port, to.Port(), sctpCookieEcho, "cookie.."))
	first(w.t, sctpIs(port, sctpPort, sctpCookieEcho), by)
	w.wantSCTPFlow(client, to, port, "established")
	by.send(from, sctpPacket(sctpPort, port, sctpAbort, ""))
	first(w.t, sctpIs(to.Port(), port, sctpAbort), client)
	w.wantSCTPFlow(client, to, port, "closed")
	return by.host
}

func (w *world) wantSCTPFlow(client *rawSocket, to netip.AddrPort, port uint16, state string) {
	w.t.Helper()
	all := slices.DeleteFunc(w.flows(), func(f conntrack.Flow) bool {
		return f.Client != netip.AddrPortFrom(client.own, port) || f.Address != to
	})
	if len(all) != 1 || all[0].State != state || all[0].Protocol.String() != "SCTP" {
		w.t.Errorf("the flow from port %d to %s is %+v, want it %s", port, to, all, state)
	}
}

// If ports differ, nothing is served: the packet is dropped and counted; the Service and explain say what to
// change. A Service without endpoints refuses.
func TestSCTPNotServed(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.withoutSCTP()
		w.lead()
		s, all := w.sctpService("diameter", 1, "a1", "b1")
		w.apply("diameter", objects(s, all)...)
		none, without := w.sctpService("none", 2)
		w.apply("none", objects(none, without)...)
		for family := range 2 {
			client := w.raw(w.Host("client"), family, unix.IPPROTO_SCTP)
			to := w.sctpAddress("NodePort", 1, family)
			before := w.status().Edge.Counters["drop_sctp_port"]
			client.send(to.Addr(), sctpPacket(40000, to.Port(), sctpInit, "0123456789abcdef"))
			w.eventually("the packet is dropped", func() bool { return w.status().Edge.Counters["drop_sctp_port"] == before+1 })
			a := w.explain(client.own.String(), to.String()+"/sctp")
			if a.Reason != "drop_sctp_port" || a.Verdict != "drop" || a.Service != "default/diameter" {
				t.Errorf("explain says %+v", a)
			}
			to = w.sctpAddress("LoadBalancer", 1, family)
			if a := w.explain(client.own.String(), to.String()+"/sctp"); a.Reason != "new" || a.Rewritten == nil || a.Rewritten.Source.Port() != a.Original.Source.Port() {
				t.Errorf("explain says %+v", a)
			}

			refused := w.sctpAddress("LoadBalancer", 2, family)
			w.must(os.NewSyscallError("connect", unix.Connect(client.fd, rawAddress(refused.Addr()))))
			_, err := unix.Write(client.fd, sctpPacket(40001, refused.Port(), sctpInit, "0123456789abcdef"))
			w.must(err)
			w.eventually(refused.String()+" refuses", func() bool {
				_, _, err := client.receive()
				return errors.Is(err, unix.ECONNREFUSED)
			})
		}
		text, err := w.agent.CLI("service", "show", "default/diameter")
		w.must(err)
		for _, words := range []string{fmt.Sprintf("NodePort %d/SCTP: the endpoints have port %d", nodePort+1, sctpPort), "(not served)"} {
			if !strings.Contains(text, words) {
				t.Errorf("service show does not say %q:\n%s", words, text)
			}
		}
	})
}

// Packets of a pod to a ClusterIP are served at its device, where the edge is as long as there is an SCTP Service:
// backends see the pod's address. Those of the node are served as they leave: a remote backend sees the node, a local
// one the Service.
func TestSCTPFromTheNode(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.withoutSCTP()
	s, all := w.sctpService("diameter", 1, "a1", "b1")
	w.apply("diameter", objects(s, all)...)
	for family := range 2 {
		here, there := w.raw(w.Host("a1"), family, unix.IPPROTO_SCTP), w.raw(w.Host("b1"), family, unix.IPPROTO_SCTP)
		to := w.sctpAddress("ClusterIP", 1, family)
		a := w.explained("connect", addresses(w.Host("a3"), 40000)[family].String(), to.String()+"/sctp")
		if a.Reason != "new" || a.Hook != "tc" || a.Service != "default/diameter" {
			t.Errorf("explain connect says %+v", a)
		}
		for i, host := range []string{"a3", "node-a"} {
			client := w.raw(w.Host(host), family, unix.IPPROTO_SCTP)
			sees := map[string]netip.Addr{"a1": client.own, "b1": client.own}
			if host == "node-a" {
				sees["a1"] = to.Addr()
			}
			seen := map[string]bool{}
			for n := 0; n < tries && len(seen) < 2; n++ {
				port := uint16(36000 + 100*i + n)
				client.send(to.Addr(), sctpPacket(port, to.Port(), sctpInit, "0123456789abcdef"))
				by, _, from := first(t, sctpIs(port, sctpPort, sctpInit), here, there)
				if from != sees[by.host] {
					t.Errorf("%s sees %s, want %s", by.host, from, sees[by.host])
				}
				by.send(from, sctpPacket(sctpPort, port, sctpInitAck, "0123456789abcdef"))
				if _, _, from := first(t, sctpIs(to.Port(), port, sctpInitAck), client); from != to.Addr() {
					t.Errorf("%s answers %s as %s, want %s", by.host, host, from, to)
				}
				seen[by.host] = true
			}
			if len(seen) != 2 {
				t.Errorf("%s is served by %v", host, seen)
			}
		}
	}
}

// Real sockets: associations with backends of both nodes carry data both ways and end, in both families.
func TestSCTPSockets(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		fd, err := w.Host("client").Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			t.Skip("this kernel has no SCTP sockets (CONFIG_IP_SCTP): `make test-kernels` has those of Debian")
		}
		w.must(err)
		unix.Close(fd)
		w.lead()
		s, all := w.sctpService("diameter", 1, "a1", "b1")
		w.apply("diameter", objects(s, all)...)
		for family := range 2 {
			for _, pod := range []string{"a1", "b1"} {
				w.serveSCTP(w.Host(pod), family)
			}
			to := w.sctpAddress("LoadBalancer", 1, family)
			seen := map[string]bool{}
			for n := 0; n < tries && len(seen) < 2; n++ {
				seen[w.askSCTP(to, family)] = true
			}
			if !seen["a1"] || !seen["b1"] {
				t.Errorf("%s is served by %v; the edge counted %v", to, seen, w.edgeCounters())
			}
		}
		w.eventually("the associations have ended", func() bool {
			return !slices.ContainsFunc(w.flows(), func(f conntrack.Flow) bool { return f.State != "closed" })
		})
	})
}

// sctpSocket is a socket bound to one address: SCTP tells its peer of all others, which no middlebox
// translates.
func (w *world) sctpSocket(host *lab.Host, family int, port uint16) int {
	w.t.Helper()
	fd, err := host.Socket([]int{unix.AF_INET, unix.AF_INET6}[family], unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	w.must(err)
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		w.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit))
	}
	w.must(os.NewSyscallError("bind", unix.Bind(fd, sctpSockaddr(addresses(host, port)[family]))))
	return fd
}

func sctpSockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// serveSCTP answers each request with the pod's name and the request, until the test ends.
func (w *world) serveSCTP(host *lab.Host, family int) {
	w.t.Helper()
	fd := w.sctpSocket(host, family, sctpPort)
	w.must(os.NewSyscallError("listen", unix.Listen(fd, 16)))
	go func() {
		for {
			conn, _, err := unix.Accept(fd)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return
			}
			b := make([]byte, 1<<16)
			n, err := unix.Read(conn, b)
			for err == unix.EINTR {
				n, err = unix.Read(conn, b)
			}
			if err == nil {
				unix.Write(conn, append([]byte(host.Name+" "), b[:n]...))
			}
			unix.Close(conn)
		}
	}()
	w.t.Cleanup(func() {
		unix.Shutdown(fd, unix.SHUT_RDWR)
		unix.Close(fd)
	})
}

// askSCTP sends a request of several packets, and returns who answers.
func (w *world) askSCTP(to netip.AddrPort, family int) (pod string) {
	w.t.Helper()
	fd := w.sctpSocket(w.Host("client"), family, 0)
	defer unix.Close(fd)
	err := unix.Connect(fd, sctpSockaddr(to))
	for err == unix.EINTR || err == unix.EALREADY { // it continues after a signal
		time.Sleep(time.Millisecond)
		err = unix.Connect(fd, sctpSockaddr(to))
	}
	if err != nil && err != unix.EISCONN {
		w.t.Fatalf("connect to %s: %v; the edge counted %v", to, err, w.edgeCounters())
	}
	question := strings.Repeat("question", 500)
	_, err = unix.Write(fd, []byte(question))
	w.must(err)
	var answer []byte
	for b := make([]byte, 1<<16); ; {
		n, err := unix.Read(fd, b)
		if err == unix.EINTR {
			continue
		}
		w.must(err)
		if n == 0 {
			break
		}
		answer = append(answer, b[:n]...)
	}
	pod, rest, _ := strings.Cut(string(answer), " ")
	if rest != question {
		w.t.Errorf("%s answers %d bytes, want %d", pod, len(rest), len(question))
	}
	return pod
}
