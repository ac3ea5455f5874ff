// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/xdpdispatch"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/netdev/netdevtest"
)

var (
	hardware = device(2, "eth0", func(d *Device) { d.DefaultRoute = true })
	veth     = device(2, "eth0", func(d *Device) { d.DefaultRoute, d.Kind = true, "veth" })
	tagged   = device(2, "eth0", func(d *Device) { d.DefaultRoute, d.TakesTags = true, true })
	bridge   = device(2, "br0", func(d *Device) { d.DefaultRoute, d.Kind = true, "bridge" })
)

var errNoDriver = fmt.Errorf("its driver refuses XDP (%w): %w", unix.EOPNOTSUPP, ebpf.ErrNotSupported)

// Each mode at each kind of device: how the edge is attached, and whether status reports that this is not
// as requested.
func TestModes(t *testing.T) {
	other := &xdpdispatch.OtherXDPError{ProgramID: 77, Name: "filter"}
	for _, c := range []struct {
		name     string
		config   Config
		device   Device
		refuse   error
		want     []string
		attached string
	}{
		{"auto, hardware", Config{Mode: Auto}, hardware, nil, []string{"eth0 xdp"}, "2 egress ingress xdp"},
		{"auto, no native XDP", Config{Mode: Auto}, hardware, errNoDriver, []string{"eth0 tc"}, "2 egress ingress"},
		{"auto, another XDP program", Config{Mode: Auto}, hardware, other, []string{"eth0 tc"}, "2 egress ingress"},
		{"auto, veth", Config{Mode: Auto}, veth, nil, []string{"eth0 tc"}, "2 egress ingress"},
		{"xdp, veth", Config{Mode: XDP}, veth, nil, []string{"eth0 xdp"}, "2 egress ingress xdp"},
		{"auto, VLAN tags are taken", Config{Mode: Auto}, tagged, nil, []string{"eth0 tc"}, "2 egress ingress"},
		{"xdp, VLAN tags are taken", Config{Mode: XDP}, tagged, nil,
			[]string{"eth0 tc", "! DeviceModeRefused: eth0: device eth0 is served by tc and not by what --edge-mode=xdp asks for: there are VLAN devices above"}, "2 egress ingress"},
		{"xdp, bridge", Config{Mode: XDP}, bridge, nil, []string{"br0 tc"}, "2 egress ingress"},
		{"xdp, no native XDP", Config{Mode: XDP}, hardware, errNoDriver,
			[]string{"eth0 tc", "! DeviceModeRefused: eth0: device eth0 is served by tc and not by what --edge-mode=xdp asks for: no native XDP"}, "2 egress ingress"},
		{"xdp, another XDP program", Config{Mode: XDP}, hardware, other,
			[]string{"eth0 tc", "! DeviceModeRefused: eth0: device eth0 is served by tc and not by what --edge-mode=xdp asks for: no XDP: another XDP program is attached to the device (filter, program 77)"}, "2 egress ingress"},
		{"tc", Config{Mode: TC}, hardware, nil, []string{"eth0 tc"}, "2 egress ingress"},
		{"xdp, no dispatchers", Config{Mode: XDP}, hardware, &bpf.ExclusiveXDPError{},
			[]string{"eth0 xdp", "! DeviceModeRefused: eth0: device eth0 is served by xdp, though not as --edge-xdp-dispatcher asks for: Beeline is alone there"}, "2 egress ingress xdp"},
		{"generic XDP", Config{Mode: Auto, Generic: true}, veth, nil, []string{"eth0 generic xdp"}, "2 egress ingress xdp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.config, c.device)
			w.kernel.refuse[2] = c.refuse
			w.Start()
			s := w.want(c.want...)
			if got := w.kernel.attachedTo(); !slices.Equal(got, []string{c.attached}) {
				t.Errorf("attached: %v, want %s", got, c.attached)
			}
			if len(s.Devices) != 1 || s.Devices[0].Why == "" {
				t.Errorf("no reason given: %+v", s.Devices)
			}
		})
	}
}

// XDP is retried if another program was in the way, but not if the driver does not support it.
func TestXDPIsTriedAgain(t *testing.T) {
	for _, c := range []struct {
		refuse error
		want   string
	}{{&xdpdispatch.OtherXDPError{ProgramID: 77}, "eth0 xdp"}, {errNoDriver, "eth0 tc"}} {
		w := newWorld(t, Config{Mode: Auto}, hardware)
		w.kernel.refuse[2] = c.refuse
		w.Start()
		w.want("eth0 tc")
		w.kernel.refuse = nil
		if again := w.failing(); again != (c.want == "eth0 xdp") {
			t.Errorf("after %v it is retried: %v", c.refuse, again)
		}
		w.rescan()
		w.want(c.want)
	}
}

// A device at which nothing can be attached is reported, and retried.
func TestDeviceThatCannotBeServed(t *testing.T) {
	w := newWorld(t, Config{Mode: Auto}, hardware)
	w.kernel.tcError = errors.New("no such luck")
	w.Start()
	w.want("eth0 none", "! DeviceNotServed: eth0: clients behind device eth0 are not served: no such luck")
	w.kernel.tcError = nil
	w.rescan()
	w.want("eth0 xdp")
}

// Devices are added, removed, renamed and enslaved; unchanged ones are left alone.
func TestDevicesThatChange(t *testing.T) {
	w := newWorld(t, Config{Mode: Auto}, hardware)
	w.rescan()
	w.want() // the tables are not complete yet
	w.Start()
	second := device(3, "eth1", func(d *Device) { d.Addresses = addrs("192.0.2.1") })
	w.devices = []Device{hardware, second}
	w.rescan()
	w.want("eth0 xdp", "eth1 xdp")
	if w.kernel.attach != 2 {
		t.Errorf("attached %d times to two devices", w.kernel.attach)
	}
	renamed := second
	renamed.Name = "wan"
	w.devices = []Device{hardware, renamed}
	w.rescan()
	w.want("eth0 xdp", "wan xdp")
	enslaved := renamed
	enslaved.Enslaved = true
	w.devices = []Device{hardware, enslaved}
	w.rescan()
	w.want("eth0 xdp")
	w.devices = nil
	w.rescan()
	w.want()
	if left := w.kernel.attachedTo(); len(left) > 0 || len(w.kernel.table) > 0 {
		t.Errorf("left: %v, %v", left, w.kernel.table)
	}
}

// A device that --devices names and that does not exist yet is reported.
func TestDeviceThatIsNotThere(t *testing.T) {
	w := newWorld(t, Config{Mode: Auto, Devices: []string{"wan*"}}, hardware)
	w.Start()
	w.want("! DeviceNotFound: wan*: --devices wan*: no such device: correct --devices, or create the device (present: eth0)")
	w.devices = append(w.devices, device(3, "wan1", nil))
	w.rescan()
	w.want("wan1 xdp")
}

// A device that exists and cannot be served is not reported as missing.
func TestNamedDeviceThatCannotBeServed(t *testing.T) {
	gre := device(3, "gre0", func(d *Device) { d.Ethernet = false })
	lo := device(1, "lo", func(d *Device) { d.Ethernet, d.Loopback = false, true })
	w := newWorld(t, Config{Mode: TC, Devices: []string{"eth0", "gre*", "lo"}}, lo, hardware, gre)
	w.Start()
	w.want("eth0 tc", "! DeviceUnsuitable: gre*: --devices gre*: packets of gre0 begin neither with an Ethernet header nor with an IP header", "! DeviceUnsuitable: lo: --devices lo: lo is the loopback device")
}

// Status reports an edge without devices for clients, while Services have backends.
func TestNoDeviceWithClients(t *testing.T) {
	backends := device(3, "eth1", func(d *Device) { d.DefaultRoute, d.Addresses, d.Backends = false, nil, true })
	condition := "! NoDeviceWithClients: external clients reach no Service: no device that can be served has a default route or an address of this Node: " +
		"set --devices to those that clients are behind (present: eth1)"
	for _, c := range []struct {
		name     string
		config   Config
		families []service.Family
		devices  []Device
		want     []string
	}{
		{"no default route", Config{Mode: TC}, []service.Family{service.IPv4}, []Device{backends}, []string{"eth1 tc", condition}},
		{"no backends", Config{Mode: TC}, nil, []Device{backends}, []string{"eth1 tc"}},
		{"default route", Config{Mode: TC}, []service.Family{service.IPv4}, []Device{hardware, backends}, []string{"eth0 tc", "eth1 tc"}},
		{"named", Config{Mode: TC, Devices: []string{"eth1"}}, []service.Family{service.IPv4}, []Device{backends}, []string{"eth1 tc"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.config, c.devices...)
			w.sysctls = netdevtest.Sysctls(t, "ipv4/ip_forward=1", "ipv4/conf/eth0/forwarding=1", "ipv4/conf/eth1/forwarding=1")
			w.Forward(c.families, nil)
			w.Start()
			w.want(c.want...)
		})
	}
}

// A problem that persists is one line of the log, however often devices are read; one that recurs is logged
// again.
func TestProblemIsLoggedOnce(t *testing.T) {
	w := newWorld(t, Config{Mode: TC, Devices: []string{"wan1"}}, hardware)
	var log strings.Builder
	w.config.Log = slog.New(slog.NewTextHandler(&log, nil))
	wan := device(3, "wan1", nil)
	w.Start()
	for _, devices := range [][]Device{{hardware}, {hardware}, {hardware, wan}, {hardware}, {hardware}} {
		w.devices = devices
		w.rescan()
	}
	if n := strings.Count(log.String(), "no such device"); n != 2 {
		t.Errorf("logged %d times, want 2:\n%s", n, &log)
	}
	if !strings.Contains(log.String(), `msg="a device is not served any more" device=wan1`) {
		t.Errorf("the device that is left is not named:\n%s", &log)
	}
}

// What another program detaches is attached again, and what an earlier agent left at other devices is
// detached.
func TestRepair(t *testing.T) {
	w := newWorld(t, Config{Mode: Auto}, hardware)
	w.kernel.hooks[9] = []bpf.EdgeHook{bpf.EdgeEgress, bpf.EdgeIngress}
	w.Start()
	if got := w.kernel.attachedTo(); !slices.Equal(got, []string{"2 egress ingress xdp"}) {
		t.Errorf("attached: %v", got)
	}
	if repaired := w.Repair(); len(repaired) > 0 {
		t.Errorf("repaired %v of what was in order", repaired)
	}
	w.kernel.DetachEdge(2, bpf.EdgeXDP)
	delete(w.kernel.table, 2)
	if repaired := w.Repair(); !slices.Equal(repaired, []string{"xdp of device eth0"}) {
		t.Errorf("repaired %v", repaired)
	}
	if !slices.Contains(w.kernel.hooks[2], bpf.EdgeXDP) || len(w.kernel.table) != 1 {
		t.Errorf("attached %v, addresses of %v", w.kernel.hooks, w.kernel.table)
	}
}

// The edge is attached to the device of a pod when SetPods returns, because the caller then leaves the
// pod's packets to it.
func TestDeviceOfPodsIsServedAtOnce(t *testing.T) {
	const index = 7
	pod := device(index, "veth7", func(d *Device) {
		d.Kind, d.DefaultRoute, d.Addresses = "veth", false, nil
		d.Direct = prefixes("10.10.1.11/32")
	})
	w := newWorld(t, Config{Mode: TC}, hardware, pod)
	w.Start()
	w.SetPods(prefixes("10.10.1.11/32"))
	want := []string{"2 egress ingress", "7 egress ingress"}
	if got := w.kernel.attachedTo(); !slices.Equal(got, want) {
		t.Errorf("attached: %v, want %v", got, want)
	}
	if w.kernel.table[index].Pods != 1 {
		t.Errorf("the programs have %+v for the device, not that pods are behind it", w.kernel.table[index])
	}
}
