// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/test/lab"
)

// rulesWithMachines are those of istio-iptables with -k vm0.
var rulesWithMachines = strings.NewReplacer("hook prerouting priority -100; policy accept;",
	`hook prerouting priority -100; policy accept; iifname "vm0" meta l4proto tcp redirect to :15001; iifname "vm0" return;`).Replace(rulesAsIstio)

// A machine stands for a virtual machine: a network namespace behind a device of a pod.
type machine struct {
	*netns.Namespace
	cable cable // its end is 3, the pod's is 4
}

func (w *world) newMachine(pod *lab.Host, number int) *machine {
	w.t.Helper()
	namespace, err := netns.New()
	w.must(err)
	w.t.Cleanup(func() { namespace.Close() })
	m := &machine{namespace, cable{pod: pod, device: "vm0", number: number}}
	w.run(pod.Name, "ip", "link", "add", "vm0", "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), namespace.FD()))
	w.run(pod.Name, "ip", "link", "set", "vm0", "up")
	w.run(pod.Name, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
	script := "ip link set lo up; ip link set eth0 up;"
	for family, own := range m.at(3) {
		length := fmt.Sprintf("/%d", own.BitLen()*3/4)
		w.run(pod.Name, "ip", "address", "add", m.at(4)[family].String()+length, "dev", "vm0", "nodad")
		script += fmt.Sprintf("ip address add %s%s dev eth0 nodad; ip %s route add default via %s;", own, length, []string{"-4", "-6"}[family], m.at(4)[family])
	}
	w.must(namespace.Do(func() error {
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	return m
}

// at returns the addresses of an end of its cable in both families.
func (m *machine) at(end int) (all []netip.Addr) {
	for _, a := range m.cable.at(end, 0) {
		all = append(all, a.Addr())
	}
	return all
}

// dial connects from the machine.
func (m *machine) dial(network string, to netip.AddrPort) (conn net.Conn, err error) {
	err = m.Do(func() error {
		conn, err = (&net.Dialer{Timeout: patience / 2}).Dial(network, to.String())
		return err
	})
	if err == nil {
		conn.SetDeadline(time.Now().Add(patience / 2))
	}
	return conn, err
}

// A machineTwin is one of two pods with the same machine.
type machineTwin struct {
	*sidecar
	machine *machine
	net1    cable // to the server b2, which has a route to the machine
}

// TestVirtualMachines: pod a1 has the sidecar shortcut, pod a2 the rules of istio-iptables, and behind a device of each
// is a virtual machine. What it sends by TCP goes to the proxy, with the same results.
func TestVirtualMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent.Flags = []string{"--edge-mode=off", "--mesh-pods=" + selected, fmt.Sprintf("--mesh-exclude-outbound-ports=%d", twinExcluded)}
	with := func(p *corev1.Pod) {
		p.Annotations["traffic.sidecar.istio.io/kubevirtInterfaces"] = "vm0"
		p.Annotations["traffic.sidecar.istio.io/excludeInterfaces"] = "net1"
		p.Annotations["traffic.sidecar.istio.io/excludeInboundPorts"] = fmt.Sprint(twinExcluded)
	}
	w.must(w.folder.Put("a1", meshed(w.Host("a1"), with)))
	w.run("a2", "nft", rulesWithMachines)
	w.run("a2", "ip", "-6", "address", "add", "::6/128", "dev", "lo", "nodad")
	var twins []*machineTwin
	for n, pod := range []string{"a1", "a2"} {
		m := w.newMachine(w.Host(pod), 21+n)
		c := cable{w.Host(pod), w.Host("b2"), "net1", 31 + n}
		w.plug(c)
		for family, of := range []string{"-4", "-6"} {
			w.run("b2", "ip", of, "route", "add", m.at(3)[family].String(), "via", c.at(2, 0)[family].Addr().String(), "dev", c.peer())
		}
		twins = append(twins, &machineTwin{w.startProxy(envoy, pod), m, c})
	}
	for _, host := range []string{"a1", "a2", "b1"} {
		w.twinServer(w.Host(host))
	}
	w.must(w.agent.Start())
	w.awaitPods("a1")
	w.awaitMachine(twins[0])
	t.Run("connections", func(t *testing.T) { w.in(t).machines(twins) })
	t.Run("after a restart of the proxies and of the agent", func(t *testing.T) {
		w := w.in(t)
		w.must(w.agent.Kill())
		for _, p := range twins {
			p.end()
			*p.sidecar = *w.startProxyAgain(p.sidecar)
		}
		w.must(w.agent.Start())
		w.awaitPods("a1")
		w.awaitMachine(twins[0])
		w.machines(twins)
	})
	t.Run("with SYN cookies", func(t *testing.T) {
		w := w.in(t)
		for _, p := range twins {
			w.run(p.pod.Name, "sysctl", "-qw", "net.ipv4.tcp_syncookies=2")
		}
		w.machines(twins)
	})
	t.Run("to some networks", func(t *testing.T) {
		w := w.in(t)
		w.must(w.folder.Put("a1", meshed(w.Host("a1"), func(pod *corev1.Pod) {
			with(pod)
			pod.Annotations["traffic.sidecar.istio.io/includeOutboundIPRanges"] = w.Host("b1").Addr4.String() + "/32"
		})))
		p, to := twins[0], twins[0].net1.at(1, lab.PortTCP)[0]
		w.eventually("other destinations are routed", func() bool { return w.peerOf(p, to) == p.machine.at(3)[0] })
		if got := w.machineThrough(p, addressesOf(w.Host("b1"), twinPort)[0]); got != "ok" {
			t.Errorf("to an included network: %s", got)
		}
	})
	t.Run("another machine", func(t *testing.T) { // the device is another one with the same name
		w := w.in(t)
		w.run("a1", "ip", "link", "del", "vm0")
		whole := *w
		whole.t = w.whole
		p := &machineTwin{twins[0].sidecar, whole.newMachine(w.Host("a1"), 23), twins[0].net1}
		w.eventually("what it sends goes to the proxy", func() bool { return w.machineThrough(p, addressesOf(w.Host("b1"), twinPort)[0]) == "ok" })
		w.run("b2", "ip", "route", "add", p.machine.at(3)[0].String(), "via", p.net1.at(2, 0)[0].Addr().String(), "dev", p.net1.peer())
		twins[0].machine = p.machine
	})
	t.Run("without the annotation", func(t *testing.T) {
		w := w.in(t)
		w.must(w.folder.Put("a1", meshed(w.Host("a1"), func(*corev1.Pod) {})))
		p, to := twins[0], twins[0].net1.at(1, lab.PortTCP)[0]
		w.eventually("what the machine sends is routed", func() bool { return w.peerOf(p, to) == p.machine.at(3)[0] })
		w.withoutRoutes("a1")
	})
	t.Run("without the flags", func(t *testing.T) {
		w := w.in(t)
		w.must(w.folder.Put("a1", meshed(w.Host("a1"), with)))
		w.awaitMachine(twins[0])
		w.must(w.agent.Kill())
		w.agent.Flags = []string{"--edge-mode=off"}
		w.must(w.agent.Start())
		w.withoutRoutes("a1")
	})
}

// awaitMachine waits until the agent has found the machine.
func (w *world) awaitMachine(p *machineTwin) {
	w.t.Helper()
	for _, to := range addressesOf(w.Host("b1"), lab.PortTCP) {
		w.eventually("what the machine sends goes to the proxy", func() bool { return w.peerOf(p, to).IsValid() })
	}
}

// peerOf returns the client that a server sees of a connection of a machine; invalid: there is no connection.
func (w *world) peerOf(p *machineTwin, to netip.AddrPort) netip.Addr {
	w.t.Helper()
	conn, err := p.machine.dial("tcp", to)
	if err != nil {
		return netip.Addr{}
	}
	defer conn.Close()
	return w.ask(conn).Peer.Addr()
}

// withoutRoutes: nothing is left of what the agent has added for machines.
func (w *world) withoutRoutes(pod string) {
	w.t.Helper()
	w.eventually("rules and routes are gone", func() bool {
		left := ""
		for _, family := range []string{"-4", "-6"} {
			left += w.run(pod, "ip", family, "rule", "show", "priority", "15001") + w.run(pod, "sh", "-c", "ip "+family+" route show table 15001 2>/dev/null || true")
		}
		return left == ""
	})
}

// machines: connections of both machines have the same results.
func (w *world) machines(twins []*machineTwin) {
	w.t.Helper()
	b1 := w.Host("b1")
	for family := range 2 {
		for _, c := range []struct {
			name string
			run  func(p *machineTwin) string
			may  bool
		}{
			{"to another pod", func(p *machineTwin) string { return w.machineThrough(p, addressesOf(b1, twinPort)[family]) }, false},
			{"to an excluded port", func(p *machineTwin) string { return w.machineThrough(p, addressesOf(b1, twinExcluded)[family]) }, false},
			{"to its pod's own address", func(p *machineTwin) string { return w.machineThrough(p, addressesOf(p.pod, twinPort)[family]) }, false},
			{"to an address of its device", func(p *machineTwin) string {
				return w.machineThrough(p, netip.AddrPortFrom(p.machine.at(4)[family], twinPort))
			}, false},
			{"by another device", func(p *machineTwin) string { return w.machineThrough(p, p.net1.at(1, lab.PortTCP)[family]) }, false},
			{"nothing listens", func(p *machineTwin) string { return endedBy(p.dialer(addressesOf(b1, twinClosed)[family]), 'u') }, true},
			{"1 MiB and back", func(p *machineTwin) string { return echoed(p.dialer(addressesOf(b1, twinPort)[family]), 1<<20) }, false},
			{"half-close", func(p *machineTwin) string { return halfClosed(p.dialer(addressesOf(b1, twinPort)[family])) }, false},
			{"the server speaks first", func(p *machineTwin) string { return greeted(p.dialer(addressesOf(b1, twinFirst)[family])) }, false},
			{"datagrams", func(p *machineTwin) string { return w.machineByUDP(p, family) }, false},
			{"to the machine", func(p *machineTwin) string { return w.toMachine(p, family) }, false},
		} {
			got, want := c.run(twins[0]), c.run(twins[1])
			// Whether a proxy reads before it closes is a race, with and without the shortcut.
			for n := 0; c.may && got != want && n < 20; n++ {
				got, want = c.run(twins[0]), c.run(twins[1])
			}
			if got != want || got != "ok" && !c.may {
				w.t.Errorf("IPv%d, %s: %s; by Istio's rules %s", 4+2*family, c.name, got, want)
			}
		}
	}
}

func (p *machineTwin) dialer(to netip.AddrPort) dialer {
	return func() (tcpConn, error) { return overTCP(p.machine.dial("tcp", to)) }
}

// machineThrough connects, and reports "ok" if the proxy logs the machine's address and the destination.
func (w *world) machineThrough(p *machineTwin, to netip.AddrPort) string {
	conn, err := p.machine.dial("tcp", to)
	if err != nil {
		return outcome(err)
	}
	lines := func() int { return p.lines(local(conn).String(), to.String()) }
	before := lines()
	io.WriteString(conn, "h\n")
	conn.(*net.TCPConn).CloseWrite()
	n, _ := io.Copy(io.Discard, conn)
	conn.Close()
	if n == 0 {
		return "no answer"
	}
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if lines() > before {
			return "ok"
		}
	}
	return "not by the proxy"
}

// machineByUDP: datagrams are routed to the server, which sees the machine.
func (w *world) machineByUDP(p *machineTwin, family int) string {
	conn, err := p.machine.dial("udp", p.net1.at(1, lab.PortUDP)[family])
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	if peer := w.ask(conn).Peer.Addr(); peer != p.machine.at(3)[family] {
		return "the server sees " + peer.String()
	}
	return "ok"
}

// toMachine: a connection that another host opens to the machine is routed in both directions.
func (w *world) toMachine(p *machineTwin, family int) string {
	w.t.Helper()
	var listener net.Listener
	w.must(p.machine.Do(func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", twinExcluded))
		return err
	}))
	defer listener.Close()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			io.Copy(conn, conn)
			conn.Close()
		}
	}()
	conn, err := w.dial("b2", netip.AddrPortFrom(p.machine.at(3)[family], twinExcluded), lab.DialOptions{})
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	io.WriteString(conn, "hello")
	_, err = io.ReadFull(conn, make([]byte, 5))
	return outcome(err)
}
