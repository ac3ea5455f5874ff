// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/shortcut/offload/selftest"
)

// readdress moves the router's addresses of the server's network to another device.
func (r *rig) readdress(device string) {
	r.Helper()
	r.in(r.Router, func() error {
		server := byName(selftest.ServerDevice)
		all, err := netlink.AddrList(server, unix.AF_UNSPEC)
		if err != nil {
			return err
		}
		var addresses []netip.Prefix
		for _, a := range all {
			address, _ := netip.AddrFromSlice(a.IP)
			if bits, _ := a.Mask.Size(); !address.Unmap().IsLinkLocalUnicast() {
				addresses = append(addresses, netip.PrefixFrom(address.Unmap(), bits))
				if err := netlink.AddrDel(server, &a); err != nil {
					return err
				}
			}
		}
		return r.Address(device, addresses)
	})
}

// The server is behind a bridge. Its MAC address changes, and then moves to another port.
func TestBridge(t *testing.T) {
	r := newRig(t)
	r.in(r.Router, func() error {
		// Otherwise routes of IPv6 come with the devices, for which flows return to the stack, too.
		for _, of := range []netdev.Sysctl{"all", "default"} {
			r.IPv6 = false
			if err := ("ipv6/conf/" + of + "/disable_ipv6").Set(netdev.SysctlRoot, "1"); err != nil {
				return err
			}
		}
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		return netlink.LinkSetMaster(byName(selftest.ServerDevice), byName("br0"))
	})
	r.readdress("br0")
	r.start(Config{})
	f := r.open(selftest.Kind{Network: "tcp", Translation: selftest.Both})
	before := r.bridged()
	must(t, f.Exchange(10))
	if n := r.bridged() - before; n > 3 { // ARP
		t.Errorf("the bridge forwarded %d packets while a flow had 20, which should go to its port", n)
	}
	r.otherMAC(f)
	r.otherPort(f)
	replaced := r.table.Status().Replaced
	delete(replaced, "start")
	delete(replaced, "device other")
	if replaced["a next hop"] < 2 || len(replaced) > 1 {
		t.Errorf("flows returned to the stack because of %v", replaced)
	}
}

// bridged is the number of packets that the stack has given to the bridge.
func (r *rig) bridged() (packets uint64) {
	r.in(r.Router, func() error {
		packets = byName("br0").Attrs().Statistics.TxPackets
		return nil
	})
	return packets
}

// otherPort: the server's MAC address, with its addresses, moves to another port of the bridge.
func (r *rig) otherPort(f *selftest.Flow) {
	r.Helper()
	r.in(r.Router, func() error {
		other := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: "eth1", PeerNamespace: netlink.NsFd(r.Server.FD())}
		if err := netlink.LinkAdd(other); err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(byName("other"), byName("br0")); err != nil {
			return err
		}
		return netlink.LinkSetUp(byName("other"))
	})
	_, err := r.table.Apply(Config{Devices: append([]string{"other"}, bothDevices...)})
	must(r.T, err)
	r.taken(f)
	r.in(r.Server, moveServer)
	r.announce()
	r.soon(f)
	r.taken(f)
}

// moveServer has eth1 take over MAC address, addresses and routes of eth0.
func moveServer() error {
	old, other := byName(selftest.HostDevice), byName("eth1")
	routes, err := netlink.RouteListFiltered(unix.AF_UNSPEC, &netlink.Route{LinkIndex: old.Attrs().Index, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	addresses, err := netlink.AddrList(old, unix.AF_UNSPEC)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return netlink.LinkSetHardwareAddr(old, net.HardwareAddr{2, 0, 0, 0, 0, 7}) },
		func() error { return netlink.LinkSetHardwareAddr(other, old.Attrs().HardwareAddr) },
		func() error { return netlink.LinkSetUp(other) },
		func() error { return moveAddresses(addresses, old, other) },
		func() error { return selftest.AwaitUp("eth1") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	for _, r := range routes {
		if r.Gw != nil {
			if err := netlink.RouteReplace(&netlink.Route{Dst: r.Dst, Gw: r.Gw, LinkIndex: other.Attrs().Index}); err != nil {
				return err
			}
		}
	}
	return nil
}

func moveAddresses(all []netlink.Addr, old, other netlink.Link) error {
	for _, a := range all {
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		if err := netlink.AddrDel(old, &netlink.Addr{IPNet: a.IPNet}); err != nil {
			return err
		}
		if err := netlink.AddrAdd(other, &netlink.Addr{IPNet: a.IPNet, Flags: unix.IFA_F_NODAD}); err != nil {
			return err
		}
	}
	return nil
}

// Both devices of the router belong to a VRF.
func TestVRF(t *testing.T) {
	r := newRig(t)
	r.in(r.Router, func() error {
		vrf := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "vrf0"}, Table: 100}
		if err := netlink.LinkAdd(vrf); err != nil {
			return err
		}
		for _, d := range bothDevices {
			if err := netlink.LinkSetMaster(byName(d), byName("vrf0")); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(byName("vrf0"))
	})
	r.start(Config{})
	for _, k := range r.Kinds(selftest.Plain, selftest.Both) {
		if k.IPv6 {
			continue // the kernel deletes the addresses of a device that it enslaves
		}
		f := r.open(k)
		if k.Network == "tcp" {
			must(t, f.Stream(1<<20))
			must(t, f.Finish())
		}
	}
}

// Router and server are connected by a GRE tunnel with Ethernet frames.
func TestGRETap(t *testing.T) {
	r := newRig(t)
	inner := []netip.Prefix{netip.MustParsePrefix("10.9.0.254/24"), netip.MustParsePrefix("2001:db8:9::fe/64")}
	tunnel := func(local, remote netip.Addr, addresses []netip.Prefix) func() error {
		return func() error {
			device := &netlink.Gretap{LinkAttrs: netlink.LinkAttrs{Name: "tap0"}, Local: local.AsSlice(), Remote: remote.AsSlice()}
			if err := netlink.LinkAdd(device); err != nil {
				return err
			}
			return r.Address("tap0", addresses)
		}
	}
	router, server := netip.MustParseAddr("198.51.100.254"), selftest.ServerAddresses[0].Addr()
	r.in(r.Router, tunnel(router, server, inner))
	r.in(r.Server, tunnel(server, router, []netip.Prefix{netip.MustParsePrefix("10.9.0.1/24"), netip.MustParsePrefix("2001:db8:9::1/64")}))
	// The client's packets to the server, and back, take the tunnel.
	r.in(r.Router, func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: host(netip.MustParseAddr("203.0.113.9")), Gw: net.IPv4(10, 9, 0, 1)})
	})
	r.in(r.Server, func() error {
		if err := netdev.Sysctl("ipv4/conf/all/rp_filter").Set(netdev.SysctlRoot, "0"); err != nil {
			return err
		}
		if err := netlink.AddrAdd(byName("tap0"), &netlink.Addr{IPNet: host(netip.MustParseAddr("203.0.113.9"))}); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: host(selftest.ClientAddresses[0].Addr()), Gw: net.IPv4(10, 9, 0, 254)})
	})
	must(t, r.ServeAt(netip.MustParseAddrPort("203.0.113.9:7000")))
	r.start(Config{Devices: append([]string{"tap0"}, bothDevices...)})
	for _, network := range []string{"tcp", "udp"} {
		f, err := r.OpenTo(r.ctx, network, netip.MustParseAddrPort("203.0.113.9:7000"))
		must(t, err)
		r.Cleanup(f.Close)
		// The tunnel's own packets are of the router, which does not forward them.
		r.taken(f)
		if network == "tcp" {
			must(t, f.Stream(1<<20))
			must(t, f.Finish())
		}
	}
}
