// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/report/condition"
)

// updateAddresses rereads the addresses of this node's interfaces (R22).
func (a *Agent) updateAddresses() {
	addresses, err := localAddresses()
	if err != nil {
		a.log.Error("cannot read the addresses of this node; the last known ones stay in use", "error", err)
		return
	}
	delta := a.cluster.SetLocalAddresses(addresses)
	a.noteOwnAddress()
	if a.synced {
		a.program(delta)
	}
}

// noteOwnAddress warns if no device here has an address of this node's Node object.
func (a *Agent) noteOwnAddress() {
	own := slices.DeleteFunc(slices.Clone(a.cluster.OwnAddresses()), netip.Addr.IsLoopback)
	none := len(own) > 0 && !slices.ContainsFunc(own, func(o netip.Addr) bool { return slices.Contains(a.cluster.LocalAddresses(), o) })
	a.mu.Lock()
	defer a.mu.Unlock()
	if none && !a.noOwnAddress {
		condition.NodeAddressMissing.Log(a.log, "no device here has an address of this node's Node: is the agent in the node's own network namespace?", "node", a.config.NodeName)
	}
	a.noOwnAddress = none
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
