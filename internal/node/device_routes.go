// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"

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
	// Leads are the device's routes to the destinations that DeviceRoutes was asked for. Sources are the source
	// addresses that these routes prescribe.
	Leads   []Lead
	Sources []netip.Addr
}

// A Lead is a route by a device to some destinations. MTU is the route's, 0 for the device's.
type Lead struct {
	To  netip.Prefix
	MTU int
}

// DeviceRoutes returns the devices and what leads there. Destinations are sorted.
func (n *Network) DeviceRoutes(destinations []netip.Addr) ([]DeviceRoutes, error) {
	devices, err := n.Devices()
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
	addresses, err := n.Addresses()
	if err != nil {
		return nil, err
	}
	noteAddresses(all, at, addresses)
	list, err := n.Routes()
	if err == nil {
		noteRoutes(all, at, list, destinations)
	}
	return all, err
}

// unusable are flags of addresses that the node must not send from.
const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED

func noteAddresses(all []DeviceRoutes, at map[int]int, list []netdev.Address) {
	for _, secondary := range []bool{false, true} { // IPv6: of privacy extensions
		for _, a := range list {
			i, known := at[a.Device]
			if known && a.Flags&unusable == 0 && (a.Flags&unix.IFA_F_SECONDARY != 0) == secondary && a.IsGlobalUnicast() {
				all[i].Addresses = append(all[i].Addresses, a.Addr)
			}
		}
	}
}

func noteRoutes(all []DeviceRoutes, at map[int]int, list []Route, destinations []netip.Addr) {
	routes, several := routes{destinations: destinations}, false
	for i := range list {
		route := &list[i]
		routes.add(*route)
		several = several || len(route.Hops) > 1 && route.To.Addr().Is4()
		if route.To.Addr().IsLinkLocalUnicast() && route.To.Bits() > 0 {
			continue // every device has it
		}
		for _, hop := range route.Hops {
			if i, known := at[hop.Device]; known {
				all[i].note(route, len(route.Hops) == 1 && !hop.Gateway.IsValid())
			}
		}
	}
	if several {
		for index, hops := range nextHops(slices.DeleteFunc(slices.Clone(list), func(r Route) bool { return r.To.Addr().Is6() })) {
			if i, known := at[index]; known {
				all[i].NextHops = hops
			}
		}
	}
	routes.leads(func(route *Route) {
		for _, hop := range route.Hops {
			i, known := at[hop.Device]
			if !known {
				continue
			}
			all[i].Leads = append(all[i].Leads, Lead{route.To, int(route.MTU)})
			if route.Source.IsValid() && !slices.Contains(all[i].Sources, route.Source) {
				all[i].Sources = append(all[i].Sources, route.Source)
			}
		}
	})
}

// note notes a route by the device. direct: without a gateway.
func (d *DeviceRoutes) note(route *Route, direct bool) {
	isDefault := route.To.Bits() == 0
	d.Routed = true
	d.DefaultRoute = d.DefaultRoute || isDefault
	d.DefaultRoute4 = d.DefaultRoute4 || isDefault && route.To.Addr().Is4() && route.Table == unix.RT_TABLE_MAIN
	if direct && !isDefault {
		d.Direct = append(d.Direct, route.To)
	}
}
