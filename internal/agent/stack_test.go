// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// The bound of the verifier for the stacks of all functions that call each other, and what it rounds each of them up to
// before Linux 6.8 (check_max_stack_depth; later kernels round to 16).
const (
	maxStack   = 512
	stackAlign = 32
)

// TestStacksFitOldKernels: no program needs more stack than Linux 6.1 allows. The verifier of the kernel that runs
// the tests may round less.
func TestStacksFitOldKernels(t *testing.T) {
	for object, load := range bpfObjects {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for name, program := range spec.Programs {
			if depth, chain := deepestStack(program); depth > maxStack {
				t.Errorf("%s: program %s: %d bytes of stack, %d allowed: %s", object, name, depth, maxStack, strings.Join(chain, " -> "))
			}
		}
	}
}

// deepestStack returns the most bytes of stack that a program needs, and the calls that need them: each function with
// its own bytes.
func deepestStack(program *ebpf.ProgramSpec) (int, []string) {
	own, calls := map[string]int{}, map[string][]string{}
	function := ""
	for i, ins := range program.Instructions {
		if symbol := ins.Symbol(); symbol != "" {
			function = symbol
		}
		own[function] = max(own[function], stackUse(program.Instructions, i))
		if ins.IsFunctionReference() {
			calls[function] = append(calls[function], ins.Reference())
		}
	}
	var deepest func(function string) (int, []string)
	deepest = func(function string) (int, []string) {
		below, chain := 0, []string(nil)
		for _, callee := range calls[function] {
			if depth, c := deepest(callee); depth > below {
				below, chain = depth, c
			}
		}
		size := (max(own[function], 1) + stackAlign - 1) / stackAlign * stackAlign
		return size + below, append([]string{fmt.Sprintf("%s %d", function, own[function])}, chain...)
	}
	return deepest(program.Instructions[0].Symbol())
}

// stackUse returns how far below the frame pointer an instruction reaches: by an access, or by an address that is
// made of the frame pointer.
func stackUse(insns asm.Instructions, i int) int {
	ins := insns[i]
	switch class := ins.OpCode.Class(); {
	case class.IsLoad() && ins.Src == asm.RFP, class.IsStore() && ins.Dst == asm.RFP:
		return -int(ins.Offset)
	case class == asm.ALU64Class && ins.OpCode.ALUOp() == asm.Add && ins.OpCode.Source() == asm.ImmSource && i > 0:
		before := insns[i-1]
		if before.OpCode.ALUOp() == asm.Mov && before.Src == asm.RFP && before.Dst == ins.Dst {
			return -int(ins.Constant)
		}
	}
	return 0
}
