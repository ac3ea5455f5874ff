// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/rtnetlink"
)

// updateAddresses reads the addresses of this node's interfaces anew (R22).
func (a *Agent) updateAddresses() {
	addresses, err := localAddresses()
	if err != nil {
		a.log.Error("the addresses of this node cannot be read; those known so far are used", "error", err)
		return
	}
	delta := a.table.SetLocalAddresses(addresses)
	a.addresses = addresses
	a.edge.SetPods(a.podsByPacket())
	if a.synced {
		a.program(delta)
	}
}

// localAddresses are the addresses of this node's interfaces that others can
// reach: neither loopback nor link-local.
func localAddresses() ([]netip.Addr, error) {
	list, err := rtnetlink.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var all []netip.Addr
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		if !ok || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() {
			continue
		}
		all = append(all, addr)
	}
	return all, nil
}
