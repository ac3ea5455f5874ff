// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/node/netdev"
)

// updateAddresses rereads the addresses of this node's interfaces (R22).
func (a *Agent) updateAddresses() {
	addresses, err := localAddresses()
	if err != nil {
		a.log.Error("cannot read the addresses of this node; the last known ones stay in use", "error", err)
		return
	}
	delta := a.cluster.SetLocalAddresses(addresses)
	if a.synced {
		a.program(delta)
	}
}

// localAddresses returns the addresses of this node's interfaces that other hosts can reach:
// neither loopback nor link-local.
func localAddresses() ([]netip.Addr, error) {
	list, err := netdev.Dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
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
