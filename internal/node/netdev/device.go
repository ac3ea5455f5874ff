// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Device is a network device of a network namespace. It is comparable.
type Device struct {
	Index int
	Name  string
	Kind  string // as `ip -details link` names it; "device" for hardware
	Group uint32 // its device group (ip link set group), by which rules may decide

	Up, Loopback, NoARP bool
	// Ethernet: frames begin with MAC addresses; frames to the node have MAC as destination. L3: packets begin with
	// the IP header.
	Ethernet, L3 bool
	// External: a tunnel in external mode.
	External bool

	// Address is its link-layer address, of a tunnel without Ethernet the local IP address.
	Address string
	// MTU is the maximum length of packets sent here, in octets from the IP header on.
	MTU int
	// Master is the index of its bridge, bond, team or VRF; 0 for none.
	Master int
	// Parent is the index of the device below, or of the other end of a pair. PeerElsewhere: that is in another
	// network namespace, for which this one has the ID PeerNamespace.
	Parent        int
	PeerElsewhere bool
	PeerNamespace int
	// XDP is the ID of its XDP program, 0 for none.
	XDP uint32
	// FiltersVLANs: it is a bridge that does.
	FiltersVLANs bool

	Netkit Netkit
}

// Netkit is what is known of a netkit device; zero for all others.
type Netkit struct {
	// Primary: programs can be attached to both ends here. The other end has no control over them.
	Primary bool
	L3      bool // no MAC addresses: those of its frames are zeros
	// Blackhole and PeerBlackhole: without a program, packets that are sent here are dropped, or those of the other
	// end.
	Blackhole, PeerBlackhole bool
}

// Devices returns the devices of this network namespace.
func Devices() ([]Device, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	all := make([]Device, len(links))
	for i, l := range links {
		all[i] = DeviceOf(l)
	}
	return all, nil
}

// DeviceOf returns the device of a message of the kernel.
func DeviceOf(l netlink.Link) Device {
	a := l.Attrs()
	d := Device{
		Index: a.Index, Name: a.Name, Kind: l.Type(), Group: a.Group,
		Up: a.RawFlags&unix.IFF_UP != 0, Loopback: a.RawFlags&unix.IFF_LOOPBACK != 0, NoARP: a.RawFlags&unix.IFF_NOARP != 0,
		Ethernet: a.EncapType == "ether", L3: slices.Contains(l3Types, a.EncapType), External: isExternal(l),
		Address: string(a.HardwareAddr), MTU: a.MTU, Master: a.MasterIndex,
		Parent: a.ParentIndex, PeerElsewhere: a.NetNsID >= 0, PeerNamespace: a.NetNsID,
	}
	if a.Xdp != nil && a.Xdp.Attached {
		d.XDP = a.Xdp.ProgId
	}
	if b, ok := l.(*netlink.Bridge); ok {
		d.FiltersVLANs = b.VlanFiltering != nil && *b.VlanFiltering
	}
	if k, ok := l.(*netlink.Netkit); ok {
		d.Netkit = Netkit{
			Primary: k.IsPrimary(), L3: k.Mode == netlink.NETKIT_MODE_L3,
			Blackhole: k.Policy != netlink.NETKIT_POLICY_FORWARD, PeerBlackhole: k.PeerPolicy != netlink.NETKIT_POLICY_FORWARD,
		}
	}
	return d
}

// MAC is the address of frames; zeros without Ethernet: the addresses of other devices cannot be in a frame.
func (d Device) MAC() (mac [6]byte) {
	if d.Ethernet {
		copy(mac[:], d.Address)
	}
	return mac
}

// IsBridge reports whether the device is a bridge.
func (d Device) IsBridge() bool { return d.Kind == "bridge" }

// l3Types are the types of devices whose packets have no link-layer header in the kernel, as netlink.LinkAttrs
// names them: tun and WireGuard (ARPHRD_NONE), IPIP, IP over IPv6, IPv6 over IPv4. Not GRE: if it has no fixed remote
// end, packets leave with the outer header before them.
var l3Types = []string{"none", "ipip", "tunnel6", "sit"}

// IsL3 reports whether the packets of a device begin with the IP header; false if there is no such device.
func IsL3(index int) bool {
	link, err := netlink.LinkByIndex(index)
	return err == nil && DeviceOf(link).L3
}

// IsExternalTunnel reports whether a device is a tunnel in external mode; false if there is no such device.
func IsExternalTunnel(index int) bool {
	link, err := netlink.LinkByIndex(index)
	return err == nil && isExternal(link)
}

// isExternal reports whether a device is a tunnel in external mode (IFLA_*_COLLECT_METADATA): its outer addresses and
// key come with each packet, from routes or programs.
func isExternal(link netlink.Link) bool {
	switch l := link.(type) {
	case *netlink.Vxlan:
		return l.FlowBased
	case *netlink.Geneve:
		return l.FlowBased
	case *netlink.Gretap:
		return l.FlowBased
	case *netlink.Gretun:
		return l.FlowBased
	case *netlink.Iptun:
		return l.FlowBased
	case *netlink.Ip6tnl:
		return l.FlowBased
	case *netlink.BareUDP:
		return true
	}
	return false
}

// DeviceTo is the index of the device by which the kernel sends to an address.
func DeviceTo(a netip.Addr) (device int, err error) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0, fmt.Errorf("the route to %s: %w", a, err)
	}
	return routes[0].LinkIndex, nil
}
