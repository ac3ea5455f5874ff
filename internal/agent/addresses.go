// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"

	"beeline.io/beeline/internal/node"
)

// updateAddresses rereads the addresses of this node's interfaces (R22).
func (a *Agent) updateAddresses() {
	addresses, err := localAddresses(a.network)
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
func localAddresses(network *node.Network) ([]netip.Addr, error) {
	list, err := network.Addresses()
	var all []netip.Addr
	for _, a := range list {
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() {
			all = append(all, a.Addr)
		}
	}
	return all, err
}
