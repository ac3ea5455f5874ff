// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addressTimeout bounds the wait for IPv6 addresses. Others that take their networks down can delay the kernel
// for seconds.
const addressTimeout = time.Minute

// AddAddress adds an address to one of the host's devices, and returns when the host has it.
func (h *Host) AddAddress(device string, prefix netip.Prefix) error {
	nl, link, err := h.OpenDevice(device)
	if err != nil {
		return err
	}
	defer nl.Close()
	if err := addAddress(nl, link, prefix); err != nil {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	if err := awaitAddresses(nl, prefix.Addr()); err != nil {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	return nil
}

func addAddress(nl *netlink.Handle, link netlink.Link, prefix netip.Prefix) error {
	addr := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := nl.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("adding address %s to %s: %w", prefix, link.Attrs().Name, err)
	}
	return nil
}

// awaitAddresses waits until the host has the addresses and each of its veth devices has a link-local one. The
// kernel finishes IPv6 addresses in the background, even without duplicate address detection: an earlier
// connection loses a second, because it or its neighbour solicitation is dropped.
func awaitAddresses(nl *netlink.Handle, addresses ...netip.Addr) error {
	for deadline := time.Now().Add(addressTimeout); ; time.Sleep(time.Millisecond) {
		waiting, err := unreadyAddress(nl, addresses)
		interrupted := errors.Is(err, netlink.ErrDumpInterrupted) // one was added meanwhile
		if err != nil && !interrupted {
			return fmt.Errorf("waiting for its IPv6 addresses: %w", err)
		}
		if waiting == "" && !interrupted {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("IPv6 address %q is not usable after %v (%v)", waiting, addressTimeout, err)
		}
	}
}

// unreadyAddress returns an address that is not usable yet, "" if all are.
func unreadyAddress(nl *netlink.Handle, addresses []netip.Addr) (string, error) {
	device, err := withoutLinkLocal(nl)
	if err != nil {
		return "", err
	}
	if device != "" {
		return "fe80::/64 of " + device, nil
	}
	// The route to the host itself is the last thing that the kernel creates for an address.
	routes, err := nl.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return "", err
	}
	local := map[netip.Addr]bool{}
	for _, r := range routes {
		if addr, ok := netip.AddrFromSlice(r.Dst.IP); ok && r.Type == unix.RTN_LOCAL {
			local[addr] = true
		}
	}
	for _, addr := range addresses {
		if addr.Is6() && !local[addr] {
			return addr.String(), nil
		}
	}
	return "", nil
}

// withoutLinkLocal returns the name of a veth device without a usable link-local address, which it needs to
// solicit neighbours.
func withoutLinkLocal(nl *netlink.Handle) (string, error) {
	addresses, err := nl.AddrList(nil, netlink.FAMILY_V6)
	if err != nil {
		return "", err
	}
	made := map[int]bool{}
	for _, a := range addresses {
		if a.IP.IsLinkLocalUnicast() && !a.IP.Equal(podGateway6.Addr().AsSlice()) && a.Flags&unix.IFA_F_TENTATIVE == 0 {
			made[a.LinkIndex] = true
		}
	}
	links, err := nl.LinkList()
	if err != nil {
		return "", err
	}
	for _, link := range links {
		if attrs := link.Attrs(); link.Type() == "veth" && attrs.Flags&net.FlagUp != 0 && !made[attrs.Index] {
			return attrs.Name, nil
		}
	}
	return "", nil
}
