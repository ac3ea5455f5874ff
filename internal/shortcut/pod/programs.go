// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"maps"
	"slices"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/tcfilter"
)

// hooks finds programs in the links of tcx and netkit that are not Beeline's. What they do is not known: a program
// before Beeline's that ends the chain keeps packets from it, and one after it does not see those that it redirects.
func (f *finder) hooks(s surroundings) (all []filter, err error) {
	devices := slices.Collect(maps.Keys(s.behind))
	for _, l := range s.uplinks {
		devices = append(devices, l.Index)
	}
	for _, device := range devices {
		hooks := []tcfilter.Direction{tcfilter.Ingress, tcfilter.Egress}
		if l := s.network.device(device); l.Kind == "netkit" && l.Netkit.Primary {
			hooks = append(hooks, tcfilter.NetkitPrimary, tcfilter.NetkitPeer)
		}
		for _, hook := range hooks {
			if s.passed(device, hook) {
				continue
			}
			found, err := f.tc.Programs(device, hook)
			if err != nil {
				return nil, fmt.Errorf("query the programs at %s: %w", s.network.device(device).Name, err)
			}
			for _, what := range found {
				for _, one := range s.filtersAt(device, what) {
					one.atPeer = hook == tcfilter.NetkitPeer
					all = append(all, one)
				}
			}
		}
	}
	return all, nil
}

// policies finds netkit devices that drop packets into the pod, or from it, while no program is there that decides:
// the shortcut is none.
func (f *finder) policies(s surroundings) (all []filter, err error) {
	for device := range s.behind {
		l := s.network.device(device)
		if l.Netkit.Blackhole {
			all = append(all, s.filtersAt(device, "netkit policy blackhole")...)
		}
		if l.Netkit.PeerBlackhole {
			all = append(all, s.filtersAt(device, "netkit peer policy blackhole")...)
		}
	}
	return all, nil
}

// peers finds native XDP programs at the pods' own ends of veth pairs: bpf_redirect_peer delivers past them.
func (f *finder) peers(s surroundings) (all []filter, err error) {
	for device := range s.behind {
		l := s.network.device(device)
		if l.Kind != "veth" || !l.PeerElsewhere {
			continue
		}
		id, err := node.PeerXDP(l.PeerNamespace, l.Parent)
		if err != nil {
			return nil, err
		}
		if id != 0 {
			all = append(all, filter{device: device, what: fmt.Sprintf("BPF program %s (XDP at the pod's own device)", f.tc.NameOf(id))})
		}
	}
	return all, nil
}
