// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/ti-mo/conntrack"
)

// KernelConntrack returns the value of the constant kernel_conntrack: 1 if programs can look up flows in the kernel's
// conntrack.
func KernelConntrack() uint8 {
	if KernelHas(ConntrackLookup) {
		return 1
	}
	return 0
}

// KernelEntries returns the value of the constant kernel_entries: 1 if programs can add entries to the kernel's
// conntrack.
func KernelEntries() uint8 {
	for _, name := range append([]string{ConntrackLookup, ConntrackTimeout}, conntrackInsertion...) {
		if !kernelHas()[name] {
			return 0
		}
	}
	return 1
}

// loadConntrack makes the kernel load the module nf_conntrack, if it is one: programs can call its functions only if
// it is loaded before them, and rules that need it may come later. A request to conntrack does that, also from a
// container: the kernel runs the host's modprobe.
func loadConntrack() {
	c, err := conntrack.Dial(nil)
	if err != nil {
		return // NoKernelFlows says so
	}
	defer c.Close()
	_, _ = c.StatsGlobal()
}

// fitBTF makes an object loadable on a kernel without BTF: it removes the relocations of accesses to the kernel's
// structures. They are in branches that the constants exclude.
func fitBTF(spec *ebpf.CollectionSpec) {
	if !kernelHas()[KernelTypes] {
		removeRelocations(spec)
	}
}

func removeRelocations(spec *ebpf.CollectionSpec) {
	for _, p := range spec.Programs {
		for i, ins := range p.Instructions {
			if btf.CORERelocationMetadata(&ins) == nil {
				continue
			}
			plain := asm.Instruction{OpCode: ins.OpCode, Dst: ins.Dst, Src: ins.Src, Offset: ins.Offset, Constant: ins.Constant}
			if f := btf.FuncMetadata(&ins); f != nil {
				plain = btf.WithFuncMetadata(plain, f)
			}
			p.Instructions[i] = plain.WithSymbol(ins.Symbol()).WithReference(ins.Reference())
		}
	}
}
