// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"net/netip"
	"slices"
)

// nodeFacts is the state of this node and of other nodes that the rules use.
type nodeFacts struct {
	name, zone string
	// localByAddress is Config.LocalByAddress.
	localByAddress bool
	// primary holds the node's first address of each family, in the order of the Node object.
	primary []netip.Addr
	// local holds all addresses of this node: those of its interfaces and of its Node object.
	local []netip.Addr
	// nodePorts holds the addresses that serve NodePorts (R22).
	nodePorts []netip.Addr
	// pods holds the pod networks of this node, from its Node object.
	pods []netip.Prefix
	// nodes counts the owners of each address: Node objects and this node's interfaces.
	nodes map[netip.Addr]int
	// objects holds all Nodes by name.
	objects map[string]*Node
	// protected holds the addresses that RefuseForeignExternalIPs ignores as externalIPs.
	protected protectedAddrs
	// sockets holds the destinations that are left to sockets of this node (Cluster.SetNodeSockets).
	sockets map[FrontendKey]bool
}

// newNodeFacts combines the state of this node. The Node object may not exist.
func newNodeFacts(config *Config, objects map[string]*Node, interfaces []netip.Addr, nodes map[netip.Addr]int) nodeFacts {
	f := nodeFacts{name: config.NodeName, localByAddress: config.LocalByAddress, nodes: nodes, objects: objects}
	node := cmp.Or(objects[config.NodeName], noNode)
	f.zone, f.pods = node.Zone, node.PodCIDRs
	all := slices.Clone(interfaces)
	for _, a := range node.Addresses {
		if a.IsLoopback() {
			continue
		}
		all = append(all, a)
		if !f.primaryOf(FamilyOf(a)).IsValid() {
			f.primary = append(f.primary, a)
		}
	}
	f.local = sortedAddrs(all)
	f.nodePorts = f.selectNodePorts(config.NodePortAddresses, config.PrimaryNodePorts)
	return f
}

// primaryOf returns the node's primary address of a family, or the zero Addr.
func (f *nodeFacts) primaryOf(family Family) netip.Addr {
	return firstOf(f.primary, family)
}

// addressOf returns the address at which others reach a node; the zero Addr if it has none of that family.
func (n *Node) addressOf(family Family) netip.Addr { return firstOf(n.Addresses, family) }

// firstOf returns the first address of a family except loopback addresses; the zero Addr if there is none.
func firstOf(addrs []netip.Addr, family Family) netip.Addr {
	for _, a := range addrs {
		if FamilyOf(a) == family && !a.IsLoopback() {
			return a
		}
	}
	return netip.Addr{}
}

// selectNodePorts returns the addresses that the prefixes select, and the primary address of each family
// without a prefix, or of each if primary is set.
func (f *nodeFacts) selectNodePorts(prefixes []netip.Prefix, primary bool) []netip.Addr {
	var selected []netip.Addr
	for _, a := range f.primary {
		if primary || !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return familyOfPrefix(p) == FamilyOf(a) }) {
			selected = append(selected, a)
		}
	}
	for _, a := range f.local {
		if inside(prefixes, a) && !slices.Contains(selected, a) {
			selected = append(selected, a)
		}
	}
	return selected
}

// isLocal reports whether an address belongs to this node.
func (f *nodeFacts) isLocal(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(f.local, a, netip.Addr.Compare)
	return found
}

// has reports whether an address belongs to this node or to a pod on it.
func (f *nodeFacts) has(a netip.Addr) bool {
	return f.isLocal(a) || inside(f.pods, a)
}

// ofFamily returns the addresses of one family.
func ofFamily(addrs []netip.Addr, family Family) []netip.Addr {
	var kept []netip.Addr
	for _, a := range addrs {
		if FamilyOf(a) == family {
			kept = append(kept, a)
		}
	}
	return kept
}

// loopback returns the loopback address of a family.
func loopback(family Family) netip.Addr {
	if family == IPv4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// sortedAddrs returns each address once, sorted, in the form of FrontendKey.
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
