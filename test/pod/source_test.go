// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
	shortcut "beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

// P2: the source of packets from other nodes is validated as by the stack, for each value of rp_filter: the same frames
// arrive with the shortcut and without it. The node's own addresses are no sources, and with rp_filter=1 neither are
// pods behind a tunnel, or behind another device.
func TestSourceValidation(t *testing.T) {
	for _, c := range []struct {
		name  string
		shape lab.Shape
	}{
		{"VXLAN and bridge", lab.Shape{Network: lab.NetworkVXLAN, Pods: lab.PodsBridge}},
		{"WireGuard", lab.Shape{Network: lab.NetworkWireGuard}},
		{"two devices", lab.Shape{TwoNICs: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := lab.Supports(c.shape.Network); err != nil {
				t.Skipf("this kernel has no devices of network %s: %v", c.shape.Network, err)
			}
			w := newWorld(t, c.shape, "--pod-devices=auto")
			values, want := []string{"0", "1", "2"}, map[string][]string{}
			for _, value := range values {
				want[value] = w.arrivals(value)
				t.Logf("rp_filter=%s: %q", value, want[value])
			}
			for _, a := range w.agents {
				w.must(a.Start())
			}
			w.awaitAllPods()
			for _, value := range values {
				for i, got := range w.arrivals(value) {
					if got != want[value][i] {
						t.Errorf("rp_filter=%s: with the shortcut %s, on the stack %s", value, got, want[value][i])
					}
				}
			}
			if n := w.pods("node-a").Packets["path_in"]; n == 0 {
				t.Error("no frame took the shortcut")
			}
		})
	}
}

// arrivals sends frames to a1 of node-a, and returns which arrive with a value of rp_filter.
func (w *world) arrivals(value string) (all []string) {
	w.t.Helper()
	w.setRPFilter(value)
	conn, err := w.Host("a1").ListenPacket("udp", "[::]:9000")
	w.must(err)
	defer conn.Close()
	for _, second := range []bool{false, true}[:1+asInt(w.Shape.TwoNICs)] {
		for _, from := range []string{"a2", "b1", "node-a", "gateway", "unused", "client"} {
			for i, to := range addresses(w.Host("a1"), 0) {
				f := frame{host: "fabric", from: w.sourceOf(from)[i], to: to.Addr(), second: second, port: w.unusedPort()}
				payload := fmt.Sprintf("from %s, second device %t", f.from, second)
				// Twice: the decision about the first one must not be kept wrongly.
				w.send(f, payload)
				w.send(f, payload)
				all = append(all, fmt.Sprintf("%s: %d", payload, w.count(conn, payload)))
			}
		}
	}
	return all
}

// unusedPort is the source port of a flow that conntrack does not know from an earlier frame.
func (w *world) unusedPort() uint16 { return uint16(10000 + framePorts.Add(1)) }

var framePorts atomic.Uint32

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// setRPFilter sets the effective rp_filter of all devices of node-a and waits until its agent has it.
func (w *world) setRPFilter(value string) {
	w.t.Helper()
	w.run("node-a", "sh", "-c", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo "+value+" > $f; done")
	if w.agents["node-a"].Running() {
		w.eventually("the agent has rp_filter", func() bool { return w.strict() == (value == "1") })
	}
}

// strict reports whether the shortcut of node-a takes all devices to other nodes for strict.
func (w *world) strict() bool {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agents["node-a"].BPFFS(), bpf.PodMapPodDevices), nil)
	w.must(err)
	defer m.Close()
	var index uint32
	var device shortcut.DeviceRow
	strict := 0
	for all := m.Iterate(); all.Next(&index, &device); {
		if device.Role == shortcut.RoleNodes {
			if device.RpFilter != 1 {
				return false
			}
			strict++
		}
	}
	return strict > 0
}

// sourceOf are both addresses of a host, of the bridge of node-a, or of no pod.
func (w *world) sourceOf(name string) [2]netip.Addr {
	switch name {
	case "gateway":
		return [2]netip.Addr{netip.MustParseAddr("10.10.1.1"), netip.MustParseAddr("fd00:10:1::1")}
	case "unused":
		return [2]netip.Addr{netip.MustParseAddr("10.10.1.99"), netip.MustParseAddr("fd00:10:1::99")}
	}
	return [2]netip.Addr{w.Host(name).Addr4, w.Host(name).Addr6}
}

// count counts the datagrams with a payload until none has come for a while.
func (w *world) count(conn net.PacketConn, payload string) (n int) {
	w.t.Helper()
	b := make([]byte, 2048)
	for {
		w.must(conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)))
		size, _, err := conn.ReadFrom(b)
		if err != nil {
			return n
		}
		if string(b[:size]) == payload {
			n++
		}
	}
}

// With rp_filter=1 the stack accepts a source by each of several next hops, and looks up routes without the rules for a
// device's input, which the program cannot: pods then stay on the stack.
func TestReversePathFilters(t *testing.T) {
	w := newWorld(t, lab.Shape{TwoNICs: true}, "--pod-devices=auto")
	w.must(w.agents["node-a"].Start())
	w.awaitPods("node-a", "a1", "a2", "a3")
	w.setRPFilter("1")
	w.awaitFilters(nil)
	all := func(filters ...string) map[string][]string {
		return map[string][]string{"a1": filters, "a2": filters, "a3": filters}
	}
	w.run("node-a", "ip", "route", "add", "10.10.2.0/24", "nexthop", "via", "192.168.100.254", "dev", "eth0", "nexthop", "via", "192.168.101.254", "dev", "eth1")
	several := "rp_filter=1 and several next hops to 10.10.2.0/24 of "
	w.awaitFilters(all(several+"eth0", several+"eth1"))
	for _, second := range []bool{false, true} {
		conn, err := w.Host("a1").ListenPacket("udp", "[::]:9000")
		w.must(err)
		w.send(frame{host: "fabric", from: w.Host("b1").Addr4, to: w.Host("a1").Addr4, second: second, port: w.unusedPort()}, "several")
		if w.count(conn, "several") != 1 {
			t.Errorf("second device %t: a frame by one of several next hops did not arrive", second)
		}
		conn.Close()
	}
	w.setRPFilter("2")
	w.awaitFilters(nil)
	w.run("node-a", "ip", "route", "del", "10.10.2.0/24")
	w.setRPFilter("1")
	w.run("node-a", "ip", "rule", "add", "iif", "eth0", "lookup", "main")
	rule := "a routing rule for input by eth0, and rp_filter=1 of "
	w.awaitFilters(all(rule+"eth0", rule+"eth1"))
	w.run("node-a", "ip", "rule", "del", "iif", "eth0", "lookup", "main")
	w.awaitFilters(nil)
}
