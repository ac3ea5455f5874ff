// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// An Address is an address of a device of this network namespace.
type Address struct {
	netip.Addr
	Device int // its index
	Flags  int // IFA_F_*
}

// Addresses returns the addresses of all devices in the kernel's order of preference.
func Addresses() ([]Address, error) {
	list, err := Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []Address
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			all = append(all, Address{addr.Unmap(), a.LinkIndex, a.Flags})
		}
	}
	return all, nil
}

// LastAddress returns the last address of a network.
func LastAddress(of netip.Prefix) netip.Addr {
	last := of.Addr().AsSlice()
	for bit := of.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return a
}

// Neighbours returns the neighbours of a family; those of AF_BRIDGE are entries of bridges' forwarding tables.
func Neighbours(family int) ([]netlink.Neigh, error) {
	all, err := Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, family) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	return all, nil
}
