// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/conntracktest"
)

// An overlay is a world with eth0 and, while it exists, an overlay device that leads to 10.10.2.0/24.
type overlayWorld struct {
	*world
	remote []netip.Addr // backends of Services
}

const overlayIndex = 5

func newOverlayWorld(t *testing.T, c Config, kind string) *overlayWorld {
	o := &overlayWorld{}
	c.Destinations = &destinations{backends: func() []netip.Addr { return o.remote }}
	o.world = newWorld(t, c)
	overlay := device(overlayIndex, "flannel.1", func(d *Device) { d.Kind, d.Ethernet, d.L3 = kind, kind == "vxlan", kind == "ipip" })
	pods := netip.MustParsePrefix("10.10.2.0/24")
	o.Edge.read = func(backends []netip.Addr) ([]Device, error) {
		overlay.Backends = slices.ContainsFunc(backends, pods.Contains)
		return []Device{hardware, overlay}, nil
	}
	o.deviceTo = func(a netip.Addr) (int, error) {
		if pods.Contains(a) {
			return overlayIndex, nil
		}
		return 2, nil
	}
	return o
}

// roles returns the devices and what is behind them.
func (o *overlayWorld) roles() string {
	var all []string
	for _, d := range o.CompleteStatus(nil).Devices {
		all = append(all, fmt.Sprint(d.Name, " ", d.Mode, " ", d.Role))
	}
	return strings.Join(all, ", ")
}

func (o *overlayWorld) wantRoles(want string) {
	o.t.Helper()
	if got := o.roles(); got != want {
		o.t.Errorf("the edge is at %q, want %q", got, want)
	}
}

// The edge attaches to a device that leads to a backend before the backend is selected, and stays while a
// Service or a flow has the backend.
func TestDeviceThatLeadsToBackends(t *testing.T) {
	o := newOverlayWorld(t, Config{Mode: XDP}, "vxlan")
	o.Start()
	o.wantRoles("eth0 xdp clients")
	o.Reach(addrs("10.10.2.11"))
	o.wantRoles("eth0 xdp clients, flannel.1 tc backends")
	if c := Conditions(o.CompleteStatus(nil)); len(c) > 0 {
		t.Errorf("conditions of a device that has no XDP of its own: %v", c)
	}
	// It is a Service's.
	o.remote = addrs("10.10.2.11")
	o.gc()
	o.rescan()
	o.wantRoles("eth0 xdp clients, flannel.1 tc backends")
	// It is removed from the Service, and a flow continues.
	o.kernel.assured.Put(tcp, client, backend, [2]int{conntracktest.Both, conntracktest.Both}, [2]uint32{bpf.Now(), bpf.Now()})
	o.remote = nil
	o.gc() // it may have served until now
	o.gc()
	o.rescan()
	o.wantRoles("eth0 xdp clients, flannel.1 tc backends")
	// The flow is over.
	clear(o.kernel.assured)
	o.gc()
	o.rescan()
	o.wantRoles("eth0 xdp clients, flannel.1 tc flows") // clients may have used it until now
	o.gc()
	o.rescan()
	o.wantRoles("eth0 xdp clients")
}

// The flows of an earlier agent count, too.
func TestDeviceOfAnEarlierAgentsFlows(t *testing.T) {
	o := newOverlayWorld(t, Config{Mode: TC}, "vxlan")
	// One of the two conntrack entries may have been lost.
	o.kernel.assured.Put(tcp, client, backend, [2]int{conntracktest.Both, conntracktest.Lost}, [2]uint32{bpf.Now(), 0})
	o.Start()
	o.wantRoles("eth0 tc clients, flannel.1 tc backends")
}

// A flow to a backend of this node needs no device.
func TestBackendOfThisNodeLeadsNowhere(t *testing.T) {
	key := conntracktest.Tuple(unix.IPPROTO_TCP, client, conntracktest.Asked)
	if addr, ok := flowBackend(key, &bpf.ConntrackEntry{Flags: uint8(bpf.ConntrackLocal)}); ok {
		t.Errorf("it is at %s", addr)
	}
}

// R19: neither does the flow of a pod that is its own backend, by either entry: its device is one of pods,
// however long the flow continues.
func TestHairpinLeadsNowhere(t *testing.T) {
	const pod = "10.10.1.11"
	table := conntracktest.Table{}
	table.Put(tcp, pod+":40000", pod+":8080", [2]int{conntracktest.Both, conntracktest.Both}, [2]uint32{1, 1})
	if len(table) != 2 {
		t.Fatalf("%d entries, want 2", len(table))
	}
	for key, track := range table {
		if addr, ok := flowBackend(key, &track); ok {
			t.Errorf("by the entry of %v it is at %s, on another node", key, addr)
		}
	}
}

// A backend that is reached by a known device costs one route lookup, and no read of the devices.
func TestReachLooksOnce(t *testing.T) {
	o := newOverlayWorld(t, Config{Mode: TC}, "vxlan")
	looks, read := 0, o.Edge.read
	o.Edge.read = func(b []netip.Addr) ([]Device, error) { looks++; return read(b) }
	asked := 0
	route := o.deviceTo
	o.deviceTo = func(a netip.Addr) (int, error) { asked++; return route(a) }
	o.Start()
	for range 2 {
		o.Reach(addrs("10.10.2.11", "10.10.2.12", "10.10.2.13"))
	}
	if looks != 2 || asked != 1 {
		t.Errorf("the devices were read %d times after %d route lookups, want once at the start and once for three backends", looks, asked)
	}
	o.Reach(addrs("10.10.2.14"))
	if looks != 2 || asked != 2 {
		t.Errorf("a fourth backend: %d reads, %d lookups", looks, asked)
	}
	o.deviceTo = func(netip.Addr) (int, error) { return 0, errors.New("no way") }
	o.Reach(addrs("203.0.113.1"))
	if looks != 3 {
		t.Errorf("a backend without a route: %d reads", looks)
	}
}

// A device without MAC addresses is served by tc, even with --edge-mode=xdp. One whose packets begin with another
// header cannot be served; status names it and the reason.
func TestOverlayWithoutEthernet(t *testing.T) {
	o := newOverlayWorld(t, Config{Mode: XDP}, "ipip")
	o.Start()
	o.Reach(addrs("10.10.2.11"))
	o.want("eth0 xdp", "flannel.1 tc")
	o = newOverlayWorld(t, Config{Mode: Auto}, "gre")
	o.Start()
	o.Reach(addrs("10.10.2.11"))
	o.want("eth0 xdp", "flannel.1 none",
		"! DeviceNotServed: flannel.1: replies of backends behind device flannel.1 do not reach external clients: its packets begin neither with an Ethernet header nor with an IP header")
}
