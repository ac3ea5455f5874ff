// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
)

// A native XDP program at the pod's own device drops what comes to the pod. bpf_redirect_peer would deliver past it.
func TestDropsOfXDPInPods(t *testing.T) {
	const data, end, protocol = asm.R2, asm.R3, asm.R4
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "drops_udp", Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(data, asm.R1, 0, asm.Word), asm.LoadMem(end, asm.R1, 4, asm.Word),
		asm.Mov.Imm(asm.R0, 2), // XDP_PASS
		asm.Mov.Reg(protocol, data), asm.Add.Imm(protocol, 24), asm.JGT.Reg(protocol, end, "out"),
		asm.LoadMem(protocol, data, 23, asm.Byte), asm.JNE.Imm(protocol, 17, "out"),
		asm.Mov.Imm(asm.R0, 1), // XDP_DROP
		asm.Return().WithSymbol("out"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	drops := []drop{}
	for _, from := range []string{"a1", "b1"} {
		var attached link.Link
		drops = append(drops, drop{name: "XDP, from " + from, from: from, to: "a2", do: func(w *world) {
			w.must(w.Host("a2").Do(func() error {
				device, err := net.InterfaceByName("eth0")
				if err != nil {
					return err
				}
				attached, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: device.Index, Flags: link.XDPDriverMode})
				return err
			}))
		}, undo: func(w *world) { w.must(attached.Close()) }, filter: "BPF program drops_udp"})
	}
	testDrops(t, lab.Shape{}, drops)
}

// A BPF program at a hook of netfilter drops what it drops on the stack.
func TestDropsOfNetfilterPrograms(t *testing.T) {
	needs.Kernel(t, needs.NetfilterHooks) // without, other tests would find the program, too
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
