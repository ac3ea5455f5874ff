// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"fmt"
	"slices"

	"beeline.io/beeline/internal/node"
)

// reversePaths finds what lets the stack accept other sources than the program, at devices with strict reverse path
// filtering (bpf/pod/source.h): the program's lookup returns one of several next hops, and the stack accepts each; and
// rules for packets that arrive by the device apply to the program's lookup, but not to the stack's. A source that the
// program rejects would have only one direction of its flows on the stack, so such pods stay there.
func (s *surroundings) reversePaths() (all []filter) {
	for _, l := range s.uplinks {
		if s.network.rpFilters[l.index] != node.RPFilterStrict {
			continue
		}
		for _, r := range s.network.routes {
			if r.multipath && r.device == l.index && r.to.Addr().Is4() && slices.ContainsFunc(s.networks, r.to.Overlaps) {
				all = append(all, s.filtersAt(l.index, fmt.Sprintf("rp_filter=1 and several next hops to %s", r.to))...)
			}
		}
		if slices.Contains(s.network.ruleInputs, l.name) {
			all = append(all, s.filtersAt(l.index, "rp_filter=1 and a routing rule for its input")...)
		}
	}
	return all
}
