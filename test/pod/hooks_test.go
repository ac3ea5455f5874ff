// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/internal/netfilter"
	"beeline.io/beeline/test/lab"
)

// A BPF program at a hook of netfilter drops what it drops on the stack.
func TestDropsOfNetfilterPrograms(t *testing.T) {
	if err := netfilter.ListsFunctions(); errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("other tests would find the program, too: %v", err)
	}
	var attached link.Link
	testDrops(t, lab.Shape{}, []drop{{name: "BPF program at forward", from: "a1", to: "a2", do: func(w *world) {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "drops", Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		w.must(err)
		defer p.Close()
		w.must(w.Host("node-a").Do(func() (err error) {
			attached, err = link.AttachNetfilter(link.NetfilterOptions{Program: p, ProtocolFamily: link.NetfilterProtoIPv4, Hook: link.NetfilterInetForward, Priority: 7})
			return err
		}))
	}, undo: func(w *world) { w.must(attached.Close()) }, filter: "BPF program"}})
}
