// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Flags of bpf_l4_csum_replace (include/uapi/linux/bpf.h).
const (
	pseudoHeaderFlag = 1 << 4 // BPF_F_PSEUDO_HDR
	ipv6Flag         = 1 << 7 // BPF_F_IPV6, Linux 6.16
)

// PseudoHeaderV6 returns this kernel's value of EdgeTCVarPseudoHeaderV6: the flags for a change of the
// pseudo header of an IPv6 packet. Without BPF_F_IPV6 a checksum that a device has computed becomes wrong
// if only an address changes (Linux commit ead7f9b8de65, 6.16).
var PseudoHeaderV6 = sync.OnceValue(func() uint64 {
	if acceptsChecksumFlags(pseudoHeaderFlag | ipv6Flag) {
		return pseudoHeaderFlag | ipv6Flag
	}
	return pseudoHeaderFlag
})

func acceptsChecksumFlags(flags int32) bool {
	return returnsZero(
		asm.Mov.Imm(asm.R2, 32), // offset
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Imm(asm.R4, 1), // difference
		asm.Mov.Imm(asm.R5, flags),
		asm.FnL4CsumReplace.Call(),
		asm.Return(),
	)
}

// returnsZero runs a program on a packet of its own.
func returnsZero(instructions ...asm.Instruction) bool {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: instructions})
	if err != nil {
		return false
	}
	defer p.Close()
	result, _, err := p.Test(make([]byte, 64))
	return err == nil && result == 0
}

// RouteLookupsTakeMarks reports whether the route look-up of programs takes the mark of a packet (Linux 6.10).
var RouteLookupsTakeMarks = sync.OnceValue(func() bool { return acceptsLookupFlags(1 << 5) }) // BPF_FIB_LOOKUP_MARK

// acceptsLookupFlags tries flags of bpf_fib_lookup.
func acceptsLookupFlags(flags int32) bool {
	const size = 64 // of struct bpf_fib_lookup
	instructions := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R7, 0)}
	for at := int16(-size); at < 0; at += 8 {
		instructions = append(instructions, asm.StoreMem(asm.RFP, at, asm.R7, asm.DWord))
	}
	return returnsZero(append(instructions,
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
	)...)
}
