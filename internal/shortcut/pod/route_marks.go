// SPDX-License-Identifier: Apache-2.0

package pod

import "slices"

// tunnels are kinds of devices whose packets keep the mark of the outer packet.
var tunnels = []string{"vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan", "ipip", "ip6tnl", "sit", "vti", "vti6", "xfrm"}

// routeMarks finds tunnels whose packets the stack may route by a mark that the program's look-up does not take
// (bpf/pod/route.h), unless it does on this kernel. All other packets between pods arrive without a mark.
func (s *surroundings) routeMarks(taken bool) (all []filter) {
	if !s.network.ruleMarks || taken {
		return nil
	}
	for _, l := range s.uplinks {
		if slices.Contains(tunnels, l.Kind) {
			all = append(all, s.filtersAt(l.Index, "a routing rule by mark, before Linux 6.10, for packets")...)
		}
	}
	return all
}
