// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// create creates a node's overlay device.
func (o *overlayPlan) create(lab string, nl *netlink.Handle) error {
	switch o.network {
	case NetworkWireGuard:
		return o.createWireGuard(lab, nl)
	case NetworkIPIP:
		return o.createIPIP(nl)
	}
	return o.createVXLAN(nl)
}

// attributes are those of the device.
func (o *overlayPlan) attributes() netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = o.network.Device(), o.network.MTU()
	return attrs
}

// createIPIP creates a device without a remote end: a packet's outer destination is the gateway of its route.
func (o *overlayPlan) createIPIP(nl *netlink.Handle) error {
	device := &netlink.Iptun{LinkAttrs: o.attributes(), Local: o.local.AsSlice(), PMtuDisc: 1}
	if err := nl.LinkAdd(device); err != nil {
		return fmt.Errorf("creating device %s (needs CONFIG_NET_IPIP): %w", device.Name, err)
	}
	return setUp(nl, device.Name)
}

// createVXLAN creates a device over the node's uplink, with an entry for each other node.
func (o *overlayPlan) createVXLAN(nl *netlink.Handle) error {
	uplink, err := nl.LinkByName(device0)
	if err != nil {
		return fmt.Errorf("device %s: %w", device0, err)
	}
	attrs := o.attributes()
	attrs.HardwareAddr = o.mac
	device := &netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: overlayID, Port: overlayPort, SrcAddr: o.local.AsSlice(),
		VtepDevIndex: uplink.Attrs().Index, Learning: false,
	}
	if err := nl.LinkAdd(device); err != nil {
		return fmt.Errorf("creating device %s (needs CONFIG_VXLAN): %w", OverlayDevice, err)
	}
	if err := setUp(nl, OverlayDevice); err != nil {
		return err
	}
	link, err := nl.LinkByName(OverlayDevice)
	if err != nil {
		return err
	}
	for _, p := range o.peers {
		if err := p.add(nl, link.Attrs().Index); err != nil {
			return fmt.Errorf("entry of node %s: %w", p.node, err)
		}
	}
	return nil
}

// add adds the entry of another node: its device's MAC address, and the node's own address.
func (p overlayPeer) add(nl *netlink.Handle, device int) error {
	entries := []*netlink.Neigh{{
		LinkIndex: device, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: p.node.AsSlice(), HardwareAddr: p.mac,
	}}
	for _, addr := range []netip.Addr{p.addr4, p.addr6} {
		entries = append(entries, &netlink.Neigh{
			LinkIndex: device, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: p.mac,
		})
	}
	for _, e := range entries {
		if err := nl.NeighSet(e); err != nil {
			return fmt.Errorf("entry %s: %w", e, err)
		}
	}
	return nil
}
