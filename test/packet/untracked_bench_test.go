// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/packet/model"
)

// BenchmarkDirectFlows times a packet of one of some established flows (DSR, IPIP, IPv4, at XDP), with conntrack
// entries and without, to an address of the cluster and to a NodePort, at which each asks the kernel. Each is a test
// run of its own, so its time includes two clock reads.
func BenchmarkDirectFlows(b *testing.B) {
	for _, flows := range []int{1, 200_000} {
		for _, name := range []string{"recorded", "untracked", "untracked NodePort"} {
			b.Run(fmt.Sprintf("%d/%s", flows, name), func(b *testing.B) { benchmarkFlows(b, flows, name) })
		}
	}
}

func benchmarkFlows(b *testing.B, flows int, what string) {
	w := newWorld(b, limits{tracks: 1 << 19})
	w.apply(b, w.scene())
	if what != "recorded" {
		w.untracked(b)
	}
	if what == "untracked NodePort" {
		w.kinds(b, service.NodePort)
	}
	frames := make([][]byte, flows)
	for i := range frames {
		p := families[0].question(tcp, direct(toRemote, model.IPIP))
		p.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 200, byte(1 + i/60000)}), uint16(2000+i%60000))
		w.run(b, atXDP, p.frame(b))
		p.flags, p.seq = ack, p.seq+1
		frames[i] = p.frame(b)
		w.run(b, atXDP, frames[i])
	}
	var sum time.Duration
	n := 0
	for b.Loop() {
		took, action := w.timed(b, frames[n*7919%flows])
		if action != model.ActionSend {
			b.Fatalf("action %v, want %v", action, model.ActionSend)
		}
		sum += took
		n++
	}
	b.ReportMetric(float64(sum.Nanoseconds())/float64(n), "ns/packet")
}

// timed has XDP receive a frame once, and returns the kernel's time for it (union bpf_attr of
// BPF_PROG_TEST_RUN) and the action.
func (w *world) timed(b *testing.B, frame []byte) (time.Duration, model.Action) {
	const progTestRun = 10
	context := [6]uint32{1: uint32(len(frame)), 3: w.index["eth0"]}
	attr := struct {
		program, verdict       uint32
		length, room           uint32
		data, output           unsafe.Pointer
		repeat, duration       uint32
		contextLength, _       uint32
		context, _             unsafe.Pointer
		flags, cpu, batch, pad uint32
	}{
		program: uint32(w.xdp.FD()), length: uint32(len(frame)), data: unsafe.Pointer(&frame[0]), room: uint32(len(output)),
		output: unsafe.Pointer(&output[0]), repeat: 1, contextLength: uint32(unsafe.Sizeof(context)), context: unsafe.Pointer(&context),
	}
	if _, _, errno := unix.Syscall(unix.SYS_BPF, progTestRun, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)); errno != 0 {
		b.Fatal(errno)
	}
	action, ok := actions[atXDP][attr.verdict]
	if !ok {
		b.Fatalf("the program returned %d", attr.verdict)
	}
	return time.Duration(attr.duration), action
}
