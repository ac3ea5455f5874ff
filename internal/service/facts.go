// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"
)

// nodeFacts are what the rules read of this node, and of other nodes.
type nodeFacts struct {
	name, zone string
	// localByAddress is Config.LocalByAddress.
	localByAddress bool
	// primary has the node's first address of each family, as the Node object
	// orders them.
	primary []netip.Addr
	// local has every address of this node: its interfaces' and its Node object's.
	local []netip.Addr
	// nodePorts has the addresses on which NodePorts are served (R22).
	nodePorts []netip.Addr
	// pods are the networks of this node's pods, by its Node object.
	pods []netip.Prefix
	// nodes counts who has an address: each Node object, and this node's
	// interfaces.
	nodes map[netip.Addr]int
	// objects are all Nodes by their names.
	objects map[string]*Node
	// guarded are addresses that no externalIPs can have with RefuseForeignExternalIPs.
	guarded guarded
}

// newNodeFacts combines what is known of this node. The Node object can be
// missing.
func newNodeFacts(config *Config, objects map[string]*Node, interfaces []netip.Addr, nodes map[netip.Addr]int) nodeFacts {
	f := nodeFacts{name: config.NodeName, localByAddress: config.LocalByAddress, nodes: nodes, objects: objects}
	node := objects[config.NodeName]
	all := slices.Clone(interfaces)
	if node != nil {
		f.zone, f.pods = node.Zone, node.PodCIDRs
		for _, a := range node.Addresses {
			if a.IsLoopback() {
				continue
			}
			all = append(all, a)
			if !f.primaryOf(FamilyOf(a)).IsValid() {
				f.primary = append(f.primary, a)
			}
		}
	}
	f.local = sortedAddrs(all)
	f.nodePorts = f.selectNodePorts(config.NodePortAddresses)
	return f
}

// primaryOf returns the node's primary address of a family, or the zero Addr.
func (f *nodeFacts) primaryOf(family Family) netip.Addr {
	for _, a := range f.primary {
		if FamilyOf(a) == family {
			return a
		}
	}
	return netip.Addr{}
}

// addressOf returns the address by which others reach a node, the zero Addr if none is
// known of the family.
func (f *nodeFacts) addressOf(name string, family Family) netip.Addr {
	return f.objects[name].addressOf(family)
}

// addressOf is the first address of a family; a node that is nil has none.
func (n *Node) addressOf(family Family) netip.Addr {
	if n == nil {
		return netip.Addr{}
	}
	i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return FamilyOf(a) == family && !a.IsLoopback() })
	if i < 0 {
		return netip.Addr{}
	}
	return n.Addresses[i]
}

// selectNodePorts returns the addresses that the prefixes select, and the primary
// one of a family that has no prefix.
func (f *nodeFacts) selectNodePorts(prefixes []netip.Prefix) []netip.Addr {
	var selected []netip.Addr
	for _, a := range f.primary {
		if !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return familyOfPrefix(p) == FamilyOf(a) }) {
			selected = append(selected, a)
		}
	}
	for _, a := range f.local {
		if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			selected = append(selected, a)
		}
	}
	return selected
}

// isLocal says whether an address is one of this node's.
func (f *nodeFacts) isLocal(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(f.local, a, netip.Addr.Compare)
	return found
}

// has says whether an address is this node's or that of a pod on it.
func (f *nodeFacts) has(a netip.Addr) bool {
	return f.isLocal(a) || slices.ContainsFunc(f.pods, func(p netip.Prefix) bool { return p.Contains(a) })
}

// ofFamily keeps the addresses of one family.
func ofFamily(addrs []netip.Addr, family Family) []netip.Addr {
	var kept []netip.Addr
	for _, a := range addrs {
		if FamilyOf(a) == family {
			kept = append(kept, a)
		}
	}
	return kept
}

// loopback is the loopback address that a family's clients name.
func loopback(family Family) netip.Addr {
	if family == IPv4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// sortedAddrs returns each address once, sorted, in the form that a FrontendKey
// has.
func sortedAddrs(addrs []netip.Addr) []netip.Addr {
	out := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, a.Unmap().WithZone(""))
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// sortedPrefixes returns each prefix once, sorted.
func sortedPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}
