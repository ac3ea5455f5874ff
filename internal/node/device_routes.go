// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// DeviceRoutes is a device, its addresses, and the routes that lead there.
type DeviceRoutes struct {
	netdev.Device
	// Enslaved to a bridge, bond or team, which gets its packets. A VRF only chooses the routes of what its devices
	// receive.
	Enslaved bool
	// TakesTags: the driver strips VLAN tags before XDP sees the frames, and there are VLAN devices
	// above, whose frames XDP would take for the device's own.
	TakesTags bool
	// DefaultRoute: a default route leads here. Routed: any route does.
	DefaultRoute, Routed bool
	// DefaultRoute4: an IPv4 default route of the main table leads here.
	DefaultRoute4 bool
	// NextHops: to which addresses an IPv4 route has the device as one of several next hops; nil: to none.
	NextHops []OneOfSeveral
	// Direct are the networks on the device itself, without a gateway.
	Direct []netip.Prefix
	// Addresses are reachable by others, in the kernel's order of preference.
	Addresses []netip.Addr
	// Leads are the device's routes to the destinations that ReadDevices was asked for. Sources are the source
	// addresses that these routes prescribe.
	Leads   []Lead
	Sources []netip.Addr
}

// A Lead is a route by a device to some destinations. MTU is the route's, 0 for the device's.
type Lead struct {
	To  netip.Prefix
	MTU int
}

// ReadDevices reads the devices of this network namespace. Destinations are sorted.
func ReadDevices(destinations []netip.Addr) ([]DeviceRoutes, error) {
	devices, err := netdev.Devices()
	if err != nil {
		return nil, err
	}
	kinds, at := map[int]string{}, map[int]int{} // kind and place in all by index
	all := make([]DeviceRoutes, len(devices))
	for i, d := range devices {
		all[i].Device, kinds[d.Index], at[d.Index] = d, d.Kind, i
	}
	for i, d := range devices {
		all[i].Enslaved = d.Master != 0 && kinds[d.Master] != "vrf"
		if parent, known := at[d.Parent]; d.Kind == "vlan" && known && !d.PeerElsewhere {
			all[parent].TakesTags = netdev.StripsTags(all[parent].Name)
		}
	}
	if err := readAddresses(all, at); err != nil {
		return nil, err
	}
	return all, readRoutes(all, at, destinations)
}

// unusable are flags of addresses that the node must not send from.
const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED

func readAddresses(all []DeviceRoutes, at map[int]int) error {
	list, err := netdev.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
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

func readRoutes(all []DeviceRoutes, at map[int]int, destinations []netip.Addr) error {
	list, err := netdev.Dump(func() ([]netlink.Route, error) {
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
			all[i].Leads = append(all[i].Leads, Lead{route.to, route.mtu})
			if route.source.IsValid() && !slices.Contains(all[i].Sources, route.source) {
				all[i].Sources = append(all[i].Sources, route.source)
			}
		}
	})
	return nil
}

func readNextHops(all []DeviceRoutes, at map[int]int, list []netlink.Route) {
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
