// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

// LookUpPods makes the programs look up pod networks in the table of networks, until SetPodNetworks is
// called. Call it before that table changes.
func (p *Prefilter) LookUpPods() {
	if p != nil {
		atomic.StoreUint32(&p.at.PodsComplete, 0)
	}
}

// PodsComplete reports whether the programs know all pod networks without the table.
func (p *Prefilter) PodsComplete() bool {
	return p != nil && atomic.LoadUint32(&p.at.PodsComplete) != 0
}

// SetPodNetworks sets the pod networks and Service networks in the table. If the pod networks are few, and
// no Service network overlaps them, the programs need no lookup; after an error they do. Call LookUpPods
// before the table changes, and SetPodNetworks afterwards.
func (p *Prefilter) SetPodNetworks(pods, services []netip.Prefix) error {
	if p == nil || !p.pods {
		return nil
	}
	known, whole := podsAlone(pods, services)
	pods4, pods6 := prefilterNetworks(known, len(p.at.Pods4), largestNetworks)
	same := slices.Equal(pods4, p.at.Pods4[:]) && slices.Equal(pods6, p.at.Pods6[:])
	if same && whole == p.PodsComplete() {
		return nil
	}
	p.LookUpPods()
	if !same { // no program may compare addresses with a mix of old and new networks,
		if err := p.wait(); err != nil {
			return err
		}
		copy(p.at.Pods4[:], pods4)
		copy(p.at.Pods6[:], pods6)
	}
	if !whole {
		return nil
	}
	if err := p.wait(); err != nil { // and none that sees PodsComplete may have read an old one before
		return err
	}
	atomic.StoreUint32(&p.at.PodsComplete, 1)
	return nil
}

// podsAlone returns the pod networks that no Service network overlaps, and whether the programs have room
// for all pod networks.
func podsAlone(pods, services []netip.Prefix) (alone []netip.Prefix, whole bool) {
	mapped := netip.MustParsePrefix("::ffff:0:0/96") // the table's form of IPv4
	whole = true
	for _, p := range pods {
		if slices.ContainsFunc(services, p.Overlaps) || p.Overlaps(mapped) {
			whole = false
			continue
		}
		alone = append(alone, p)
	}
	v4, v6 := byFamily(alone)
	most := int(EdgeTCPrefilterSizePREFILTER_PODS)
	return alone, whole && len(joinNetworks(v4)) <= most && len(joinNetworks(v6)) <= most
}
