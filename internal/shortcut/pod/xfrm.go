// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// xfrm finds the XFRM policies that the stack would apply to packets between pods: those for packets that it forwards.
func (f *finder) xfrm(s surroundings) ([]filter, error) {
	policies, err := f.network.XFRMPolicies()
	if err != nil {
		return nil, err
	}
	return s.xfrmFilters(policies), nil
}

// xfrmFilters returns the policies that may concern packets of each device, at most mostFilters and one more of each.
func (s *surroundings) xfrmFilters(policies []node.XFRMPolicy) (all []filter) {
	between := slices.DeleteFunc(policies, func(p node.XFRMPolicy) bool { return !s.isBetweenPods(&p) })
	if len(between) == 0 {
		return nil
	}
	found := map[int]int{} // by device
	for _, addr := range sortedAddresses(s.at) {
		device := s.at[addr].device
		for i := range between {
			p := &between[i]
			if found[device] > mostFilters {
				break
			}
			if p.Source.Contains(addr) || p.Destination.Contains(addr) {
				all = append(all, filter{device: device, what: p.String()})
				found[device]++
			}
		}
	}
	return all
}

// isBetweenPods reports whether a policy can match packets that take the shortcut from a pod to another one. These have
// no mark: a rule that sets one which a policy reads is a filter (marks.go). To an xfrm interface the shortcut sends as
// the stack does, so the interface applies the policies for its output; those for its input concern what arrives by it.
func (s *surroundings) isBetweenPods(p *node.XFRMPolicy) bool {
	if p.Direction == node.XFRMIn || !p.MatchesUnmarked() {
		return false
	}
	if p.Interface != 0 && (p.Direction == node.XFRMOut || !s.hasXFRMUplink()) {
		return false
	}
	return slices.ContainsFunc(s.networks, p.Source.Overlaps) && slices.ContainsFunc(s.networks, p.Destination.Overlaps)
}

func (s *surroundings) hasXFRMUplink() bool {
	return slices.ContainsFunc(s.uplinks, func(l netdev.Device) bool { return l.Kind == "xfrm" })
}
