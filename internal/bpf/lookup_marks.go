// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// RouteLookupsTakeMarks reports whether the route look-up of programs takes the mark of a packet (Linux 6.10).
var RouteLookupsTakeMarks = sync.OnceValue(func() bool { return acceptsLookupFlags(1 << 5) }) // BPF_FIB_LOOKUP_MARK

// acceptsLookupFlags tries flags of bpf_fib_lookup in a program on a packet of its own.
func acceptsLookupFlags(flags int32) bool {
	const size = 64 // of struct bpf_fib_lookup
	instructions := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R7, 0)}
	for at := int16(-size); at < 0; at += 8 {
		instructions = append(instructions, asm.StoreMem(asm.RFP, at, asm.R7, asm.DWord))
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: append(instructions,
			asm.StoreImm(asm.RFP, -size, unix.AF_INET, asm.Byte),
			asm.StoreImm(asm.RFP, -size+8, 1, asm.Word), // ifindex: the loopback device
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -size),
			asm.Mov.Imm(asm.R3, size),
			asm.Mov.Imm(asm.R4, flags),
			asm.FnFibLookup.Call(),
			asm.RSh.Imm(asm.R0, 31), // the sign: an error
			asm.And.Imm(asm.R0, 1),
			asm.Return(),
		),
	})
	if err != nil {
		return false
	}
	defer p.Close()
	failed, _, err := p.Test(make([]byte, 64))
	return err == nil && failed == 0
}
