// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addressTimeout bounds the wait for IPv6 addresses.
const addressTimeout = 10 * time.Second

// awaitAddresses waits until the host answers for all its IPv6 addresses. The
// kernel finishes them in the background, also without duplicate address
// detection: until then it answers no neighbour solicitation, and a connection
// that comes first loses a second.
func (h *hostPlan) awaitAddresses(lab string, nl *netlink.Handle) error {
	for deadline := time.Now().Add(addressTimeout); ; time.Sleep(time.Millisecond) {
		waiting, err := h.unreadyAddress(lab, nl)
		if err != nil {
			return fmt.Errorf("waiting for its IPv6 addresses: %w", err)
		}
		if waiting == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("IPv6 address %s is not usable after %v", waiting, addressTimeout)
		}
	}
}

// unreadyAddress returns an address that is tentative, missing or whose
// solicited-node group has not been joined, "" if there is none.
func (h *hostPlan) unreadyAddress(lab string, nl *netlink.Handle) (string, error) {
	addresses, err := nl.AddrList(nil, netlink.FAMILY_V6)
	if err != nil {
		return "", err
	}
	linkLocal := map[int]bool{} // devices that have made their own address
	for _, a := range addresses {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return a.IP.String(), nil
		}
		if a.IP.IsLinkLocalUnicast() && !a.IP.Equal(podGateway6.Addr().AsSlice()) {
			linkLocal[a.LinkIndex] = true
		}
	}
	links, err := nl.LinkList()
	if err != nil {
		return "", err
	}
	for _, link := range links {
		if attrs := link.Attrs(); link.Type() == "veth" && !linkLocal[attrs.Index] {
			return "fe80::/64 of " + attrs.Name, nil
		}
	}
	return h.unjoinedAddress(lab)
}

// unjoinedAddress returns an address whose solicited-node group has not been
// joined.
func (h *hostPlan) unjoinedAddress(lab string) (string, error) {
	var groups []byte
	err := inNetNS(netnsPath(lab, h.name), func() (err error) {
		// /proc/net would show the namespace of the process's first thread.
		groups, err = os.ReadFile("/proc/thread-self/net/igmp6")
		return err
	})
	if err != nil {
		return "", err
	}
	for _, a := range h.addresses {
		if a.prefix.Addr().Is6() && !joined(string(groups), a.device, solicitedNode(a.prefix.Addr())) {
			return a.prefix.Addr().String(), nil
		}
	}
	return "", nil
}

// joined looks a group up in the format of /proc/net/igmp6: index, device,
// group in hexadecimal digits, and more.
func joined(groups, device string, group netip.Addr) bool {
	for line := range strings.Lines(groups) {
		fields := strings.Fields(line)
		if len(fields) > 2 && fields[1] == device && fields[2] == hex.EncodeToString(group.AsSlice()) {
			return true
		}
	}
	return false
}

// solicitedNode is the group that neighbour solicitations for addr are sent to,
// RFC 4291 section 2.7.1.
func solicitedNode(addr netip.Addr) netip.Addr {
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	of := addr.As16()
	copy(group[13:], of[13:])
	return netip.AddrFrom16(group)
}
