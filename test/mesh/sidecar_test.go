// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// TestSidecars: connections of three pods go through their proxies, which ran before the agent.
func TestSidecars(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mesh-exclude-outbound-ports=8081", "--mesh-exclude-inbound-ports=8081")
	w.agent.Flags = append(w.agent.Flags, "--mesh-exclude-outbound-networks="+w.Host("b2").Addr4.String()+"/32,"+w.Host("b2").Addr6.String()+"/128")
	w.must(w.folder.Put("web", node.Service("web", 1), node.Slices("web", w.Host("b1"))[0], node.Slices("web", w.Host("b1"))[1]))
	sidecars := []*sidecar{w.startProxy(envoy, "a1"), w.startProxy(haproxy, "a2"), w.startProxy(nginx, "a3")}
	w.startAgent()
	for _, s := range sidecars {
		t.Run(s.name, func(t *testing.T) {
			w := w.in(t)
			w.moves("the client connects to "+s.pod.Name+" at a port that is not excluded", "inbound", func() { w.inbound(s) })
			if s.outbound {
				w.outbound(s)
			}
			w.moves("connections to excluded ports and networks, and to the own address of "+s.pod.Name, "", func() { w.untouched(s) })
			w.restartOfProxy(s)
		})
	}
	if n := w.handshakes(); n != 0 {
		t.Errorf("%d handshakes were not forgotten", n)
	}
	t.Run("agent", func(t *testing.T) { w.in(t).restartOfAgent(sidecars[0], "--mesh-sockmap") })
	for _, s := range sidecars {
		t.Run(s.name+" by sockmap", func(t *testing.T) {
			w, before := w.in(t), w.counts()
			w.needSockmap()
			for range readsUntilKnown {
				w.inbound(s)
			}
			if s.outbound {
				w.outbound(s)
			}
			w.untouched(s)
			w.manyRequests(s)
			if now := w.counts(); now.Skipped == before.Skipped {
				t.Errorf("no message skipped TCP: %+v before, %+v now", before, now)
			}
		})
	}
	t.Run("sockmap", func(t *testing.T) {
		w.in(t).needSockmap()
		sidecars[0].end()
		w.in(t).sockmap(t, sidecars[0].pod)
	})
	t.Run("without the flags", func(t *testing.T) { w.in(t).disabled(sidecars[1]) })
}

// addressesOf returns a pod's addresses in both families.
func addressesOf(h *lab.Host, port uint16) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(h.Addr4, port), netip.AddrPortFrom(h.Addr6, port)}
}

// inbound: the proxy gets connections from other hosts, with the client's address and the destination.
func (w *world) inbound(s *sidecar) {
	w.t.Helper()
	for i, to := range addressesOf(s.pod, lab.PortTCP) {
		client := addressesOf(w.Host("client"), 0)[i].Addr()
		conn := w.open("client", to, lab.DialOptions{})
		answer := w.ask(conn)
		if answer.Pod != s.pod.Name || answer.Peer.Addr() == client || answer.Local != to {
			w.t.Errorf("inbound to %s: the application sees %+v, want its pod's proxy", to, answer)
		}
		conn.Close()
		w.eventually("the proxy has logged "+to.String(), func() bool {
			return s.proxied(client.String(), to.String()) || s.proxied(client.String(), haproxyName(to))
		})
	}
}

// haproxyName is an address as haproxy writes it: IPv6 without brackets.
func haproxyName(a netip.AddrPort) string {
	return strings.NewReplacer("[", "", "]", "").Replace(a.String())
}

// outbound: the proxy gets connections of the application, with their destination, and the application sees none of it.
func (w *world) outbound(s *sidecar) {
	w.t.Helper()
	for _, c := range []struct {
		name    string
		to      netip.AddrPort
		options lab.DialOptions
	}{
		{"IPv4", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP), lab.DialOptions{}},
		{"IPv4-mapped", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP), lab.DialOptions{V4Mapped: true}},
		{"bound to the pod's address", netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP), lab.DialOptions{Local: netip.AddrPortFrom(s.pod.Addr4, 0)}},
		{"IPv6", netip.AddrPortFrom(w.Host("b1").Addr6, lab.PortTCP), lab.DialOptions{}},
		{"Service", netip.MustParseAddrPort("10.96.0.1:80"), lab.DialOptions{}},
		{"IPv6 Service", netip.MustParseAddrPort("[fd00:96::1]:80"), lab.DialOptions{}},
	} {
		if c.to.Addr().Is6() && !s.outbound6 {
			continue
		}
		conn := w.open(s.pod.Name, c.to, c.options)
		if !c.options.Local.IsValid() && !local(conn).IsLoopback() {
			w.t.Errorf("%s: the connection to %s has the source %s: it does not go to the proxy", c.name, c.to, local(conn))
		}
		if remote(conn) != c.to {
			w.t.Errorf("%s: getpeername returns %s, want %s", c.name, remote(conn), c.to)
		}
		w.halfClose(c.name, conn)
		w.eventually(c.name+": the proxy has logged "+c.to.String(), func() bool {
			return s.proxied(local(conn).String(), c.to.String())
		})
	}
	w.ownService(s)
	w.short(s, 1000)
}

// ownService: an application that calls its own Service is served by the outbound and then by the inbound side of its
// proxy, as by Istio's rules: what the former encrypts the latter decrypts.
func (w *world) ownService(s *sidecar) {
	w.t.Helper()
	number := map[string]uint8{"a1": 21, "a2": 22, "a3": 23}[s.pod.Name]
	name := "own-" + s.pod.Name
	slices := node.Slices(name, s.pod)
	w.must(w.folder.Put(name, node.Service(name, number), slices[0], slices[1]))
	for family, address := range node.ClusterIPs(number) {
		own := addressesOf(s.pod, lab.PortTCP)[family]
		if own.Addr().Is6() && !s.outbound6 {
			continue
		}
		to := netip.AddrPortFrom(netip.MustParseAddr(address), 80)
		w.eventually("the Service "+name+" is served", func() bool {
			conn := w.open(s.pod.Name, to, lab.DialOptions{})
			defer conn.Close()
			ctx, cancel := context.WithTimeout(context.Background(), patience/2)
			defer cancel()
			answer, err := lab.Ask(ctx, conn, "hello")
			return err == nil && answer.Pod == s.pod.Name && answer.Local == own
		})
		w.eventually("the proxy has logged both ways to "+name, func() bool {
			return s.proxied(loopbackOf(own.Addr()), to.String()) && (s.proxied(own.Addr().String(), own.String()) || s.proxied(own.Addr().String(), haproxyName(own)))
		})
	}
}

func loopbackOf(a netip.Addr) string {
	if a.Is4() {
		return "127.0.0.1"
	}
	return "::1"
}

// halfClose: what the application sends before it closes its side arrives, and is answered after that.
func (w *world) halfClose(name string, conn net.Conn) {
	w.t.Helper()
	text := strings.Repeat("x", 30000)
	if _, err := io.WriteString(conn, text+"\n"); err != nil {
		w.t.Errorf("%s: %v", name, err)
	}
	w.must(conn.(*net.TCPConn).CloseWrite())
	if all, err := io.ReadAll(conn); err != nil || !strings.Contains(string(all), text) {
		w.t.Errorf("%s: after half-close %d bytes are returned (%v)", name, len(all), err)
	}
	conn.Close()
}

// short opens many connections, one after the other.
func (w *world) short(s *sidecar, n int) {
	w.t.Helper()
	to := netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP)
	for i := range n {
		conn := w.open(s.pod.Name, to, lab.DialOptions{})
		if _, err := io.WriteString(conn, "x\n"); err != nil {
			w.t.Fatalf("connection %d: %v", i, err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 1 {
			w.t.Fatalf("connection %d: %v", i, err)
		}
		conn.Close()
	}
}

// untouched: connections that are excluded, on loopback, or the proxy's own do not go to the proxy.
func (w *world) untouched(s *sidecar) {
	w.t.Helper()
	for _, c := range []struct {
		name, from string
		to, peer   netip.AddrPort
	}{
		{"excluded port", s.pod.Name, netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortHTTP), netip.AddrPortFrom(s.pod.Addr4, 0)},
		{"excluded network", s.pod.Name, netip.AddrPortFrom(w.Host("b2").Addr4, lab.PortTCP), netip.AddrPortFrom(s.pod.Addr4, 0)},
		{"excluded IPv6 network", s.pod.Name, netip.AddrPortFrom(w.Host("b2").Addr6, lab.PortTCP), netip.AddrPortFrom(s.pod.Addr6, 0)},
		{"own address", s.pod.Name, netip.AddrPortFrom(s.pod.Addr4, lab.PortTCP), netip.AddrPortFrom(s.pod.Addr4, 0)},
		{"own IPv6 address", s.pod.Name, netip.AddrPortFrom(s.pod.Addr6, lab.PortTCP), netip.AddrPortFrom(s.pod.Addr6, 0)},
		{"loopback", s.pod.Name, netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:0")},
		{"IPv6 loopback", s.pod.Name, netip.MustParseAddrPort("[::1]:8080"), netip.MustParseAddrPort("[::1]:0")},
		{"excluded inbound port", "client", netip.AddrPortFrom(s.pod.Addr6, lab.PortHTTP), netip.AddrPortFrom(w.Host("client").Addr6, 0)},
	} {
		conn := w.open(c.from, c.to, lab.DialOptions{})
		if local(conn) != c.peer.Addr() || remote(conn) != c.to {
			w.t.Errorf("%s: the connection to %s is from %s to %s, want from %s", c.name, c.to, local(conn), remote(conn), c.peer.Addr())
		}
		if c.to.Port() == lab.PortTCP {
			if answer := w.ask(conn); answer.Peer.Addr() != c.peer.Addr() {
				w.t.Errorf("%s: the server sees %s, want %s", c.name, answer.Peer, c.peer.Addr())
			}
		}
		conn.Close()
	}
}

// manyRequests are over one connection to the application.
func (w *world) manyRequests(s *sidecar) {
	w.t.Helper()
	conn := w.open("client", netip.AddrPortFrom(s.pod.Addr4, lab.PortTCP), lab.DialOptions{})
	for range 2 * readsUntilKnown {
		w.ask(conn)
	}
	conn.Close()
}

// restartOfProxy: without a proxy nothing passes it by, and a new one is found.
func (w *world) restartOfProxy(s *sidecar) {
	w.t.Helper()
	in, out := netip.AddrPortFrom(s.pod.Addr4, lab.PortTCP), netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP)
	s.end()
	w.moves("no proxy runs in "+s.pod.Name+", and the client connects to it", "refused", func() {
		if conn, err := w.dial("client", in, lab.DialOptions{}); !errors.Is(err, syscall.ECONNREFUSED) {
			w.t.Errorf("without a proxy a client connects to %s: %v, %v", in, conn, err)
		}
	})
	w.moves("no proxy runs in "+s.pod.Name+", and its application connects to b1", "outbound", func() {
		if conn, err := w.dial(s.pod.Name, out, lab.DialOptions{}); !errors.Is(err, syscall.ECONNREFUSED) {
			w.t.Errorf("without a proxy the application connects to %s: %v, %v", out, conn, err)
		}
	})
	*s = *w.startProxyAgain(s)
	w.inbound(s)
	if s.outbound {
		w.ask(w.open(s.pod.Name, out, lab.DialOptions{}))
	}
}

// startProxyAgain starts a proxy that ends with the whole test and not with this part.
func (w *world) startProxyAgain(s *sidecar) *sidecar {
	w.t.Helper()
	whole := *w
	whole.t = w.whole
	return whole.startProxy(s.proxy, s.pod.Name)
}

// disabled: an agent whose programs would run in the wrong order refuses to start; one without the flags detaches
// everything.
func (w *world) disabled(s *sidecar) {
	w.t.Helper()
	w.must(w.agent.Kill())
	w.agent.Flags = []string{"--edge-mode=off", "--mesh-cgroups=" + w.agent.Host.CgroupRoot}
	if err := w.agent.Start(); err == nil || !strings.Contains(err.Error(), "would run first") {
		w.t.Errorf("an agent for its own cgroup: %v", err)
	}
	w.agent.Flags = []string{"--edge-mode=off"}
	w.must(w.agent.Start())
	for _, c := range []struct {
		from *lab.Host
		to   netip.AddrPort
	}{
		{w.Host("client"), netip.AddrPortFrom(s.pod.Addr4, lab.PortTCP)},
		{s.pod, netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP)},
	} {
		if answer := w.ask(w.open(c.from.Name, c.to, lab.DialOptions{})); answer.Peer.Addr() != c.from.Addr4 {
			w.t.Errorf("%s sees %s, want %s", answer.Pod, answer.Peer, c.from.Addr4)
		}
	}
	if left, err := filepath.Glob(filepath.Join(w.agent.BPFFS(), "*", "mesh*")); len(left) > 0 || err != nil {
		w.t.Errorf("pins are left: %v (%v)", left, err)
	}
}

// restartOfAgent: without an agent connections go on, and a proxy can be restarted; another agent, with other flags,
// takes over.
func (w *world) restartOfAgent(s *sidecar, flags ...string) {
	w.t.Helper()
	in, out := netip.AddrPortFrom(s.pod.Addr4, lab.PortTCP), netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP)
	w.must(w.agent.Kill())
	w.restartOfProxy(s)
	through := []net.Conn{w.open("client", in, lab.DialOptions{}), w.open(s.pod.Name, out, lab.DialOptions{})}
	w.agent.Flags = append(w.agent.Flags, flags...)
	w.startAgent()
	for _, conn := range append(through, w.open("client", in, lab.DialOptions{}), w.open(s.pod.Name, out, lab.DialOptions{})) {
		w.ask(conn)
	}
	w.restartOfProxy(s)
}
