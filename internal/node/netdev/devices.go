// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Device is a network device of this network namespace.
type Device struct {
	Index int
	Name  string
	Kind  string // as `ip -details link` names it; "device" for hardware
	Up    bool
	// Ethernet: frames begin with MAC addresses; frames to the node have MAC as destination.
	Ethernet, Loopback bool
	// L3: packets begin with the IP header.
	L3  bool
	MAC [6]byte
	// Enslaved to a bridge, bond or team, which gets its packets. Master is the index of that, or of the VRF;
	// 0 for none.
	Enslaved bool
	Master   int
	// PeerElsewhere: its other end is in another network namespace.
	PeerElsewhere bool
	// Group is its device group (ip link set group), by which rules may decide.
	Group uint32
	// TakesTags: the driver strips VLAN tags before XDP sees the frames, and there are VLAN devices
	// above, whose frames XDP would take for the device's own.
	TakesTags bool
	// DefaultRoute: a default route leads here. Routed: any route does.
	DefaultRoute, Routed bool
	// DefaultRoute4: an IPv4 default route of the main table leads here.
	DefaultRoute4 bool
	// NextHops: to which addresses an IPv4 route has the device as one of several next hops; nil: to none.
	NextHops []NextHop
	// Direct are the networks on the device itself, without a gateway.
	Direct []netip.Prefix
	// XDP is the id of its XDP program, 0 for none.
	XDP uint32
	// Addresses are reachable by others, in the kernel's order of preference.
	Addresses []netip.Addr
	// Leads are the device's routes to the destinations that Read was asked for. Sources are the source addresses
	// that these routes prescribe. MTU is the maximum length of packets sent here, in octets from the IP header on.
	Leads   []Route
	Sources []netip.Addr
	MTU     int
}

// A Route is a route by a device to some destinations. MTU is the route's, 0 for the device's.
type Route struct {
	To  netip.Prefix
	MTU int
}

// Read reads the devices of this network namespace. Destinations are sorted.
func Read(destinations []netip.Addr) ([]Device, error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	masters := map[int]string{}
	for _, l := range links {
		masters[l.Attrs().Index] = l.Type()
	}
	var all []Device
	at := map[int]int{} // place in all by index
	for _, l := range links {
		a := l.Attrs()
		at[a.Index] = len(all)
		d := Device{
			Index: a.Index, Name: a.Name, Kind: l.Type(),
			MTU:      a.MTU,
			Up:       a.RawFlags&unix.IFF_UP != 0,
			Ethernet: a.EncapType == "ether", Loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
			L3: BeginsWithIP(a.EncapType), Group: a.Group,
			// A VRF only chooses the routes of what its devices receive.
			Enslaved: a.MasterIndex != 0 && masters[a.MasterIndex] != "vrf", Master: a.MasterIndex,
			PeerElsewhere: a.NetNsID >= 0,
		}
		copy(d.MAC[:], a.HardwareAddr)
		if a.Xdp != nil && a.Xdp.Attached {
			d.XDP = a.Xdp.ProgId
		}
		all = append(all, d)
	}
	if err := readAddresses(all, at); err != nil {
		return nil, err
	}
	readTags(all, at, links)
	return all, readRoutes(all, at, destinations)
}

// l3Types are the types of devices whose packets have no link-layer header in the kernel, as netlink.LinkAttrs
// names them: tun and WireGuard (ARPHRD_NONE), IPIP, IP over IPv6, IPv6 over IPv4. Not GRE: if it has no fixed remote
// end, packets leave with the outer header before them.
var l3Types = []string{"none", "ipip", "tunnel6", "sit"}

// BeginsWithIP reports whether the packets of devices of a type begin with the IP header.
func BeginsWithIP(encapType string) bool { return slices.Contains(l3Types, encapType) }

// IsL3 reports whether the packets of a device begin with the IP header; false if there is no such device.
func IsL3(index int) bool {
	link, err := netlink.LinkByIndex(index)
	return err == nil && BeginsWithIP(link.Attrs().EncapType)
}

// IsExternalTunnel reports whether a device is a tunnel in external mode; false if there is no such device.
func IsExternalTunnel(index int) bool {
	link, err := netlink.LinkByIndex(index)
	return err == nil && IsExternal(link)
}

// IsExternal reports whether a device is a tunnel in external mode (IFLA_*_COLLECT_METADATA): its outer addresses and
// key come with each packet, from routes or programs.
func IsExternal(link netlink.Link) bool {
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

// readTags finds the devices that have VLAN devices above them and strip the tags themselves.
func readTags(all []Device, at map[int]int, links []netlink.Link) {
	for _, l := range links {
		i, known := at[l.Attrs().ParentIndex]
		if l.Type() == "vlan" && known && l.Attrs().NetNsID < 0 {
			all[i].TakesTags = takesTags(all[i].Name)
		}
	}
}

// takesTags reports whether a driver strips VLAN tags. A driver that does not tell counts as one that does
// not.
func takesTags(device string) bool {
	const ethtoolGFlags, rxVLAN = unix.ETHTOOL_GFLAGS, 1 << 8 // ETH_FLAG_RXVLAN
	value := struct{ command, data uint32 }{command: ethtoolGFlags}
	return ethtool(device, unsafe.Pointer(&value)) == nil && value.data&rxVLAN != 0
}

// unusable are flags of addresses that the node must not send from.
const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED

func readAddresses(all []Device, at map[int]int) error {
	list, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	var secondary []netlink.Addr
	add := func(a netlink.Addr) {
		addr, ok := netip.AddrFromSlice(a.IP)
		i, known := at[a.LinkIndex]
		if addr = addr.Unmap(); ok && known && addr.IsGlobalUnicast() {
			all[i].Addresses = append(all[i].Addresses, addr)
		}
	}
	for _, a := range list {
		switch {
		case a.Flags&unusable != 0:
		case a.Flags&unix.IFA_F_SECONDARY != 0: // IPv6: of privacy extensions
			secondary = append(secondary, a)
		default:
			add(a)
		}
	}
	for _, a := range secondary {
		add(a)
	}
	return nil
}

// refusing are the types of routes that drop or reject packets.
var refusing = []int{unix.RTN_UNREACHABLE, unix.RTN_BLACKHOLE, unix.RTN_PROHIBIT}

func readRoutes(all []Device, at map[int]int, destinations []netip.Addr) error {
	list, err := Dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	routes, several := routes{destinations: destinations}, false
	for _, r := range list {
		route, ok := routeOf(&r)
		if !ok {
			continue
		}
		routes.add(route)
		several = several || len(route.devices) > 2 && route.to.Addr().Is4()
		if a := route.to.Addr(); a.IsLinkLocalUnicast() && route.to.Bits() > 0 {
			continue // every device has it
		}
		if i, known := at[r.LinkIndex]; known && r.Type == unix.RTN_UNICAST && route.to.Bits() > 0 && r.Gw == nil && r.Via == nil {
			all[i].Direct = append(all[i].Direct, route.to)
		}
		for _, index := range route.devices {
			if i, known := at[index]; known {
				all[i].Routed = true
				all[i].DefaultRoute = all[i].DefaultRoute || route.to.Bits() == 0
				all[i].DefaultRoute4 = all[i].DefaultRoute4 || route.to.Bits() == 0 && route.to.Addr().Is4() && route.table == unix.RT_TABLE_MAIN
			}
		}
	}
	if several {
		readNextHops(all, at, list)
	}
	routes.leads(func(route route) {
		for _, index := range route.devices {
			i, known := at[index]
			if !known {
				continue
			}
			all[i].Leads = append(all[i].Leads, Route{route.to, route.mtu})
			if route.source.IsValid() && !slices.Contains(all[i].Sources, route.source) {
				all[i].Sources = append(all[i].Sources, route.source)
			}
		}
	})
	return nil
}

func readNextHops(all []Device, at map[int]int, list []netlink.Route) {
	var routes []route
	for i := range list {
		if route, ok := routeOf(&list[i]); ok && route.to.Addr().Is4() {
			routes = append(routes, route)
		}
	}
	for index, hops := range nextHops(routes) {
		if i, known := at[index]; known {
			all[i].NextHops = hops
		}
	}
}

// routeOf ignores routes that do not forward packets: to the node itself, broadcast and multicast.
func routeOf(r *netlink.Route) (route route, ok bool) {
	route.table, route.metric, route.mtu = r.Table, r.Priority, r.MTU
	switch {
	case r.Type == unix.RTN_UNICAST:
		route.devices = append(route.devices, r.LinkIndex)
		for _, hop := range r.MultiPath {
			route.devices = append(route.devices, hop.LinkIndex)
		}
	case !slices.Contains(refusing, r.Type):
		return route, false
	}
	route.source, _ = netip.AddrFromSlice(r.Src)
	route.source = route.source.Unmap()
	if r.Dst == nil {
		route.to = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if r.Family == netlink.FAMILY_V6 {
			route.to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		return route, true
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	route.to = netip.PrefixFrom(addr.Unmap(), ones)
	return route, ok && route.to.IsValid()
}

// DeviceTo is the index of the device by which the kernel sends to an address.
func DeviceTo(a netip.Addr) (device int, err error) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0, fmt.Errorf("the route to %s: %w", a, err)
	}
	return routes[0].LinkIndex, nil
}
