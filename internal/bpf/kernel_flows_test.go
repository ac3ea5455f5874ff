// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Without the kernel's BTF the edge loads, and asks sockets alone: no relocation is left, and the kernel's functions
// are in branches that the constants exclude.
func TestEdgeLoadsWithoutRelocations(t *testing.T) {
	for _, load := range []func() (*ebpf.CollectionSpec, error){LoadEdgeTC, LoadEdgeXDP} {
		spec, err := load()
		must(t, err)
		removeRelocations(spec)
		for name, p := range spec.Programs {
			for i := range p.Instructions {
				if btf.CORERelocationMetadata(&p.Instructions[i]) != nil {
					t.Errorf("%s has a relocation left", name)
				}
			}
		}
		for name, m := range spec.Maps {
			if name[0] != '.' && m.MaxEntries == 0 {
				m.MaxEntries = 1
			}
		}
		loaded, err := ebpf.NewCollection(spec)
		must(t, err)
		loaded.Close()
	}
}
