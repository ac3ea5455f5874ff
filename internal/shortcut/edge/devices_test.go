// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

func device(index int, name string, change func(*Device)) Device {
	d := Device{DeviceRoutes: node.DeviceRoutes{Device: netdev.Device{Index: index, Name: name, Kind: "device", Up: true, Ethernet: true}, Routed: true}}
	if change != nil {
		change(&d)
	}
	return d
}

var nodeDevices = []Device{
	device(1, "lo", func(d *Device) { d.Loopback, d.Ethernet, d.Addresses = true, false, nodeAddresses }),
	device(2, "eth0", func(d *Device) { d.DefaultRoute, d.Addresses = true, addrs("192.0.2.9", "192.0.2.1", "2001:db8::1") }),
	device(3, "eth1", func(d *Device) { d.Addresses = addrs("198.51.100.1") }),
	device(4, "eth2", func(d *Device) { d.Addresses = addrs("2001:db8::1") }),
	device(5, "eth3", func(d *Device) { d.DefaultRoute, d.Up = true, false }),
	device(6, "eth4", func(d *Device) { d.DefaultRoute, d.Enslaved = true, true }),
	device(7, "br0", func(d *Device) { d.Kind, d.Addresses = "bridge", addrs("192.0.2.1") }),
	device(8, "veth1234", func(d *Device) { d.Kind = "veth" }),
	device(9, "dummy0", func(d *Device) { d.Kind, d.Addresses = "dummy", addrs("192.0.2.1") }),
	device(10, "wg0", func(d *Device) { d.Kind, d.Ethernet, d.L3, d.DefaultRoute = "wireguard", false, true, true }),
	device(11, "idle", func(d *Device) { d.Routed = false }),
	device(12, "vxlan", func(d *Device) { d.Kind = "vxlan" }),
	device(13, "flannel.1", func(d *Device) {
		d.Kind, d.Backends, d.Addresses = "vxlan", true, addrs("10.10.1.0")
		d.Sources = addrs("2001:db8::7")
	}),
	device(14, "tunl0", func(d *Device) { d.Kind, d.Ethernet, d.L3, d.Backends = "ipip", false, true, true }),
	device(15, "down", func(d *Device) { d.Backends, d.Up = true, false }),
	device(16, "port", func(d *Device) { d.Backends, d.Enslaved = true, true }),
	device(17, "ppp0", func(d *Device) { d.Kind, d.Ethernet, d.DefaultRoute = "ppp", false, true }),
}

// Clients are behind devices with a default route or an address of the Node; not behind pods' devices,
// ports of bridges and bonds, and devices whose packets begin with a header other than Ethernet's or IP's. Devices
// that lead to backends come first, whatever the patterns.
func TestChoose(t *testing.T) {
	for _, c := range []struct{ patterns, want string }{
		{"", "flannel.1 tunl0 eth0 eth2 br0 wg0"},
		{"eth*", "flannel.1 tunl0 eth0 eth1 eth2 eth3 eth4"},
		{"eth[01],veth1234", "flannel.1 tunl0 eth0 eth1 veth1234"},
		{"lo,wg0,ppp0", "flannel.1 tunl0 wg0"},
		{"nothing", "flannel.1 tunl0"},
	} {
		var names, patterns []string
		if c.patterns != "" {
			patterns = strings.Split(c.patterns, ",")
		}
		for _, d := range choose(nodeDevices, patterns, nodeAddresses, nil) {
			names = append(names, d.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("--devices=%s chooses %q, want %q", c.patterns, got, c.want)
		}
	}
	if got := strings.Join(unmatched(nodeDevices, []string{"eth*", "nothing", "lo"}), " "); got != "nothing lo" {
		t.Errorf("no device for %q, want nothing and lo", got)
	}
}

// A packet in the node's name has the Node's address if the device has that, else the device's own, else
// the Node's anyway.
func TestOwnAddresses(t *testing.T) {
	got := ownAddresses(nodeDevices, choose(nodeDevices, nil, nodeAddresses, nil), nodeAddresses)
	for index, want := range map[uint32][2]string{
		2:  {"192.0.2.1", "2001:db8::1"},
		3:  {"198.51.100.1", "2001:db8::1"},
		8:  {"192.0.2.1", "2001:db8::1"},
		12: {"192.0.2.1", "2001:db8::1"},
		13: {"10.10.1.0", "2001:db8::7"}, // its own, and that of the routes there
	} {
		for i, a := range []bpf.Address{got[index].Source4, got[index].Source6} {
			if a.Addr() != netip.MustParseAddr(want[i]) {
				t.Errorf("device %d sends as %s, want %s", index, a.Addr(), want[i])
			}
		}
		// Other nodes know this one by the addresses of its Node, also behind an overlay's device.
		for i, a := range []bpf.Address{got[index].Outer4, got[index].Outer6} {
			if a.Addr() != nodeAddresses[i] {
				t.Errorf("outer headers of device %d are from %s, want %s", index, a.Addr(), nodeAddresses[i])
			}
		}
	}
	for _, index := range []uint32{1, 11} { // loopback, and a device without routes
		if _, ok := got[index]; ok {
			t.Errorf("device %d has an address to send with", index)
		}
	}
	// Frames to the node are recognised by the device's MAC address.
	mac := device(3, "eth1", func(d *Device) { d.Address = "\x02\x00\x00\x00\x00\x07" })
	if got := ownAddresses([]Device{mac}, []Device{mac}, nil)[3].Mac; got != mac.MAC() {
		t.Errorf("frames for eth1 have %x, want %x", got, mac.MAC())
	}
	// The address of a tunnel cannot be in a frame.
	tunnel := device(3, "tunl0", func(d *Device) { d.Address, d.Ethernet, d.Routed = "\xc0\xa8\x65\x01", false, true })
	if got := ownAddresses([]Device{tunnel}, nil, nodeAddresses)[3].Mac; got != [6]byte{} {
		t.Errorf("frames for a tunnel have %x, want none", got)
	}
	// Without a Node there is only an address of one family.
	alone := ownAddresses(nodeDevices[2:3], nil, nil)[3]
	if source4 := bpf.Address(alone.Source4); source4.Addr() != netip.MustParseAddr("198.51.100.1") || alone.Source6 != (bpf.EdgeDevice{}).Source6 {
		t.Errorf("without a Node eth1 sends as %v", alone)
	}
	if alone.Outer4 != alone.Source4 || alone.Outer6 != alone.Source6 {
		t.Errorf("without a Node outer headers of eth1 are from %v", alone)
	}
}

// The pods of a node are behind devices with direct routes to them; those of other nodes behind gateways. A
// device of clients is not one of pods.
func TestDevicesOfPods(t *testing.T) {
	on := func(texts ...string) func(*Device) {
		return func(d *Device) { d.Kind, d.Direct = "veth", prefixes(texts...) }
	}
	devices := append(nodeDevices[:4:4],
		device(20, "a", on("10.1.1.1/32", "fd00::1/128")),
		device(21, "b", on("10.1.1.2/32")),
		device(22, "down", func(d *Device) { on("10.1.1.3/32")(d); d.Up = false }),
		device(23, "cni0", on("10.1.2.0/24", "fd00:2::/64")))
	devices[1].Direct = prefixes("192.0.2.0/24", "10.1.0.0/16")
	for networks, want := range map[string]string{
		"":                         "",
		"10.1.1.1/32":              "a",
		"fd00::1/128 10.1.1.2/32":  "a b",
		"10.1.1.3/32":              "",
		"10.1.1.9/32 192.0.2.7/32": "",
		"10.1.2.77/32":             "cni0",
		"10.1.1.0/24":              "a b",
		"10.1.0.0/16":              "a b cni0",
		"10.1.2.128/25":            "cni0",
	} {
		all := slices.Clone(devices)
		choosePods(all, prefixes(strings.Fields(networks)...))
		var names []string
		chosen := choose(all, nil, nodeAddresses, nil)
		for index, own := range ownAddresses(all, chosen, nodeAddresses) {
			if own.Pods != 0 {
				names = append(names, all[slices.IndexFunc(all, func(d Device) bool { return d.Index == int(index) })].Name)
			}
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("pods of %q are behind %q, want %q", networks, got, want)
		}
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// The condition of a device that cannot be served names what is behind it.
func TestConditionsNameWhoIsBehindADevice(t *testing.T) {
	w := newWorld(t, Config{Mode: TC}, hardware, device(3, "cali1", func(d *Device) {
		d.Kind, d.Direct = "veth", []netip.Prefix{netip.MustParsePrefix("10.10.1.11/32")}
	}))
	w.SetPods([]netip.Prefix{netip.MustParsePrefix("10.10.1.11/32")})
	w.kernel.tcError = errors.New("no room")
	w.Start()
	w.want("cali1 none", "eth0 none",
		"! DeviceNotServed: cali1: pods behind device cali1 may not reach Services at the node's own addresses: no room",
		"! DeviceNotServed: eth0: clients behind device eth0 are not served: no room")
}
