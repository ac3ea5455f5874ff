// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/netdev"
)

// The fields that decide are both addresses, the protocol and both ports. Policy 1 says
// the same, but takes a hash that the packet has already (fib_multipath_hash in
// net/ipv4/route.c): on veth that is a random number of the sender's socket, which is
// another one after a retransmission. Policy 3 looks into the packet (Linux 5.14).
const layer4Policy, layer4Fields = "3", "55" // 0x37: FIB_MULTIPATH_HASH_FIELD_*

// Balance has the fabric route networks to several hosts at once, in equal parts, in
// place of what routes to them it had. A packet's host follows from a hash of its
// addresses, protocol and ports, so that a flow stays with its host while all of them
// are there. ICMP messages have no ports: they may go to another one.
// Several hosts need CONFIG_IP_ROUTE_MULTIPATH.
func (l *Lab) Balance(networks []netip.Prefix, hosts ...*Host) error {
	fabric := l.withRole(RoleFabric)[0]
	return fabric.Do(func() error {
		err := writeSysctls([]sysctl{
			{"ipv4/fib_multipath_hash_policy", layer4Policy}, {"ipv4/fib_multipath_hash_fields", layer4Fields},
			{"ipv6/fib_multipath_hash_policy", layer4Policy}, {"ipv6/fib_multipath_hash_fields", layer4Fields},
		})
		if err != nil {
			return err
		}
		for _, n := range networks {
			route := &netlink.Route{Dst: ipNet(n)}
			for _, h := range hosts {
				link, err := netlink.LinkByName(h.Name)
				if err != nil {
					return fmt.Errorf("device %s: %w", h.Name, err)
				}
				hop := &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: h.Addr4.AsSlice()}
				if n.Addr().Is6() {
					hop.Gw = h.Addr6.AsSlice()
				}
				route.MultiPath = append(route.MultiPath, hop)
			}
			if err := netlink.RouteReplace(route); err != nil {
				return fmt.Errorf("route to %s by %d hosts: %w", n, len(hosts), err)
			}
		}
		return nil
	})
}

// CutOff sets the fabric's end of a host's uplink down: the host's carrier goes, and
// routes of several hosts lead to the others alone. What it returns joins it again: with
// the addresses and routes that the fabric had by this device.
func (l *Lab) CutOff(host *Host) (join func() error, err error) {
	fabric := l.withRole(RoleFabric)[0]
	nl, link, err := fabric.OpenDevice(host.Name)
	if err != nil {
		return nil, err
	}
	defer nl.Close()
	addresses, err := netdev.Dump(func() ([]netlink.Addr, error) { return nl.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, err
	}
	routes, err := routesBy(nl, link)
	if err != nil {
		return nil, err
	}
	if err := nl.LinkSetDown(link); err != nil {
		return nil, fmt.Errorf("setting the fabric's device %s down: %w", host.Name, err)
	}
	return func() error {
		if err := fabric.join(host.Name, addresses, routes); err != nil {
			return fmt.Errorf("joining %s again: %w", host.Name, err)
		}
		return nil
	}, nil
}

// routesBy are those of the main table that lead by this device alone, without those
// that the kernel makes for addresses.
func routesBy(nl *netlink.Handle, link netlink.Link) (routes []netlink.Route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := nl.RouteList(link, family)
		if err != nil {
			return nil, err
		}
		for _, r := range all {
			if r.Protocol != unix.RTPROT_KERNEL && len(r.MultiPath) == 0 {
				routes = append(routes, r)
			}
		}
	}
	// Those to neighbours first: the others need them.
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return len(a.Gw) - len(b.Gw) })
	return routes, nil
}

// join sets a device up, and gives it what it had. IPv4 addresses outlive that it is
// down, IPv6 ones do not.
func (h *Host) join(device string, addresses []netlink.Addr, routes []netlink.Route) error {
	nl, err := h.Netlink()
	if err != nil {
		return err
	}
	defer nl.Close()
	if err := setUp(nl, device); err != nil {
		return err
	}
	link, err := nl.LinkByName(device)
	if err != nil {
		return err
	}
	var own []netip.Addr
	for _, a := range addresses {
		if !a.IP.IsGlobalUnicast() {
			continue
		}
		addr := &netlink.Addr{IPNet: a.IPNet, Flags: a.Flags & unix.IFA_F_NODAD}
		if err := nl.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("address %s: %w", a.IPNet, err)
		}
		ip, _ := netip.AddrFromSlice(a.IP)
		own = append(own, ip.Unmap())
	}
	if err := awaitAddresses(nl, own...); err != nil {
		return err
	}
	for _, r := range routes {
		r.Flags = 0 // what the kernel says of it, such as that there is no carrier
		if err := nl.RouteReplace(&r); err != nil {
			return fmt.Errorf("route %s: %w", r, err)
		}
	}
	return nil
}

// Narrow has all routes of a router by a device take packets of so many octets and no
// more: it answers those that are longer and may not be fragmented as if the device's
// MTU were less (RFC 1191, RFC 8201), while those that come in by the device may be as
// long as before. So it is as if a narrow link were behind it, one way.
// Routes that lead by several devices stay as they are.
func (h *Host) Narrow(device string, mtu int) error {
	nl, link, err := h.OpenDevice(device)
	if err != nil {
		return err
	}
	defer nl.Close()
	routes, err := routesBy(nl, link)
	if err != nil {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	for _, r := range routes {
		r.MTU, r.MTULock = mtu, true // one that is not locked is for what the host itself sends
		if err := nl.RouteReplace(&r); err != nil {
			return fmt.Errorf("host %s: route %s with an MTU of %d: %w", h.Name, r, mtu, err)
		}
	}
	return nil
}
