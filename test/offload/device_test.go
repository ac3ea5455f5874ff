// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Networks of the client behind devices that are not veth, each with the same addresses as those of a link.
const (
	networkVLAN     = 5
	networkVXLAN    = 6
	networkExternal = 7
	networkTun      = 13
)

// TestDevices is about other kinds of devices: clients behind a VLAN, behind VXLAN, IPIP and GRE, whose key is the
// device's or the route's, behind a device without MAC addresses, and behind one of a VRF; and a server behind a
// bridge.
func TestDevices(t *testing.T) {
	w := newLab(t, "--offload-devices=c0,c0.5,vx6,vx7,vx8,v0,v1,br0,red0,tun9,ti*,gt*")
	w.bridge()
	w.addServer()
	w.sysctl("server", "ipv4/conf/all/arp_notify=1", "ipv6/conf/all/ndisc_notify=1", "ipv6/conf/eth0/ndisc_notify=1", "ipv6/conf/eth1/ndisc_notify=1")
	hasVLAN := w.vlan()
	w.vxlan()
	w.external()
	w.tun()
	w.tenants()
	hasVRF := w.vrf()
	has := map[string]bool{}
	for _, n := range tunnels {
		has[n.name] = n.connect(w)
	}
	w.start()
	for name, from := range map[string]int{"VLAN": networkVLAN, "VXLAN": networkVXLAN, "VXLAN, external": networkExternal, "tun": networkTun} {
		t.Run(name, func(t *testing.T) {
			if from == networkVLAN && !hasVLAN {
				t.Skip("the kernel has no VLAN devices (CONFIG_VLAN_8021Q)")
			}
			t.Parallel()
			w := w.in(t)
			for _, f := range families {
				w.connections(from, both, f)
				w.datagrams(from, plain, f)
			}
		})
	}
	w.inTunnels(has)
	t.Run("VRF", func(t *testing.T) {
		if !hasVRF {
			t.Skip("the kernel has no VRF devices (CONFIG_NET_VRF)")
		}
		w.in(t).inVRF()
	})
	t.Run("a server moves to another port of the bridge", func(t *testing.T) { w.in(t).movesPort() })
	t.Run("two tenants with the same addresses", func(t *testing.T) { w.in(t).sameAddresses() })
	w.wantNoneInvalid()
}

// route has the client use a device for packets from its address in a network.
func (w *world) route(device string, network int) {
	w.t.Helper()
	for f, option := range []string{"-4", "-6"} {
		w.run("client", "ip", option, "rule", "add", "from", family(f).address(network, 2).String(), "table", fmt.Sprint(network))
		w.run("client", "ip", option, "route", "add", "default", "via", family(f).address(network, 1).String(), "dev", device, "table", fmt.Sprint(network))
	}
}

// addresses gives both ends of a client's device their addresses.
func (w *world) addresses(atRouter, atClient string, network int) {
	w.t.Helper()
	for part, device := range map[string]string{"router": atRouter, "client": atClient} {
		n := map[string]int{"router": 1, "client": 2}[part]
		w.ip(part, append(each(func(f family) string {
			return fmt.Sprintf("addr add %s dev %s nodad", netip.PrefixFrom(f.address(network, n), f.prefix(network).Bits()), device)
		}), "link set "+device+" up")...)
	}
	w.route(atClient, network)
}

// vlan reports whether the kernel has VLANs.
func (w *world) vlan() bool {
	w.t.Helper()
	err := w.host("router").Do(func() error {
		parent, err := netlink.LinkByName("c0")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = "c0.5", parent.Attrs().Index
		return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attrs, VlanId: 5, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false
	}
	w.must(err)
	w.ip("client", "link add link eth0 name eth0.5 type vlan id 5")
	w.addresses("c0.5", "eth0.5", networkVLAN)
	return true
}

// vxlan connects client and router by devices with a key of their own.
func (w *world) vxlan() {
	w.t.Helper()
	a, b := family(0).address(networkClient, 1), family(0).address(networkClient, 2)
	w.ip("router", fmt.Sprintf("link add vx6 type vxlan id 6 local %s remote %s dstport 4789 dev c0", a, b))
	w.ip("client", fmt.Sprintf("link add vx6 type vxlan id 6 local %s remote %s dstport 4789 dev eth0", b, a))
	w.addresses("vx6", "vx6", networkVXLAN)
}

// external gives the router a device whose routes have the key and the remote end. Its neighbours are permanent: IPv6
// sends no solicitations by such a device.
func (w *world) external() {
	w.t.Helper()
	const atRouter, atClient = "02:00:00:00:07:01", "02:00:00:00:07:02"
	a, b := family(0).address(networkClient, 1), family(0).address(networkClient, 2)
	w.ip("router", "link add vx7 address "+atRouter+" mtu 1450 type vxlan external dstport 4790")
	w.ip("client", fmt.Sprintf("link add vx7 address %s type vxlan id 7 local %s remote %s dstport 4790 dev eth0", atClient, b, a))
	w.addresses("vx7", "vx7", networkExternal)
	w.ip("router", each(func(f family) string {
		return fmt.Sprintf("route add %s encap ip id 7 dst %s dev vx7", netip.PrefixFrom(f.address(networkExternal, 2), f.address(1, 1).BitLen()), b)
	})...)
	w.ip("router", each(func(f family) string {
		return fmt.Sprintf("neigh add %s lladdr %s dev vx7", f.address(networkExternal, 2), atClient)
	})...)
	w.ip("client", each(func(f family) string {
		return fmt.Sprintf("neigh add %s lladdr %s dev vx7", f.address(networkExternal, 1), atRouter)
	})...)
}

// tun connects client and router by devices whose packets begin with the IP header.
func (w *world) tun() {
	w.t.Helper()
	ends := map[string]*os.File{}
	for _, part := range []string{"router", "client"} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "tun9"
		device := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, NonPersist: true, Queues: 1}
		w.must(w.host(part).Do(func() error { return netlink.LinkAdd(device) }))
		ends[part] = device.Fds[0]
		w.t.Cleanup(func() { device.Fds[0].Close() })
	}
	go carry(ends["router"], ends["client"])
	go carry(ends["client"], ends["router"])
	w.addresses("tun9", "tun9", networkTun)
}

// carry moves packets until an end is closed.
func carry(from, to *os.File) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		to.Write(b[:n]) // the packet is lost if this fails
	}
}

// bridge connects the server to two ports of the router's bridge, with one MAC address. The second link is down.
func (w *world) bridge() {
	w.t.Helper()
	w.ip("router", "link add br0 type bridge", "link set br0 up")
	for i, port := range []string{"p0", "p1"} {
		netns := filepath.Base(w.host("server").NetNS)
		w.ip("router", fmt.Sprintf("link add %s index %d type veth peer name eth%d index %d netns %s", port, 150+i, i, 250+i, netns),
			"link set "+port+" master br0", "link set "+port+" up")
		w.ip("server", fmt.Sprintf("link set eth%d address 02:00:00:00:02:02", i))
	}
	w.ip("router", each(func(f family) string {
		return fmt.Sprintf("addr add %s dev br0 nodad", netip.PrefixFrom(f.address(networkServer, 1), f.prefix(networkServer).Bits()))
	})...)
	w.atPort(0)
}

// atPort has the server use one of its links.
func (w *world) atPort(port int) {
	w.t.Helper()
	w.ip("server", fmt.Sprintf("link set eth%d down", 1-port), fmt.Sprintf("link set eth%d up", port))
	w.ip("server", each(func(f family) string {
		return fmt.Sprintf("addr replace %s dev eth%d nodad", netip.PrefixFrom(f.address(networkServer, 2), f.prefix(networkServer).Bits()), port)
	})...)
	w.ip("server", each(func(f family) string {
		return fmt.Sprintf("route replace default via %s dev eth%d", f.address(networkServer, 1), port)
	})...)
}

// movesPort has the server appear at another port, and then with another MAC address.
func (w *world) movesPort() {
	w.t.Helper()
	var all []*flow
	for _, f := range families {
		all = append(all, w.open("udp", plain, f), w.open("udp", both, f), w.open("tcp", both, f))
	}
	w.settle(all...)
	for _, change := range []func(){
		func() { w.atPort(1) },
		func() { w.ip("server", "link set eth1 address 02:00:00:00:02:03") },
	} {
		change()
		for _, f := range all {
			f.continues(2 * soon * load)
		}
		w.settle(all...)
	}
}
