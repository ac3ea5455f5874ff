// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"

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
	a.noteOwnAddress()
	a.edge.SetPods(a.podsByPacket())
	if a.synced {
		a.program(delta)
	}
}

// noteOwnAddress says so if no device here has an address of this node's Node object.
func (a *Agent) noteOwnAddress() {
	own := slices.DeleteFunc(slices.Clone(a.table.OwnAddresses()), netip.Addr.IsLoopback)
	none := len(own) > 0 && !slices.ContainsFunc(own, func(o netip.Addr) bool { return slices.Contains(a.addresses, o) })
	a.mu.Lock()
	defer a.mu.Unlock()
	if none && !a.noOwnAddress {
		a.log.Warn("no device here has an address of this node's Node: is the agent in the node's own network namespace?", "node", a.config.NodeName)
	}
	a.noOwnAddress = none
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
