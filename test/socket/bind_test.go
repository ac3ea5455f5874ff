// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/test/lab"
)

// A transport is a kind of socket that binds ports.
type transport struct {
	name           string
	kind, protocol int
}

var (
	tcp   = transport{"TCP", unix.SOCK_STREAM, 0}
	udp   = transport{"UDP", unix.SOCK_DGRAM, 0}
	mptcp = transport{"MPTCP", unix.SOCK_STREAM, unix.IPPROTO_MPTCP} // listeners of some languages' libraries
)

// A sockopt is a socket option, by default of SOL_SOCKET, that is set to 1.
type sockopt struct {
	name          string
	level, option int
}

var (
	reuseAddr = sockopt{"SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR}
	reusePort = sockopt{"SO_REUSEPORT", unix.SOL_SOCKET, unix.SO_REUSEPORT}
	v6Only    = sockopt{"IPV6_V6ONLY", unix.IPPROTO_IPV6, unix.IPV6_V6ONLY}
)

// bind makes a socket of a host, sets the options and binds it. The socket stays open until the end of the
// test; err is bind(2)'s.
func (tr transport) bind(t *testing.T, host *lab.Host, f family, to netip.AddrPort, options ...sockopt) (s *hostSocket, err error) {
	t.Helper()
	fd, err := host.Socket(f.domain, tr.kind, tr.protocol)
	if tr == mptcp && (errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOPROTOOPT)) {
		t.Skip("the kernel has no multipath TCP, or net.mptcp.enabled is off")
	}
	if err != nil {
		t.Fatal(err)
	}
	s = &hostSocket{t, f, fd}
	t.Cleanup(s.close)
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.option, 1); err != nil {
			t.Fatalf("%s: %v", o.name, err)
		}
	}
	return s, unix.Bind(fd, f.sockaddr(to))
}

// try returns bind(2)'s error, and closes the socket.
func (tr transport) try(t *testing.T, host *lab.Host, f family, to netip.AddrPort, options ...sockopt) error {
	t.Helper()
	s, err := tr.bind(t, host, f, to, options...)
	s.close()
	return err
}

// wantBind checks bind(2)'s error for TCP and UDP sockets.
func wantBind(t *testing.T, host *lab.Host, f family, to netip.AddrPort, want error, options ...sockopt) {
	t.Helper()
	for _, tr := range []transport{tcp, udp} {
		if err := tr.try(t, host, f, to, options...); err != want {
			t.Errorf("%s binds %s %s %v: %v, want %v", host.Name, tr.name, to, options, err, want)
		}
	}
}

// refused and allowed are bind(2)'s errors.
const refused = unix.EADDRINUSE

var allowed error

// everywhere is the wildcard address of a family.
func (f family) everywhere(port uint16) netip.AddrPort { return f.choose("0.0.0.0", "::", port) }

// on is a port of a host's own address.
func (f family) on(h *lab.Host, port uint16) netip.AddrPort { return netip.AddrPortFrom(f.of(h), port) }

// publicBoth is a Service with a NodePort for TCP and UDP.
func (w *world) publicBoth(name string, n uint8, port int32) *corev1.Service {
	w.t.Helper()
	s, _ := w.web(name, n, "")
	s.Spec.Type = corev1.ServiceTypeNodePort
	s.Spec.Ports[0].NodePort = port
	other := s.Spec.Ports[0]
	other.Name, other.Protocol = "udp", corev1.ProtocolUDP
	s.Spec.Ports = append(s.Spec.Ports, other)
	return s
}

// K5, S3: on the host a NodePort cannot be bound, at every address that serves it and at the wildcard, even
// with SO_REUSEADDR and SO_REUSEPORT. Pods can bind it, and the host other ports and the port at other
// addresses, also at a Service's external IP.
func TestBindOfNodePort(t *testing.T) {
	w := startWorld(t, "node-a")
	host, pod := w.Host("node-a"), w.Host("a1")
	extra4, extra6 := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")
	w.addAddress(host, extra4, extra6)
	external := w.publicBoth("external", 2, nodePort+2)
	external.Spec.ExternalIPs = []string{extra4.String(), extra6.String()}
	for i := range external.Spec.Ports {
		external.Spec.Ports[i].Port = nodePort
	}
	w.write("external", external)
	w.apply("web", w.publicBoth("web", 1, nodePort))
	inEachFamily(t, func(t *testing.T, f family) {
		before := w.counters(w.agent()).BindRefused
		taken := append(f.loopbacks(), f.everywhere(nodePort), f.on(host, nodePort))
		for _, to := range taken {
			for _, options := range [][]sockopt{nil, {reuseAddr}, {reusePort}, {reuseAddr, reusePort}} {
				wantBind(t, host, f, to, refused, options...)
			}
			wantBind(t, host, f, netip.AddrPortFrom(to.Addr(), nodePort+1), allowed)
		}
		if n, want := w.counters(w.agent()).BindRefused-before, uint64(len(taken)*8); n != want {
			t.Errorf("%d refusals counted, want %d", n, want)
		}
		wantBind(t, host, f, f.choose(extra4.String(), extra6.String(), nodePort), allowed)
		for _, to := range []netip.AddrPort{f.everywhere(nodePort), f.loopbacks()[0], f.on(pod, nodePort)} {
			wantBind(t, pod, f, to, allowed)
		}
	})
	wantBind(t, host, ipv6, ipv6.everywhere(nodePort), refused, v6Only)
}

// K5: a multipath TCP socket binds as TCP.
func TestBindOfMultipathTCP(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.public("web", 1, "a2"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		for _, to := range []netip.AddrPort{f.everywhere(nodePort), f.on(w.Host("node-a"), nodePort)} {
			if err := mptcp.try(t, w.Host("node-a"), f, to); err != refused {
				t.Errorf("bind %s: %v, want %v", to, err, refused)
			}
		}
		if err := mptcp.try(t, w.Host("node-a"), f, f.everywhere(nodePort+1)); err != allowed {
			t.Errorf("bind another port: %v", err)
		}
	})
}

// K5: TCP and UDP ports are independent.
func TestBindOfTheOtherProtocol(t *testing.T) {
	w := startWorld(t, "node-a")
	w.apply("web", objects(w.public("web", 1, "a2"))...)
	inEachFamily(t, func(t *testing.T, f family) {
		to := f.everywhere(nodePort)
		if err := tcp.try(t, w.Host("node-a"), f, to); err != refused {
			t.Errorf("TCP %s: %v, want %v", to, err, refused)
		}
		if err := udp.try(t, w.Host("node-a"), f, to); err != allowed {
			t.Errorf("UDP %s: %v, though only TCP is served", to, err)
		}
	})
}

// K5: a wildcard occupies the port of the families that it receives.
func TestBindOfAPortOfOneFamily(t *testing.T) {
	w := startWorld(t, "node-a")
	host := w.Host("node-a")
	only := func(family corev1.IPFamily, ip string) *corev1.Service {
		s := w.publicBoth("web", 1, nodePort)
		s.Spec.IPFamilies, s.Spec.ClusterIPs, s.Spec.ClusterIP = []corev1.IPFamily{family}, []string{ip}, ip
		return s
	}
	w.apply("web", only(corev1.IPv4Protocol, ipv4.clusterIP(1).Addr().String()))
	wantBind(t, host, ipv4, ipv4.everywhere(nodePort), refused)
	wantBind(t, host, v4Mapped, v4Mapped.everywhere(nodePort), refused)
	wantBind(t, host, ipv6, ipv6.everywhere(nodePort), refused)
	wantBind(t, host, ipv6, ipv6.everywhere(nodePort), allowed, v6Only)
	wantBind(t, host, ipv6, ipv6.on(host, nodePort), allowed)

	w.apply("web", only(corev1.IPv6Protocol, ipv6.clusterIP(1).Addr().String()))
	w.eventually("the IPv4 port is free", func() bool {
		return tcp.try(t, host, ipv4, ipv4.everywhere(nodePort)) == allowed && udp.try(t, host, ipv4, ipv4.everywhere(nodePort)) == allowed
	})
	wantBind(t, host, v4Mapped, v4Mapped.everywhere(nodePort), allowed)
	wantBind(t, host, v4Mapped, v4Mapped.on(host, nodePort), allowed)
	wantBind(t, host, ipv6, ipv6.everywhere(nodePort), refused)
	wantBind(t, host, ipv6, ipv6.everywhere(nodePort), refused, v6Only)
}

// K5: a port is reserved before its Service can be reached, and free after the NodePort was changed or removed.
func TestBindFollowsTheNodePort(t *testing.T) {
	w := startWorld(t, "node-a")
	host := w.Host("node-a")
	wantFree := func(f family, port uint16) {
		w.eventually("the port is free", func() bool {
			return tcp.try(t, host, f, f.everywhere(port)) == allowed && udp.try(t, host, f, f.everywhere(port)) == allowed
		})
		wantBind(t, host, f, f.on(host, port), allowed)
	}
	inEachFamily(t, func(t *testing.T, f family) { wantBind(t, host, f, f.everywhere(nodePort), allowed) })
	w.apply("web", w.publicBoth("web", 1, nodePort))
	w.apply("web", w.publicBoth("web", 1, nodePort+1))
	inEachFamily(t, func(t *testing.T, f family) {
		wantBind(t, host, f, f.everywhere(nodePort+1), refused)
		wantBind(t, host, f, f.on(host, nodePort+1), refused)
		wantFree(f, nodePort)
	})
	w.remove("web")
	inEachFamily(t, func(t *testing.T, f family) { wantFree(f, nodePort+1) })
}

// K5, R22: bind() is refused at the addresses that serve NodePorts.
func TestBindOfSelectedAddresses(t *testing.T) {
	w := newWorld(t, "node-a")
	host, extra := w.Host("node-a"), netip.MustParseAddr("203.0.113.7")
	w.agent().Flags = []string{"--nodeport-addresses=203.0.113.0/24", "--localhost-nodeports=false"}
	w.start()
	w.apply("web", w.publicBoth("web", 1, nodePort))
	for _, f := range []family{ipv4, v4Mapped} {
		wantBind(t, host, f, f.everywhere(nodePort), allowed) // no address is selected yet
	}
	w.addAddress(host, extra)
	w.eventually("the new address has the NodePort", func() bool {
		return udp.try(t, host, ipv4, netip.AddrPortFrom(extra, nodePort)) == refused &&
			tcp.try(t, host, ipv4, netip.AddrPortFrom(extra, nodePort)) == refused
	})
	for _, f := range []family{ipv4, v4Mapped} {
		wantBind(t, host, f, netip.AddrPortFrom(extra, nodePort), refused)
		wantBind(t, host, f, f.everywhere(nodePort), refused)
		wantBind(t, host, f, f.on(host, nodePort), allowed)
	}
	inEachFamily(t, func(t *testing.T, f family) {
		for _, to := range f.loopbacks() {
			wantBind(t, host, f, to, allowed)
		}
	})
	wantBind(t, host, ipv6, ipv6.on(host, nodePort), refused)
}

// podWithPort is podObject with a hostPort of TCP and UDP.
func podWithPort(host *lab.Host, hostIP string, port int32) runtime.Object {
	p := podObject(host, hostIP)
	ports := &p.Spec.Containers[0].Ports
	(*ports)[0].HostPort = port
	other := (*ports)[0]
	other.Protocol = corev1.ProtocolUDP
	*ports = append(*ports, other)
	return p
}

// K5, S2: a HostPort with a hostIP is reserved only there.
func TestBindOfHostPort(t *testing.T) {
	w := startWorld(t, "node-a")
	host, extra := w.Host("node-a"), netip.MustParseAddr("203.0.113.7")
	w.addAddress(host, extra)
	w.write("a1", podWithPort(w.Host("a1"), "", hostPort))
	w.write("a2", podWithPort(w.Host("a2"), extra.String(), hostPort+1))
	w.apply("a3", podWithPort(w.Host("a3"), "127.0.0.2", hostPort+2))
	inEachFamily(t, func(t *testing.T, f family) {
		for _, to := range append(f.loopbacks(), f.everywhere(0), f.on(host, 0)) {
			wantBind(t, host, f, netip.AddrPortFrom(to.Addr(), hostPort), refused)
		}
	})
	for _, f := range []family{ipv4, v4Mapped} {
		wantBind(t, host, f, netip.AddrPortFrom(extra, hostPort), refused)
		for _, port := range []uint16{hostPort + 1, hostPort + 2} {
			wantBind(t, host, f, f.everywhere(port), refused)
			wantBind(t, host, f, f.on(host, port), allowed)
			wantBind(t, host, f, f.choose("127.0.0.1", "", port), allowed)
		}
		wantBind(t, host, f, netip.AddrPortFrom(extra, hostPort+1), refused)
		wantBind(t, host, f, f.choose("127.0.0.2", "", hostPort+2), refused)
		wantBind(t, host, f, netip.AddrPortFrom(extra, hostPort+2), allowed)
	}
	wantBind(t, host, ipv6, ipv6.everywhere(hostPort+1), refused) // receives IPv4, too
	wantBind(t, host, ipv6, ipv6.everywhere(hostPort+1), allowed, v6Only)
	w.remove("a2")
	w.eventually("the port of the removed pod is free", func() bool {
		return tcp.try(t, host, ipv4, ipv4.everywhere(hostPort+1)) == allowed && udp.try(t, host, ipv6, ipv6.everywhere(hostPort+1)) == allowed
	})
}
