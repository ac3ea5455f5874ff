// SPDX-License-Identifier: Apache-2.0

// Package testrun runs BPF programs on packets (BPF_PROG_TEST_RUN): it has the frames, and the programs that time
// others.
package testrun

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/internal/bpf"
)

// A Run has the kernel run a program on a packet, many times (BPF_PROG_TEST_RUN, Linux 4.12; with a context
// as here 5.10).
type Run struct {
	Program *ebpf.Program
	Packet  []byte
	Context []uint32 // struct xdp_md, or struct __sk_buff
	Repeat  uint32
}

// testRunAttributes is the part of union bpf_attr for this command.
type testRunAttributes struct {
	program, verdict          uint32
	packetLength, roomLength  uint32
	packet, room              uint64
	repeat, duration          uint32
	contextLength, contextOut uint32
	context, contextResult    uint64
	flags, cpu, batch, _      uint32
}

// Do returns the result of the last run, and the mean time of one in nanoseconds. The goroutine must be locked
// to its thread.
func (r Run) Do() (verdict uint32, packet []byte, nanoseconds float64, err error) {
	packet = make([]byte, 2*len(r.Packet))
	var pinned runtime.Pinner
	defer pinned.Unpin()
	at := func(p unsafe.Pointer) uint64 {
		pinned.Pin(p)
		return uint64(uintptr(p))
	}
	a := &testRunAttributes{
		program: uint32(r.Program.FD()), repeat: r.Repeat,
		packetLength: uint32(len(r.Packet)), packet: at(unsafe.Pointer(&r.Packet[0])),
		roomLength: uint32(len(packet)), room: at(unsafe.Pointer(&packet[0])),
		contextLength: uint32(4 * len(r.Context)), context: at(unsafe.Pointer(&r.Context[0])),
	}
	// A signal ends the runs: the Go runtime sends itself some.
	defer blockSignals()()
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
	runtime.KeepAlive(r.Program)
	if errno != 0 {
		return 0, nil, 0, fmt.Errorf("test run: %w", errno)
	}
	if a.roomLength > uint32(len(packet)) {
		return 0, nil, 0, errors.New("test run: the packet has more than doubled")
	}
	return a.verdict, packet[:a.roomLength], float64(a.duration), nil
}

// DoLive has the kernel run an XDP program on a new packet each time, and apply its verdict
// (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18), in the thread's network namespace.
func (r Run) DoLive(batch uint32) error {
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&r.Packet[0])
	a := &testRunAttributes{
		program: uint32(r.Program.FD()), repeat: r.Repeat, batch: batch, flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		packetLength: uint32(len(r.Packet)), packet: uint64(uintptr(unsafe.Pointer(&r.Packet[0]))),
	}
	defer blockSignals()()
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
	runtime.KeepAlive(r.Program)
	if errno != 0 {
		return fmt.Errorf("test run with live frames: %w", errno)
	}
	return nil
}

// blockSignals blocks signals on the calling thread until its result is called.
func blockSignals() (unblock func()) {
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if unix.PthreadSigmask(unix.SIG_BLOCK, &all, &before) != nil {
		return func() {}
	}
	return func() { unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }
}

//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types CostXDP cost_xdp.bpf.c -- -I../bpf
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types CostTC cost_tc.bpf.c -- -I../bpf

// FillMinimal gives the yardstick a Service, in its tables of bench/bpf/minimal.h.
func FillMinimal(tables map[string]*ebpf.Map, asked netip.AddrPort, protocol uint8, endpoints ...netip.Addr) error {
	var key struct {
		Address  [16]byte
		Port     uint16
		Protocol uint8
		_        uint8
	}
	key.Address, key.Port, key.Protocol = asked.Addr().As16(), bpf.NetworkOrder(asked.Port()), protocol
	if err := tables[CostXDPMapMinimalServices].Put(key, uint32(len(endpoints))); err != nil {
		return err
	}
	for i, a := range endpoints {
		var row struct {
			Address [16]byte
			Port    uint16
			_       uint16
		}
		row.Address, row.Port = a.As16(), bpf.NetworkOrder(harness.ServerPort)
		if err := tables[CostXDPMapMinimalBackends].Put(uint32(i), row); err != nil {
			return err
		}
	}
	return nil
}
