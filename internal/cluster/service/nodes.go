// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// SetLocalAddresses sets the addresses of this node's interfaces. It omits loopback and link-local addresses,
// which other hosts cannot reach.
func (t *Cluster) SetLocalAddresses(addrs []netip.Addr) Delta {
	b := newBatch()
	old := t.interfaces
	t.interfaces = slices.DeleteFunc(sortedAddrs(addrs), func(a netip.Addr) bool { return !a.IsGlobalUnicast() })
	t.count(b, t.interfaces, 1)
	t.count(b, old, -1)
	b.thisNode = true
	return t.commit(b)
}

// LocalAddresses returns those of the last SetLocalAddresses. The list must not be modified.
func (t *Cluster) LocalAddresses() []netip.Addr { return t.interfaces }

// SetNodeSockets sets the destinations that sockets of this node have bound and that packets reach without the rules of
// a proxy, because a rule exempts them from conntrack. No frontend has them: Services leave them to these sockets, as
// NodeLocal DNSCache needs it.
func (t *Cluster) SetNodeSockets(keys map[FrontendKey]bool) Delta {
	b := newBatch()
	changed := func(a netip.Addr, p ServicePort) bool {
		key := FrontendKey{a, p.Port, p.Protocol}
		return keys[key] != t.node.sockets[key]
	}
	for ref, s := range t.services {
		if t.owners[ref] != nil && slices.ContainsFunc(s.Ports, func(p ServicePort) bool {
			return changed(s.clusterIP(IPv4), p) || changed(s.clusterIP(IPv6), p)
		}) {
			b.dirty[ref] = struct{}{}
		}
	}
	t.sockets = keys
	return t.commit(b)
}

// noNode takes the place of a Node that does not exist.
var noNode = &Node{}

// ownNode returns this node's Node object, or noNode.
func (t *Cluster) ownNode() *Node { return cmp.Or(t.nodes[t.config.NodeName], noNode) }

func (t *Cluster) setNode(b *batch, c Change) {
	old := cmp.Or(t.nodes[c.Ref.Name], noNode)
	if c.Ref.Name == t.config.NodeName {
		t.ownDeleted = c.Object == nil && (old != noNode || c.Last != nil)
		if t.ownDeleted && c.Last == nil {
			return // R39
		}
		if t.ownDeleted {
			c.Object = c.Last
		}
	}
	set(t.nodes, c.Ref.Name, c.Object)
	now := cmp.Or(t.nodes[c.Ref.Name], noNode)
	t.count(b, now.Addresses, 1)
	t.count(b, old.Addresses, -1)
	t.protected.nodes.count(b.protected, now.Addresses, 1)
	t.protected.nodes.count(b.protected, old.Addresses, -1)
	if old.addressOf(IPv4) != now.addressOf(IPv4) || old.addressOf(IPv6) != now.addressOf(IPv6) {
		b.renumbered[c.Ref.Name] = true
	}
	b.nodes = b.nodes || !slices.Equal(old.Addresses, now.Addresses)
	b.podCIDRs = b.podCIDRs || !slices.Equal(old.PodCIDRs, now.PodCIDRs)
	b.thisNode = b.thisNode || c.Ref.Name == t.config.NodeName
}

// count records that a Node or this node's interfaces gained or lost addresses.
func (t *Cluster) count(b *batch, addrs []netip.Addr, by int) {
	counts(t.nodeAddrs).count(b.before, addrs, by)
}

// updateNode applies the batch's changes to nodes, and marks the objects whose plans depend on them.
func (t *Cluster) updateNode(b *batch) {
	old := t.node
	if b.thisNode {
		t.node = newNodeFacts(&t.config, t.nodes, t.interfaces, t.nodeAddrs)
	}
	t.node.protected, t.node.sockets = t.protected, t.sockets
	moved := map[netip.Addr]bool{}
	counts(t.nodeAddrs).moved(b.before, moved)
	t.protected.nodes.moved(b.protected, moved)
	t.protected.servers.moved(b.servers, moved)
	changed := nodeChange{
		nodePorts:    !slices.Equal(old.nodePorts, t.node.nodePorts),
		primary:      !slices.Equal(old.primary, t.node.primary),
		zone:         old.zone != t.node.zone,
		here:         !slices.Equal(old.local, t.node.local) || !slices.Equal(old.pods, t.node.pods),
		localChanged: func(a netip.Addr) bool { return old.isLocal(a) != t.node.isLocal(a) },
	}
	changed.moved, changed.renumbered = moved, b.renumbered
	if changed.nodePorts || changed.primary || changed.zone || changed.here || len(changed.moved) > 0 || len(changed.renumbered) > 0 {
		for ref, s := range t.services {
			if t.owners[ref] != nil && changed.concerns(s, t.byService[ref], &t.config) {
				b.dirty[ref] = struct{}{}
			}
		}
	}
	if !slices.Equal(old.local, t.node.local) {
		for ref := range t.pods {
			b.dirty[ref] = struct{}{}
		}
	}
}

// nodeChange holds the changes of nodes on which Services depend.
type nodeChange struct {
	nodePorts, primary, zone, here bool
	// moved holds the addresses that became or ceased to be a node's.
	moved map[netip.Addr]bool
	// localChanged reports whether an address became or ceased to be this node's.
	localChanged func(netip.Addr) bool
	// renumbered holds the Nodes whose address for other nodes changed.
	renumbered map[string]bool
}

func (n *nodeChange) concerns(s *Service, endpointSlices []*EndpointSlice, config *Config) bool {
	switch {
	case n.primary && config.checksByOption(s),
		n.nodePorts && (s.HealthCheckNodePort != 0 || slices.ContainsFunc(s.Ports, func(p ServicePort) bool { return p.NodePort != 0 })),
		n.primary && len(s.SourceRanges) > 0 && len(s.IngressIPs) > 0,
		n.here && (n.localChanged(s.clusterIP(IPv4)) || n.localChanged(s.clusterIP(IPv6))),
		n.here && len(s.SourceRanges) > 0 && slices.ContainsFunc(s.IngressIPs, n.localChanged),
		len(n.moved) > 0 && slices.ContainsFunc(slices.Concat(s.ExternalIPs, s.IngressIPs), func(a netip.Addr) bool { return n.moved[a] }):
		return true
	}
	renumbered := len(n.renumbered) > 0 && config.sentToNodes(s)
	if !n.zone && !n.here && !renumbered {
		return false
	}
	return slices.ContainsFunc(endpointSlices, func(s *EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e Endpoint) bool {
			return n.zone && len(e.hints().Zones) > 0 || n.here && e.Node == "" || renumbered && n.renumbered[e.Node]
		})
	})
}

// OwnNodeDeleted reports that this node's Node object was deleted. Its last state stays in use until it is
// created again (R39).
func (t *Cluster) OwnNodeDeleted() bool { return t.ownDeleted }

// UnknownNode reports that there are Nodes, but none has or had this node's name.
func (t *Cluster) UnknownNode() bool {
	return len(t.nodes) > 0 && t.nodes[t.config.NodeName] == nil
}

// OwnAddresses returns the addresses of this node's Node object, in its order.
func (t *Cluster) OwnAddresses() []netip.Addr { return t.ownNode().Addresses }

// PodCIDRs returns the podCIDRs of all Nodes, sorted.
func (t *Cluster) PodCIDRs() []netip.Prefix {
	var all []netip.Prefix
	for _, n := range t.nodes {
		all = append(all, n.PodCIDRs...)
	}
	return sortedPrefixes(all)
}

// ServiceCIDRs returns the ranges of all ServiceCIDRs, sorted. Packets to an address inside without a frontend
// are dropped (R21).
func (t *Cluster) ServiceCIDRs() []netip.Prefix { return t.serviceCIDRs }

// updateServiceCIDRs returns the new list if the batch changed it.
func (t *Cluster) updateServiceCIDRs(b *batch) *[]netip.Prefix {
	if !b.serviceCIDRs {
		return nil
	}
	all := []netip.Prefix{}
	for _, c := range t.cidrs {
		all = append(all, c.CIDRs...)
	}
	return replaced(&t.serviceCIDRs, all)
}

// replaced sorts a new list and stores it; nil if it is the old one.
func replaced(list *[]netip.Prefix, now []netip.Prefix) *[]netip.Prefix {
	if now = sortedPrefixes(now); slices.Equal(now, *list) {
		return nil
	}
	*list = now
	return &now
}

// PodNetworks returns the pod networks, sorted: the configured ones or, without any, the podCIDRs of all Nodes
// and the addresses of Pods outside them.
func (t *Cluster) PodNetworks() []netip.Prefix { return t.podNetworks }

// updatePodNetworks returns the new list if the batch changed it.
func (t *Cluster) updatePodNetworks(b *batch) *[]netip.Prefix {
	moved := len(b.before) > 0 && len(t.podAddrs) > 0
	if !b.podCIDRs && !b.podAddrs && !moved || len(t.config.PodNetworks) > 0 {
		return nil
	}
	all := t.PodCIDRs()
	return replaced(&t.podNetworks, append(all, t.learnedPods(all)...))
}

// Balancers returns the networks from which encapsulated packets for backends of this node are accepted,
// sorted: the configured ones and the addresses of all Nodes.
func (t *Cluster) Balancers() []netip.Prefix { return t.balancers }

// updateBalancers returns the new list if the batch changed it.
func (t *Cluster) updateBalancers(b *batch) *[]netip.Prefix {
	if !b.nodes {
		return nil
	}
	all := slices.Clone(t.config.Balancers)
	for _, n := range t.nodes {
		for _, a := range n.Addresses {
			if !a.IsLoopback() && !inside(t.config.Balancers, a) {
				all = append(all, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return replaced(&t.balancers, all)
}

// Ineligible returns why load balancers outside the cluster must send no new connections to this node; empty if
// they may (R35). With manifests a node needs no Node object.
func (t *Cluster) Ineligible() string {
	n := t.nodes[t.config.NodeName]
	switch {
	case n == nil && t.config.Manifests:
		return ""
	case n == nil:
		return fmt.Sprintf("there is no Node %q", t.config.NodeName)
	case n.Deleting:
		return fmt.Sprintf("Node %s is being deleted", n.Name)
	case n.ToBeDeleted:
		return fmt.Sprintf("Node %s has the taint %s", n.Name, TaintToBeDeleted)
	}
	return ""
}

// NodeNames iterates over the names of all Nodes.
func (t *Cluster) NodeNames() iter.Seq[string] { return maps.Keys(t.nodes) }
