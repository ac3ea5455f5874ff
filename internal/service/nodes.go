// SPDX-License-Identifier: Apache-2.0

package service

import (
	"maps"
	"net/netip"
	"slices"
)

// SetLocalAddresses replaces the addresses of this node's interfaces. Those that
// mean this node nowhere else (loopback, link-local) are left out.
func (t *Table) SetLocalAddresses(addrs []netip.Addr) Delta {
	b := newBatch()
	old := t.interfaces
	t.interfaces = slices.DeleteFunc(sortedAddrs(addrs), func(a netip.Addr) bool { return !a.IsGlobalUnicast() })
	t.count(b, t.interfaces, 1)
	t.count(b, old, -1)
	b.thisNode = true
	return t.commit(b)
}

func (t *Table) setNode(b *batch, c Change) {
	old := t.nodes[c.Ref.Name]
	set(t.nodes, c.Ref.Name, c.Object)
	if n := t.nodes[c.Ref.Name]; n != nil {
		t.count(b, n.Addresses, 1)
	}
	if old != nil {
		t.count(b, old.Addresses, -1)
	}
	b.thisNode = b.thisNode || c.Ref.Name == t.config.NodeName
}

// count notes that a Node or this node's interfaces gained or lost addresses.
func (t *Table) count(b *batch, addrs []netip.Addr, by int) {
	for _, a := range addrs {
		if _, counted := b.knew[a]; !counted {
			b.knew[a] = t.nodeAddrs[a] > 0
		}
		if t.nodeAddrs[a] += by; t.nodeAddrs[a] == 0 {
			delete(t.nodeAddrs, a)
		}
	}
}

// updateNode takes over what the batch says of nodes and marks the objects whose
// plans depend on it.
func (t *Table) updateNode(b *batch) {
	old := t.node
	if b.thisNode {
		t.node = newNodeFacts(&t.config, t.nodes[t.config.NodeName], t.interfaces, t.nodeAddrs)
	}
	moved := map[netip.Addr]bool{}
	for a, before := range b.knew {
		if before != (t.nodeAddrs[a] > 0) {
			moved[a] = true
		}
	}
	changed := nodeChange{
		nodePorts: !slices.Equal(old.nodePorts, t.node.nodePorts),
		primary:   !slices.Equal(old.primary, t.node.primary),
		zone:      old.zone != t.node.zone,
	}
	if t.config.RefuseForeignExternalIPs {
		changed.moved = moved
	}
	if changed.nodePorts || changed.primary || changed.zone || len(changed.moved) > 0 {
		for ref, s := range t.services {
			if t.owners[ref] != nil && changed.concerns(s, t.byService[ref]) {
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

// nodeChange says which of the facts that Services depend on have changed.
type nodeChange struct {
	nodePorts, primary, zone bool
	// moved has the addresses that became, or ceased to be, a node's.
	moved map[netip.Addr]bool
}

func (n *nodeChange) concerns(s *Service, endpointSlices []*EndpointSlice) bool {
	switch {
	case n.nodePorts && slices.ContainsFunc(s.Ports, func(p ServicePort) bool { return p.NodePort != 0 }),
		n.primary && len(s.SourceRanges) > 0 && len(s.IngressIPs) > 0,
		len(n.moved) > 0 && slices.ContainsFunc(s.ExternalIPs, func(a netip.Addr) bool { return n.moved[a] }):
		return true
	}
	return n.zone && slices.ContainsFunc(endpointSlices, func(s *EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e Endpoint) bool { return len(e.ZoneHints) > 0 })
	})
}

// UnknownNode says that there are Nodes, and none has this node's name.
func (t *Table) UnknownNode() bool {
	return len(t.nodes) > 0 && t.nodes[t.config.NodeName] == nil
}

// LocalAddresses returns the addresses of this node, sorted: those of its
// interfaces and of its Node object.
func (t *Table) LocalAddresses() []netip.Addr { return t.node.local }

// NodeAddresses returns the addresses of all nodes, this one included, sorted.
func (t *Table) NodeAddresses() []netip.Addr {
	return slices.SortedFunc(maps.Keys(t.nodeAddrs), netip.Addr.Compare)
}

// PodCIDRs returns the pod ranges of all nodes, sorted.
func (t *Table) PodCIDRs() []netip.Prefix {
	var all []netip.Prefix
	for _, n := range t.nodes {
		all = append(all, n.PodCIDRs...)
	}
	return sortedPrefixes(all)
}

// ServiceCIDRs returns the ranges of all ServiceCIDRs, sorted. An address inside
// that no frontend has is a Drop (R21).
func (t *Table) ServiceCIDRs() []netip.Prefix { return t.serviceCIDRs }

// updateServiceCIDRs returns the new list if the batch changed it.
func (t *Table) updateServiceCIDRs(b *batch) *[]netip.Prefix {
	if !b.serviceCIDRs {
		return nil
	}
	all := []netip.Prefix{}
	for _, c := range t.cidrs {
		all = append(all, c.CIDRs...)
	}
	if all = sortedPrefixes(all); slices.Equal(all, t.serviceCIDRs) {
		return nil
	}
	t.serviceCIDRs = all
	return &all
}

// LocalReadyEndpoints counts the distinct addresses of one family at which ready
// endpoints of a Service run on this node: what healthCheckNodePort reports on
// the node's addresses of that family (R34).
func (t *Table) LocalReadyEndpoints(service Ref, family Family) int {
	ready := map[netip.Addr]struct{}{}
	merged := map[ServicePort]struct{}{}
	for _, s := range t.byService[service] {
		for _, p := range s.Ports {
			port := ServicePort{Name: p.Name, Protocol: p.Protocol}
			if _, known := merged[port]; known {
				continue
			}
			merged[port] = struct{}{}
			for _, c := range mergeEndpoints(t.byService[service], port, family) {
				if c.ready() && c.local(t.node.name) {
					ready[c.addr.Addr()] = struct{}{}
				}
			}
		}
	}
	return len(ready)
}
