// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"slices"
)

// notePodAddresses records the addresses of a Pod, nil if it was deleted. They identify pods without a podCIDR,
// which some network plugins do not set.
func (t *Cluster) notePodAddresses(b *batch, ref Ref, p *Pod) {
	var now []netip.Addr
	if p != nil && !p.HostNetwork && !p.Finished {
		now = p.IPs
	}
	old := t.podAddrs[ref]
	if slices.Equal(old, now) {
		return
	}
	if t.podAddrs[ref] = now; len(now) == 0 {
		delete(t.podAddrs, ref)
	}
	cidrs := t.ownNode().PodCIDRs
	b.podAddrs = b.podAddrs || slices.ContainsFunc(slices.Concat(old, now), func(a netip.Addr) bool { return !inside(cidrs, a) })
}

func inside(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// learnedPods returns the addresses of Pods that are neither in one of the networks nor a node's.
func (t *Cluster) learnedPods(networks []netip.Prefix) (all []netip.Prefix) {
	for _, addrs := range t.podAddrs {
		for _, a := range addrs {
			if a.IsValid() && t.nodeAddrs[a] == 0 && !inside(networks, a) {
				all = append(all, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	return all
}

// UnclassifiedPods counts the other Nodes whose pods count as clients outside the cluster: neither they nor
// this node have podCIDRs, and no pod networks are configured. With manifests it is 0 unless there are Pods.
func (t *Cluster) UnclassifiedPods() (nodes int) {
	own := t.nodes[t.config.NodeName]
	if len(t.config.PodNetworks) > 0 || own == nil || len(own.PodCIDRs) > 0 || t.config.Manifests && len(t.podAddrs) == 0 {
		return 0
	}
	for _, n := range t.nodes {
		if n != own && len(n.PodCIDRs) == 0 {
			nodes++
		}
	}
	return nodes
}
