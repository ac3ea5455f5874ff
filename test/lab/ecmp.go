// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// The hash covers both addresses, the protocol and both ports. Policy 1 means the same, but uses a hash that
// the packet has already (fib_multipath_hash in net/ipv4/route.c): on veth that is a random number of the
// sender's socket, which changes after a retransmission. Policy 3 reads the packet (Linux 5.14).
const layer4Policy, layer4Fields = "3", "55" // 0x37: FIB_MULTIPATH_HASH_FIELD_*

// Balance has the fabric route networks to several hosts at once, in equal parts, instead of its previous
// routes to them. A packet's host follows from a hash of its addresses, protocol and ports, so that a flow
// keeps its host while all of them are there. ICMP messages have no ports: they may go to another one. Several
// hosts need CONFIG_IP_ROUTE_MULTIPATH.
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

// CutOff sets the fabric's end of a host's uplink down: the host loses its carrier, and multipath routes use
// only the other hosts. Its result joins the host again, with the addresses and routes that the fabric had by
// this device.
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

// routesBy lists the main table's routes by this device alone, except those that the kernel creates for
// addresses.
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
	// Routes to neighbours first: the others need them.
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return len(a.Gw) - len(b.Gw) })
	return routes, nil
}

// join sets a device up, and restores its addresses and routes. IPv4 addresses stay while it is down, IPv6 ones
// do not.
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
		r.Flags = 0 // set by the kernel, such as the lack of a carrier
		if err := nl.RouteReplace(&r); err != nil {
			return fmt.Errorf("route %s: %w", r, err)
		}
	}
	return nil
}

// Narrow gives all routes of a router by a device an MTU: the router answers longer packets that may not be
// fragmented as if that were the device's MTU (RFC 1191, RFC 8201), while packets that arrive by the device may
// be as long as before. It is like a link with a small MTU behind it, in one direction. Routes that use several
// devices stay unchanged.
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
		r.MTU, r.MTULock = mtu, true // an unlocked MTU applies only to what the host itself sends
		if err := nl.RouteReplace(&r); err != nil {
			return fmt.Errorf("host %s: route %s with an MTU of %d: %w", h.Name, r, mtu, err)
		}
	}
	return nil
}
