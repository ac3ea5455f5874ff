// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
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

// acceptsChecksumFlags tries flags in a program on a packet of its own.
func acceptsChecksumFlags(flags int64) bool {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, 32), // offset
			asm.Mov.Imm(asm.R3, 0),
			asm.Mov.Imm(asm.R4, 1), // difference
			asm.Mov.Imm(asm.R5, int32(flags)),
			asm.FnL4CsumReplace.Call(),
			asm.Return(),
		},
	})
	if err != nil {
		return false
	}
	defer p.Close()
	result, _, err := p.Test(make([]byte, 64))
	return err == nil && result == 0
}
