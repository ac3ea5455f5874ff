// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// ReasonNames returns the names of enum edge_reason by value, in lower case without their prefix, such as
// "drop_no_port". They are in the BTF of the programs.
var ReasonNames = EnumNames(LoadEdgeTC, "edge_reason", "EDGE_", int(EdgeTCEdgeReasonEDGE_REASONS))

// EnumNames reads the names of the first n values of an enum from the BTF of an object, once: in lower case without
// a prefix.
func EnumNames(load func() (*ebpf.CollectionSpec, error), enum, prefix string, n int) func() ([]string, error) {
	return sync.OnceValues(func() ([]string, error) {
		spec, err := load()
		if err != nil {
			return nil, err
		}
		var found *btf.Enum
		if err := spec.Types.TypeByName(enum, &found); err != nil {
			return nil, err
		}
		names := make([]string, n)
		for _, v := range found.Values {
			if v.Value < uint64(n) {
				names[v.Value] = strings.ToLower(strings.TrimPrefix(v.Name, prefix))
			}
		}
		return names, nil
	})
}

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

// ErrOtherCounters means that counters and events are of another version of Beeline, whose reasons have
// other numbers.
var ErrOtherCounters = errors.New("the attached programs belong to another version of Beeline, with other reasons: start this version's agent, or use that version's command")
