// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"slices"

	"beeline.io/beeline/internal/node"
)

// reversePaths finds what lets the stack accept other sources than the program, at devices with reverse path filtering
// (bpf/pod/source.h). Of several next hops the program's lookup returns one, and with strict filtering the stack
// accepts each. The stack looks up the way back as if the packet had arrived by the device that it is to leave by, the
// program by the device where it did arrive, so rules for an input device differ. A source that the program rejects
// would have only one direction of its flows on the stack, so such pods stay there.
func (s *surroundings) reversePaths() (all []filter) {
	for _, l := range s.uplinks {
		filtering := s.network.rpFilters[l.Index]
		for _, r := range s.network.routes {
			if filtering == node.RPFilterStrict && r.multipath && r.device == l.Index && r.to.Addr().Is4() && slices.ContainsFunc(s.networks, r.to.Overlaps) {
				all = append(all, s.filtersAt(l.Index, fmt.Sprintf("rp_filter=1 and several next hops to %s", r.to))...)
			}
		}
		for _, input := range s.network.ruleInputs {
			if filtering != 0 {
				all = append(all, s.filtersAt(l.Index, fmt.Sprintf("a routing rule for input by %s, and rp_filter=%d", input, filtering))...)
			}
		}
	}
	return all
}
