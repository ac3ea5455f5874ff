// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// ReasonNames returns the names of enum edge_reason by value, in lower case without their prefix, such as
// "drop_no_port". They are in the BTF of the programs.
var ReasonNames = EnumNames(LoadEdgeTC, "edge_reason", "EDGE_", int(EdgeTCEdgeReasonEDGE_REASONS))

// ReasonName returns the name of a value of enum edge_reason, as in ReasonNames.
func ReasonName(reason uint8) string {
	names, err := ReasonNames()
	if err != nil || int(reason) >= len(names) {
		return fmt.Sprintf("reason_%d", reason)
	}
	return names[reason]
}

// ReadEdgeCounters sums the counters of the edge over all CPUs, by ReasonNames; nil if there is no edge.
//
// Errors: ErrOtherCounters.
func ReadEdgeCounters(bpffs string) (map[string]uint64, error) {
	perCPU, err := PinnedCounters[EdgeTCEdgeCounters](bpffs, EdgeTCMapEdgeCounts, "the edge's counters")
	if perCPU == nil || err != nil {
		return nil, err
	}
	names, err := ReasonNames()
	if err != nil {
		return nil, fmt.Errorf("the names of the edge's counters: %w", err)
	}
	sum := map[string]uint64{}
	for _, c := range perCPU {
		AddByName(sum, names, c.Count[:])
	}
	return sum, nil
}
