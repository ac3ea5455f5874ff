// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
)

// withoutEdge returns the edge with its tables, as an agent has it that disables the edge.
func withoutEdge() *bpf.Component { return bpf.Edge(func() *bpf.EdgeOptions { return nil }) }

// TestRegistryIsConsistent: each pinned table is in the first object of its component, which makes it, and
// has a copy rule that its type allows.
func TestRegistryIsConsistent(t *testing.T) {
	position := map[string]int{}
	for component, load := range map[*bpf.Component]func() (*ebpf.CollectionSpec, error){bpf.Socket(): bpf.LoadSock, withoutEdge(): bpf.LoadEdgeTC} {
		spec, err := load()
		must(t, err)
		for i := range component.Tables {
			table := &component.Tables[i]
			position[table.Name] = i
			m := spec.Maps[table.Name]
			switch {
			case !table.Pinned() && table.Copy != nil:
				t.Errorf("%s is not pinned, and has a copy rule", table.Name)
			case !table.Pinned():
			case m == nil:
				t.Errorf("%s: the object of component %s does not have it", table.Name, component.Name)
			case (m.Type == ebpf.SkStorage) != (table.Copy == nil):
				t.Errorf("%s: socket storage must have no copy rule, all others must have one", table.Name)
			case table.Size(bpf.DefaultLimits) == 0 && m.MaxEntries == 1 && m.Type == ebpf.Hash:
				t.Errorf("%s: nothing sizes it", table.Name)
			}
		}
	}
	for entries, tags := range bpf.ConntrackTags {
		if position[tags] < position[entries] {
			t.Errorf("%s must follow %s, whose copy it needs", tags, entries)
		}
	}
}

// TestFlagsOfASize: an error names the flags for tables whose size was being changed: with those values all tables have
// the size that they had with the original ones.
func TestFlagsOfASize(t *testing.T) {
	all := slices.Concat(bpf.Socket().Tables, withoutEdge().Tables)
	for _, flows := range []uint32{bpf.MinFlows, 1000, 4097, 16384, 65535, 131073, 262144, 999983, 3000001} {
		for _, affinity := range []uint32{1, 1000, 65536, 70001} {
			given := bpf.Limits{Flows: flows, Affinity: affinity}
			var named bpf.Limits
			for i := range all {
				if table := &all[i]; table.Follow != nil && table.Limit != nil {
					limit := table.Limit.In(&named)
					*limit = max(*limit, table.LimitFor(table.Size(given)))
				}
			}
			for i := range all {
				if table := &all[i]; table.Limit != nil && table.Follow != nil && table.Size(named) != table.Size(given) {
					t.Errorf("%s has size %d with %+v and %d with %+v", table.Name, table.Size(given), given, table.Size(named), named)
				}
			}
		}
	}
}
