// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
)

// rulesWithoutDevices are those of istio-iptables with -c net1,vnet+.
var rulesWithoutDevices = strings.NewReplacer(
	"hook output priority -100; policy accept;", `hook output priority -100; policy accept; oifname "net1" return; oifname "vnet*" return;`,
	"hook prerouting priority -100; policy accept;", `hook prerouting priority -100; policy accept; iifname "net1" return; iifname "vnet*" return;`,
).Replace(rulesAsIstio)

// A cable is a pair of devices between a pod and the server, with addresses of both families.
type cable struct {
	pod, server *lab.Host
	device      string // of the pod; the server's has the same name and the pod's
	number      int
}

// at returns the addresses of an end in both families: 1 is the server's, 2 the pod's.
func (c cable) at(end int, port uint16) []netip.AddrPort {
	return []netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 77, byte(c.number), byte(end)}), port),
		netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("fd77:0:0:%x::%x", c.number, end)), port),
	}
}

// peer is the server's device.
func (c cable) peer() string { return c.device + "-" + c.pod.Name }

func (w *world) plug(c cable) {
	w.t.Helper()
	w.run(c.pod.Name, "ip", "link", "add", c.device, "type", "veth", "peer", "name", c.peer(), "netns", c.server.NetNS)
	for end, of := range map[int]struct {
		host   *lab.Host
		device string
	}{1: {c.server, c.peer()}, 2: {c.pod, c.device}} {
		for _, a := range c.at(end, 0) {
			w.run(of.host.Name, "ip", "address", "add", fmt.Sprintf("%s/%d", a.Addr(), a.Addr().BitLen()*3/4), "dev", of.device, "nodad")
		}
		w.run(of.host.Name, "ip", "link", "set", of.device, "up")
	}
}

// route runs `ip route` or `ip rule` in a pod, for a family.
func (w *world) route(pod string, family int, argv ...string) {
	w.t.Helper()
	w.run(pod, append([]string{"ip", []string{"-4", "-6"}[family]}, argv...)...)
}

// TestExcludedInterfaces: pod a1 has the sidecar shortcut with excluded devices, pod a2 the rules of istio-iptables
// with the same. What leaves and arrives by these devices does not go to the proxy, and both pods have the same ways.
func TestExcludedInterfaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent.Flags = []string{"--edge-mode=off", "--mesh-pods=" + selected, "--mesh-exclude-interfaces=vnet+"}
	w.must(w.folder.Put("a1", meshed(w.Host("a1"), func(p *corev1.Pod) {
		p.Annotations["traffic.sidecar.istio.io/excludeInterfaces"] = "net1"
	})))
	server := w.Host("b2")
	w.run("a2", "nft", rulesWithoutDevices)
	w.run("a2", "ip", "-6", "address", "add", "::6/128", "dev", "lo", "nodad")
	var twins []*twin
	for n, pod := range []string{"a1", "a2"} {
		c := cable{w.Host(pod), server, "net1", 1 + n}
		w.plug(c)
		twins = append(twins, &twin{w.startProxy(envoy, pod), c, cable{w.Host(pod), server, "vnet5", 11 + n}})
	}
	for _, host := range []string{"a1", "a2", "b1", "b2"} {
		w.twinServer(w.Host(host))
	}
	w.must(w.agent.Start())
	w.awaitPods("a1")
	t.Run("devices", func(t *testing.T) { w.in(t).excluded(twins) })
	t.Run("a device that comes later", func(t *testing.T) {
		w := w.in(t)
		for _, p := range twins {
			w.plug(p.later)
		}
		w.sameWays(twins, []twinCall{
			{"by a later device", 0, func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
				return lab.DialOptions{}, p.pod, p.later.at(1, twinPort)[family]
			}, false},
			{"from outside by a later device", 0, func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
				return lab.DialOptions{}, server, p.later.at(2, twinPort)[family]
			}, false},
		})
	})
	t.Run("routes that change", func(t *testing.T) { w.in(t).movedRoutes(twins) })
	t.Run("routing rules", func(t *testing.T) { w.in(t).routingRules(twins) })
	t.Run("after another start of the agent", func(t *testing.T) {
		w := w.in(t)
		w.must(w.agent.Kill())
		w.must(w.agent.Start())
		w.awaitPods("a1")
		w.excluded(twins)
	})
	t.Run("without the annotation", func(t *testing.T) {
		w := w.in(t)
		w.must(w.folder.Put("a1", meshed(w.Host("a1"), func(*corev1.Pod) {})))
		a1, options := w.Host("a1"), lab.DialOptions{}
		w.eventually("connections by net1 go to the proxy", func() bool { return w.proxiedNow(options, a1, twins[0].cable.at(1, 0)[0]) })
		if w.proxiedNow(options, a1, twins[0].later.at(1, 0)[0]) {
			t.Error("a connection by vnet5 goes to the proxy")
		}
	})
}

// proxiedNow reports whether a connection goes through a proxy: the server then sees another client.
func (w *world) proxiedNow(options lab.DialOptions, from *lab.Host, to netip.AddrPort) bool {
	w.t.Helper()
	conn := w.open(from.Name, netip.AddrPortFrom(to.Addr(), lab.PortTCP), options)
	defer conn.Close()
	own := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	return w.ask(conn).Peer != netip.AddrPortFrom(own.Addr().Unmap(), own.Port())
}

// A twin is one of two pods with the same devices.
type twin struct {
	*sidecar
	cable, later cable
}

// A twinCall is a connection of either twin: from a host to an address, with options.
type twinCall struct {
	name    string
	skip    int // a family, by its number, in which it is not tried; 0: none
	of      func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort)
	proxied bool
}

// sameWays: connections of both twins go through the proxy, or do not. What the agent has to notice first may take a
// moment.
func (w *world) sameWays(twins []*twin, all []twinCall) {
	w.t.Helper()
	for family := range 2 {
		for _, way := range all {
			if way.skip == 4+2*family {
				continue
			}
			for _, p := range twins {
				name := fmt.Sprintf("%s, IPv%d, %s", p.pod.Name, 4+2*family, way.name)
				options, from, to := way.of(p, family)
				if p == twins[0] {
					w.eventually(name, func() bool { return w.proxiedNow(options, from, to) == way.proxied })
				}
				if got := w.passedWith(options, p.sidecar, from, to, way.proxied); got != "ok" {
					w.t.Errorf("%s: %s", name, got)
				}
			}
		}
	}
}

// excluded: only what leaves and arrives by other devices goes through the proxy.
func (w *world) excluded(twins []*twin) {
	w.t.Helper()
	b1, b2, client := w.Host("b1"), w.Host("b2"), w.Host("client")
	w.sameWays(twins, []twinCall{
		{"by the pod's first device", 0, func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
			return lab.DialOptions{}, p.pod, addressesOf(b1, twinPort)[family]
		}, true},
		{"by net1", 0, func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
			return lab.DialOptions{}, p.pod, p.cable.at(1, twinPort)[family]
		}, false},
		{"by net1, IPv4-mapped", 6, func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
			return lab.DialOptions{V4Mapped: true}, p.pod, p.cable.at(1, twinPort)[family]
		}, false},
		{"to the same network, bound to net1", 0, func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
			return lab.DialOptions{Control: bindToDevice("net1")}, p.pod, p.cable.at(1, twinPort)[family]
		}, false},
		{"from outside by the first device", 0, func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
			return lab.DialOptions{}, client, addressesOf(p.pod, twinPort)[family]
		}, true},
		{"from outside by net1", 0, func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
			return lab.DialOptions{}, b2, p.cable.at(2, twinPort)[family]
		}, false},
	})
	// A connection to a link-local address has its device in the address.
	for device, to := range map[string]netip.Addr{"net1": w.linkLocal(b2.Name, twins[0].cable.peer()), "eth0": netip.MustParseAddr("fe80::1234")} {
		out := w.run("a1", "bash", "-c", fmt.Sprintf(connectAndShow, to, device, lab.PortTCP))
		if proxied := strings.Contains(out, ":3A99 "); proxied != (device == "eth0") { // 15001
			w.t.Errorf("a connection to %s%%%s: %s", to, device, out)
		}
	}
	w.noOrigin(twins[0])
}

func bindToDevice(name string) func(fd int) error {
	return func(fd int) error { return unix.BindToDevice(fd, name) }
}

// linkLocal returns the link-local address of a device.
func (w *world) linkLocal(host, device string) (a netip.Addr) {
	w.t.Helper()
	w.must(w.Host(host).Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		all, err := i.Addrs()
		for _, one := range all {
			if p, ok := one.(*net.IPNet); ok && p.IP.IsLinkLocalUnicast() {
				a, _ = netip.AddrFromSlice(p.IP)
			}
		}
		return err
	}))
	if !a.IsValid() {
		w.t.Fatalf("%s of %s has no link-local address", device, host)
	}
	return a
}

// connectAndShow connects to an address at a device, and prints the line of the socket.
const connectAndShow = `exec 3<>/dev/tcp/%s%%%s/%d
socket=$(readlink /proc/$$/fd/3)
grep " ${socket//[^0-9]/} " /proc/self/net/tcp6`

// noOrigin: what an application accepts by an excluded device was not redirected.
func (w *world) noOrigin(p *twin) {
	w.t.Helper()
	const port = 7177
	listener, err := p.pod.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", port))
	w.must(err)
	defer listener.Close()
	w.open("b2", p.cable.at(2, port)[0], lab.DialOptions{})
	conn, err := listener.Accept()
	w.must(err)
	defer conn.Close()
	raw, err := conn.(syscall.Conn).SyscallConn()
	w.must(err)
	w.must(raw.Control(func(fd uintptr) {
		if origin, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, 80); err == nil { // SO_ORIGINAL_DST
			w.t.Errorf("SO_ORIGINAL_DST of a connection by net1: %v", origin.Multiaddr)
		}
	}))
}

// movedRoutes: a route to a server moves to the excluded device and back, and with a gateway and a longer network.
func (w *world) movedRoutes(twins []*twin) {
	w.t.Helper()
	b2 := w.Host("b2")
	to := func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
		return lab.DialOptions{}, p.pod, addressesOf(b2, twinPort)[family]
	}
	each := func(do func(p *twin, family int, server, gateway string)) {
		for family := range 2 {
			for _, p := range twins {
				do(p, family, addressesOf(b2, 0)[family].Addr().String(), p.cable.at(1, 0)[family].Addr().String())
			}
		}
	}
	w.sameWays(twins, []twinCall{{"before", 0, to, true}})
	each(func(p *twin, family int, server, gateway string) {
		w.route(p.pod.Name, family, "route", "add", server, "via", gateway, "dev", "net1")
	})
	w.sameWays(twins, []twinCall{{"by net1", 0, to, false}})
	each(func(p *twin, family int, server, gateway string) { w.route(p.pod.Name, family, "route", "del", server) })
	w.sameWays(twins, []twinCall{{"again", 0, to, true}})
	// The larger network by net1, and the server in it by the first device.
	each(func(p *twin, family int, server, gateway string) {
		w.route(p.pod.Name, family, "route", "add", netip.PrefixFrom(netip.MustParseAddr(server), 12).Masked().String(), "via", gateway, "dev", "net1")
	})
	w.sameWays(twins, []twinCall{{"in a network by net1", 0, to, false}})
	each(func(p *twin, family int, server, gateway string) {
		var first string
		for line := range strings.Lines(w.run(p.pod.Name, "ip", []string{"-4", "-6"}[family], "route", "show", "default")) {
			first = strings.TrimSpace(line)
		}
		w.route(p.pod.Name, family, append([]string{"route", "add", server}, strings.Fields(strings.TrimPrefix(first, "default"))...)...)
	})
	w.sameWays(twins, []twinCall{{"by the first device in a network by net1", 0, to, true}})
	each(func(p *twin, family int, server, gateway string) {
		w.route(p.pod.Name, family, "route", "del", server)
		w.route(p.pod.Name, family, "route", "del", netip.PrefixFrom(netip.MustParseAddr(server), 12).Masked().String())
	})
}

// routingRules: rules by source and by destination are followed, and others are a condition.
func (w *world) routingRules(twins []*twin) {
	w.t.Helper()
	b2 := w.Host("b2")
	bound := func(local func(p *twin, family int) netip.AddrPort) func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
		return func(p *twin, family int) (lab.DialOptions, *lab.Host, netip.AddrPort) {
			return lab.DialOptions{Local: local(p, family)}, p.pod, addressesOf(b2, twinPort)[family]
		}
	}
	unbound := bound(func(*twin, int) netip.AddrPort { return netip.AddrPort{} })
	for family := range 2 {
		for _, p := range twins {
			w.route(p.pod.Name, family, "route", "add", "default", "via", p.cable.at(1, 0)[family].Addr().String(), "dev", "net1", "table", "100")
			w.route(p.pod.Name, family, "rule", "add", "from", p.cable.at(2, 0)[family].Addr().String(), "lookup", "100")
		}
	}
	w.sameWays(twins, []twinCall{
		{"without a source", 0, unbound, true},
		{"from the address of net1", 0, bound(func(p *twin, family int) netip.AddrPort { return p.cable.at(2, 0)[family] }), false},
		{"from the first address", 0, bound(func(p *twin, family int) netip.AddrPort { return addressesOf(p.pod, 0)[family] }), true},
	})
	for family := range 2 {
		for _, p := range twins {
			w.route(p.pod.Name, family, "rule", "add", "to", addressesOf(b2, 0)[family].Addr().String(), "lookup", "100")
		}
	}
	w.sameWays(twins, []twinCall{{"by a rule for the destination", 0, unbound, false}})
	for family := range 2 {
		for _, p := range twins {
			w.route(p.pod.Name, family, "rule", "del", "to", addressesOf(b2, 0)[family].Addr().String(), "lookup", "100")
			w.route(p.pod.Name, family, "rule", "del", "from", p.cable.at(2, 0)[family].Addr().String(), "lookup", "100")
		}
	}
	w.sameWays(twins, []twinCall{{"without these rules", 0, unbound, true}})
	w.run("a1", "ip", "rule", "add", "uidrange", "5000-5001", "lookup", "100")
	w.eventually("the condition MeshRoutesUnclear", func() bool {
		s, err := w.agent.Status()
		w.must(err)
		return slices.ContainsFunc(s.Conditions, func(c condition.Condition) bool { return c.Code == condition.MeshRoutesUnclear.Code })
	})
	w.run("a1", "ip", "rule", "del", "uidrange", "5000-5001", "lookup", "100")
}

// TestDNSByExcludedInterface: of the name servers of resolv.conf, those behind an excluded device answer themselves.
func TestDNSByExcludedInterface(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--mesh-dns-port=15053", "--mesh-proxy-uid=4242", "--mesh-proxy-gid=4242", "--mesh-exclude-interfaces=net1")
	pod, c := w.Host("a1"), cable{w.Host("a1"), w.Host("b2"), "net1", 1}
	w.plug(c)
	w.answerDNS(pod)
	servers := []netip.AddrPort{netip.AddrPortFrom(w.Host("b1").Addr4, 53), netip.AddrPortFrom(w.Host("b1").Addr6, 53)}
	w.resolvConf(pod, 4242, append(c.at(1, 53), servers...))
	w.startAgent()
	for _, server := range servers {
		w.askConnected(pod, "udp", server)
		w.askConnected(pod, "tcp", server)
		w.askUnconnected(pod, server)
	}
	for _, server := range c.at(1, 53) {
		w.answersItself(pod, c.server, server.Addr())
		if conn, err := pod.Dial(t.Context(), "tcp", server.String()); err == nil {
			conn.Close()
			t.Errorf("a connection to %s goes to %s", server, conn.RemoteAddr())
		}
	}
}
