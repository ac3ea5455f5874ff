// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// lacksForMessages returns why messages should not skip TCP under this kernel; empty: they may. It sends one between
// two sockets of its own and asks the receiver how much there is to read (SIOCINQ): many kernels answer 0, and nginx,
// which asks, then waits forever for what is there.
func lacksForMessages() string {
	if err := tryMeshRead(); err != nil {
		return fmt.Sprintf("messages between applications and proxies take TCP: this kernel does not show who reads by splice(2): %v", err)
	}
	const sent = 5
	unread, err := unreadOfMessage(make([]byte, sent))
	switch {
	case err != nil:
		return fmt.Sprintf("messages between applications and proxies take TCP: a trial failed: %v", err)
	case unread != sent:
		return fmt.Sprintf("messages between applications and proxies take TCP: this kernel answers %d and not %d to the ioctl SIOCINQ of a socket whose data skipped TCP, and nginx would stall", unread, sent)
	}
	return ""
}

// tryMeshRead attaches a program as attachMeshRead does. Which system call sends is known for two architectures
// (bpf/mesh/syscall.h).
func tryMeshRead() error {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return fmt.Errorf("system calls of %s are unknown", runtime.GOARCH)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "probe_read", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: "tcp_rcv_space_adjust",
		License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return err
	}
	defer program.Close()
	l, err := link.AttachTracing(link.TracingOptions{Program: program})
	if err != nil {
		return err
	}
	return l.Close()
}

// unreadOfMessage sends a message that skips TCP, and returns how much the kernel says is to be read.
func unreadOfMessage(message []byte) (unread int, err error) {
	from, to, err := loopbackPair()
	if err != nil {
		return 0, err
	}
	defer from.Close()
	defer to.Close()
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Name: "probe_sockets", Type: ebpf.SockHash, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		return 0, err
	}
	defer sockets.Close()
	program, err := ebpf.NewProgram(redirectTo(sockets, 1))
	if err != nil {
		return 0, err
	}
	defer program.Close()
	target := link.RawAttachProgramOptions{Target: sockets.FD(), Program: program, Attach: ebpf.AttachSkMsgVerdict}
	if err := link.RawAttachProgram(target); err != nil {
		return 0, err
	}
	for key, conn := range []*net.TCPConn{from, to} {
		if err := withFD(conn, func(fd int) error { return sockets.Put(uint32(key), uint64(fd)) }); err != nil {
			return 0, err
		}
	}
	if _, err := from.Write(message); err != nil {
		return 0, err
	}
	err = withFD(to, func(fd int) (err error) {
		unread, err = unix.IoctlGetInt(fd, unix.SIOCINQ)
		return err
	})
	return unread, err
}

// redirectTo returns a program that redirects each message to the socket with a key.
func redirectTo(sockets *ebpf.Map, key int32) *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{Name: "probe_redirect", Type: ebpf.SkMsg, AttachType: ebpf.AttachSkMsgVerdict, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, int64(key), asm.Word),
			asm.LoadMapPtr(asm.R2, sockets.FD()),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -4),
			asm.Mov.Imm(asm.R4, unix.BPF_F_INGRESS),
			asm.FnMsgRedirectHash.Call(),
			asm.Return(),
		}}
}

// loopbackPair returns both ends of a new connection.
func loopbackPair() (from, to *net.TCPConn, err error) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, err
	}
	defer listener.Close()
	if from, err = net.DialTCP("tcp4", nil, listener.Addr().(*net.TCPAddr)); err != nil {
		return nil, nil, err
	}
	if to, err = listener.AcceptTCP(); err != nil {
		from.Close()
	}
	return from, to, err
}

// withFD calls f with the descriptor of a connection.
func withFD(conn *net.TCPConn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}
