// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/test/lab"
)

// The overlay's device is created after the agent starts, as by a CNI: clients reach backends behind it, also
// after it was deleted and created again, and the edge leaves it while the overlay's routes lead elsewhere.
func TestOverlayComesLater(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := newWorldOf(t, overlay, "--edge-mode="+mode)
		remake := w.removeOverlay()
		w.must(w.agent.Start())
		w.apply("web", objects(w.public("b1"))...)
		eth0 := "eth0 " + mode + " clients"
		for range 2 {
			// There is only the default route.
			w.wantDevices(eth0 + " and backends")
			w.must(w.agent.Host.Do(remake))
			w.wantDevices(eth0 + ", vxlan0 tc backends")
			for _, to := range addresses(w.Host("node-a"), nodePort) {
				w.wantServed("tcp", to, "b1")
				w.wantServed("udp", to, "b1")
			}
			w.removeOverlay()
		}
		w.must(w.agent.Host.Do(remake))
		w.wantDevices(eth0 + ", vxlan0 tc backends")
		routes := w.overlayRoutes()
		w.must(w.agent.Host.Do(func() error { return each(routes, netlink.RouteDel) }))
		w.wantDevices(eth0 + " and backends")
		w.must(w.agent.Host.Do(func() error { return each(routes, netlink.RouteAdd) }))
		w.wantDevices(eth0 + ", vxlan0 tc backends")
		w.wantServed("tcp", addresses(w.Host("node-a"), nodePort)[0], "b1")
	})
}

// removeOverlay deletes node-a's overlay device. Its result creates it again, in the node's network namespace.
func (w *world) removeOverlay() (remake func() error) {
	w.t.Helper()
	routes := w.overlayRoutes()
	var device netlink.Link
	var addresses []netlink.Addr
	var neighbours []netlink.Neigh
	w.must(w.agent.Host.Do(func() (err error) {
		if device, err = netlink.LinkByName(lab.OverlayDevice); err != nil {
			return err
		}
		if addresses, err = addressesOf(device); err != nil {
			return err
		}
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6, unix.AF_BRIDGE} {
			some, err := netlink.NeighList(device.Attrs().Index, family)
			if err != nil {
				return err
			}
			neighbours = append(neighbours, some...)
		}
		return netlink.LinkDel(device)
	}))
	return func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Index = lab.OverlayDevice, device.Attrs().MTU, device.Attrs().HardwareAddr, device.Attrs().Index
		old := device.(*netlink.Vxlan)
		made := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: old.VxlanId, Port: old.Port, SrcAddr: old.SrcAddr, VtepDevIndex: old.VtepDevIndex}
		if err := netlink.LinkAdd(made); err != nil {
			return err
		}
		for _, a := range addresses {
			if a.IP.IsGlobalUnicast() {
				if err := netlink.AddrAdd(made, &netlink.Addr{IPNet: a.IPNet, Flags: a.Flags & unix.IFA_F_NODAD}); err != nil {
					return err
				}
			}
		}
		if err := netlink.LinkSetUp(made); err != nil {
			return err
		}
		for _, n := range neighbours {
			if n.State&netlink.NUD_PERMANENT != 0 && !n.IP.IsMulticast() {
				if err := netlink.NeighSet(&n); err != nil {
					return err
				}
			}
		}
		return each(routes, netlink.RouteAdd)
	}
}

// overlayRoutes are the routes to other nodes' pods.
func (w *world) overlayRoutes() (routes []netlink.Route) {
	w.t.Helper()
	w.must(w.agent.Host.Do(func() error {
		device, err := netlink.LinkByName(lab.OverlayDevice)
		if err != nil {
			return err
		}
		all, err := netlink.RouteList(device, netlink.FAMILY_ALL)
		for _, r := range all {
			if r.Gw != nil {
				routes = append(routes, r)
			}
		}
		return err
	}))
	if len(routes) != 2 {
		w.t.Fatalf("routes of the overlay: %v", routes)
	}
	return routes
}

func each(routes []netlink.Route, do func(*netlink.Route) error) error {
	for i := range routes {
		if err := do(&routes[i]); err != nil {
			return err
		}
	}
	return nil
}

// A NIC that becomes a port of a bridge gives its addresses and routes to the bridge: the edge then serves at
// the bridge, by tc, and at the NIC again when it is released. A renamed NIC is served under its new name.
func TestNICBecomesPortOfABridge(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.apply("web", objects(w.public("a1", "b1"))...)
		wantServed := func() {
			t.Helper()
			for _, to := range addresses(w.Host("node-a"), nodePort) {
				w.wantServed("tcp", to, "a1", "b1")
				w.wantServed("udp", to, "a1", "b1")
			}
		}
		w.wantDevices("eth0 " + mode + " clients and backends")
		w.must(w.agent.Host.Do(func() error {
			nic, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.HardwareAddr = "br0", nic.Attrs().HardwareAddr
			bridge := &netlink.Bridge{LinkAttrs: attrs}
			if err := netlink.LinkAdd(bridge); err != nil {
				return err
			}
			if err := netlink.LinkSetUp(bridge); err != nil {
				return err
			}
			if err := netlink.LinkSetMaster(nic, bridge); err != nil {
				return err
			}
			return moveNetwork(nic, bridge)
		}))
		w.wantDevices("br0 tc clients and backends")
		wantServed()
		w.must(w.agent.Host.Do(func() error {
			nic, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			bridge, err := netlink.LinkByName("br0")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetNoMaster(nic); err != nil {
				return err
			}
			if err := moveNetwork(bridge, nic); err != nil {
				return err
			}
			if err := netlink.LinkDel(bridge); err != nil {
				return err
			}
			return netlink.LinkSetName(nic, "wan0")
		}))
		w.wantDevices("wan0 " + mode + " clients and backends")
		wantServed()
	})
}

// addressesOf lists the addresses of a device.
func addressesOf(device netlink.Link) ([]netlink.Addr, error) {
	return netdev.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(device, netlink.FAMILY_ALL) })
}

// moveNetwork moves one device's addresses and routes to another.
func moveNetwork(from, to netlink.Link) error {
	routes, err := netlink.RouteList(from, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	addresses, err := addressesOf(from)
	if err != nil {
		return err
	}
	for _, a := range addresses {
		if !a.IP.IsGlobalUnicast() {
			continue
		}
		// In this order: routes to pods name the address, and are deleted with it.
		if err := netlink.AddrAdd(to, &netlink.Addr{IPNet: a.IPNet, Flags: a.Flags & unix.IFA_F_NODAD}); err != nil {
			return err
		}
		if err := netlink.AddrDel(from, &netlink.Addr{IPNet: a.IPNet}); err != nil {
			return err
		}
	}
	for _, onLink := range []bool{true, false} { // routes through a gateway need the others
		for _, r := range routes {
			if r.Protocol == unix.RTPROT_KERNEL || onLink != (r.Gw == nil) {
				continue
			}
			// A device loses its routes with its last IPv4 address.
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			moved := netlink.Route{Dst: r.Dst, Gw: r.Gw, LinkIndex: to.Attrs().Index, Scope: r.Scope, Priority: r.Priority}
			if err := netlink.RouteReplace(&moved); err != nil {
				return err
			}
		}
	}
	return nil
}
