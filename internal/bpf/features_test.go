// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"beeline.io/beeline/test/needs"
)

// TestFeatures: this kernel has what the tests need, and each missing feature has a cost.
func TestFeatures(t *testing.T) {
	for _, f := range Features() {
		if f.Required && !f.Present {
			t.Errorf("missing: %+v", f)
		}
		if f.Present != (f.EffectOfAbsence == "") {
			t.Errorf("a feature has a cost if and only if it is missing: %+v", f)
		}
	}
}

// The kernel tells which flags bpf_fib_lookup has.
func TestLookupFlags(t *testing.T) {
	needs.Root(t)
	if !acceptsLookupFlags(0) {
		t.Error("a look-up without flags is refused")
	}
	if acceptsLookupFlags(1 << 12) {
		t.Error("a flag that does not exist is accepted")
	}
}

// The kernel tells which flags bpf_l4_csum_replace has.
func TestChecksumFlags(t *testing.T) {
	needs.Root(t)
	if !acceptsChecksumFlags(pseudoHeaderFlag) {
		t.Error("the flag BPF_F_PSEUDO_HDR of Linux 3.18 is refused")
	}
	if acceptsChecksumFlags(pseudoHeaderFlag | 1<<12) {
		t.Error("a flag that does not exist is accepted")
	}
}

func TestFlowsForMemory(t *testing.T) {
	for memory, want := range map[uint64]uint32{1 << 30: 23831, 256 << 20: minDefaultFlows, 1 << 40: maxFlows} {
		if got := flowsFor(memory); got != want {
			t.Errorf("%d bytes of memory: %d flows, want %d", memory, got, want)
		}
	}
}
