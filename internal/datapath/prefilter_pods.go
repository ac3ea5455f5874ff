// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"slices"
	"sync/atomic"
)

// LookUpPods has the programs look in the table of networks for those of pods, until
// SetPodNetworks has said what is there. Call it before that table changes.
func (d *Prefilter) LookUpPods() {
	if d != nil {
		atomic.StoreUint32(&d.at.PodsComplete, 0)
	}
}

// PodsComplete says whether the programs know all networks of pods without the table.
func (d *Prefilter) PodsComplete() bool {
	return d != nil && atomic.LoadUint32(&d.at.PodsComplete) != 0
}

// SetPodNetworks says which networks of pods and of Services are in the table. Where those of
// pods are few, and no Service's is among them, the programs need not look there. With an error
// they do. Who changes the table calls it, and has called LookUpPods before.
func (d *Prefilter) SetPodNetworks(pods, services []netip.Prefix) error {
	if d == nil {
		return nil
	}
	known, whole := podsAlone(pods, services)
	pods4, pods6 := prefilterNetworks(known, len(d.at.Pods4), largestNetworks)
	same := slices.Equal(pods4, d.at.Pods4[:]) && slices.Equal(pods6, d.at.Pods6[:])
	if same && whole == d.PodsComplete() {
		return nil
	}
	d.LookUpPods()
	if !same { // no program compares addresses with some of the old networks and some of the new ones,
		if err := d.wait(); err != nil {
			return err
		}
		copy(d.at.Pods4[:], pods4)
		copy(d.at.Pods6[:], pods6)
	}
	if !whole {
		return nil
	}
	if err := d.wait(); err != nil { // and none that finds them whole has read one before
		return err
	}
	atomic.StoreUint32(&d.at.PodsComplete, 1)
	return nil
}

// podsAlone are the networks of pods that no Service's overlaps, and whether the programs have
// room for all networks of pods.
func podsAlone(pods, services []netip.Prefix) (alone []netip.Prefix, whole bool) {
	mapped := netip.MustParsePrefix("::ffff:0:0/96") // what the table has for IPv4
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
