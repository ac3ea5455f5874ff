// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netfilter"
)

// nodeSockets finds the Service addresses that this node's own sockets serve, as NodeLocal DNSCache does: the node has
// the address, a rule exempts packets to it from conntrack, and a socket has bound it by name. Only the loop uses it.
type nodeSockets struct {
	rules netfilter.NoTrackFinder
	found map[service.FrontendKey]bool
	err   error // of the last search
}

// find reports whether the result has changed. Usually no rule exempts an address of the node, and nothing else is
// read.
func (n *nodeSockets) find(addresses []netip.Addr) (changed bool, err error) {
	exempt, err := n.rules.Find(addresses)
	if err != nil {
		return false, err
	}
	found := map[service.FrontendKey]bool{}
	if !exempt.Empty() {
		bound, err := node.BoundSockets()
		if err != nil {
			return false, err
		}
		for to := range bound {
			if exempt.Has(to.AddrPort, to.Protocol) {
				found[service.FrontendKey{Addr: to.Addr(), Port: to.Port(), Protocol: service.Protocol(to.Protocol)}] = true
			}
		}
	}
	changed = !maps.Equal(found, n.found)
	n.found = found
	return changed, nil
}

// updateNodeSockets leaves Service addresses to sockets of this node, or takes them back. It reports whether the tables
// were changed.
func (a *Agent) updateNodeSockets() bool {
	changed, err := a.nodeSockets.find(a.cluster.LocalAddresses())
	if err != nil && (a.nodeSockets.err == nil || a.nodeSockets.err.Error() != err.Error()) {
		a.log.Error("cannot read which Service addresses sockets of this node serve; the last known ones stay in use", "error", err)
	}
	if a.nodeSockets.err = err; err != nil || !changed {
		return false
	}
	delta := a.cluster.SetNodeSockets(a.nodeSockets.found)
	if a.synced {
		a.program(delta)
	}
	return a.synced
}
