// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// OwnEntryMark is the mark of the entries in the kernel's conntrack that programs add for flows of the edge.
const OwnEntryMark = 0xbee11e00

// SetKernelRoom lets programs add entries to the kernel's conntrack until a time, in seconds of CLOCK_MONOTONIC; 0: not
// now.
func (d EdgeKernel) SetKernelRoom(until uint32) error {
	if err := d.Map(EdgeTCMapKernelRoom).Put(uint32(0), until); err != nil {
		return fmt.Errorf("write table %s: %w", EdgeTCMapKernelRoom, err)
	}
	return nil
}

// NoKernelFlows returns why the edge cannot ask the kernel's conntrack; empty: it can.
func NoKernelFlows() string {
	if KernelConntrack() == 1 {
		return ""
	}
	if !KernelHas(KernelTypes) {
		return "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"
	}
	return "the kernel's BTF lacks bpf_skb_ct_lookup (Linux 5.18, module nf_conntrack with CONFIG_DEBUG_INFO_BTF_MODULES)"
}
