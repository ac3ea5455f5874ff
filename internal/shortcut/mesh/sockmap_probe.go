// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// lacksForMessages returns why messages should not skip TCP under this kernel; empty: they may.
func lacksForMessages() string {
	if err := tryRead(); err != nil {
		return fmt.Sprintf("messages between applications and proxies take TCP: this kernel does not show who reads by splice(2): %v", err)
	}
	if err := tryMessages(); err != nil {
		return fmt.Sprintf("messages between applications and proxies take TCP: %v", err)
	}
	return ""
}

// tryRead attaches a program as attachRead does. Which system call sends is known for two architectures
// (bpf/mesh/syscall.h).
func tryRead() error {
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

// tryMessages sends by TCP, past it and by TCP again between two sockets of its own. The receiver asks how much
// there is to read (SIOCINQ), and reads all of it by one call. Many kernels count one of the two kinds alone: then
// nginx, which asks, and other programs that wait after a short read wait forever for what is there.
func tryMessages() error {
	const past, byTCP = 500, 2000 // octets of messages
	from, to, err := loopbackPair()
	if err != nil {
		return err
	}
	defer from.Close()
	defer to.Close()
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Name: "probe_sockets", Type: ebpf.SockHash, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		return err
	}
	defer sockets.Close()
	for hook, spec := range map[ebpf.AttachType]*ebpf.ProgramSpec{ebpf.AttachSkMsgVerdict: redirectShort(sockets, 1, past), ebpf.AttachSkSKBVerdict: keepReceived()} {
		program, err := ebpf.NewProgram(spec)
		if err != nil {
			return err
		}
		defer program.Close()
		if err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: sockets.FD(), Program: program, Attach: hook}); err != nil {
			return err
		}
	}
	for key, conn := range []*net.TCPConn{from, to} {
		if err := withFD(conn, func(fd int) error { return sockets.Put(uint32(key), uint64(fd)) }); err != nil {
			return err
		}
	}
	sent, unread := 0, 0
	for _, size := range []int{byTCP, past, byTCP} {
		if _, err := from.Write(make([]byte, size)); err != nil {
			return err
		}
		sent += size
		for end := time.Now().Add(time.Second); unread != sent && time.Now().Before(end); time.Sleep(time.Millisecond) {
			if err := withFD(to, func(fd int) (err error) { unread, err = unix.IoctlGetInt(fd, unix.SIOCINQ); return err }); err != nil {
				return err
			}
		}
		if unread != sent {
			return fmt.Errorf("this kernel answers %d and not %d to the ioctl SIOCINQ of a socket some of whose data skipped TCP, and nginx would stall", unread, sent)
		}
	}
	if n, err := to.Read(make([]byte, 2*sent)); n != sent || err != nil {
		return fmt.Errorf("under this kernel a read returns %d and not %d octets from a socket some of whose data skipped TCP, and programs that wait after a short read would stall (%v)", n, sent, err)
	}
	return nil
}

// redirectShort returns a program that redirects each message of at most so many octets to the socket with a key.
func redirectShort(sockets *ebpf.Map, key, most int32) *ebpf.ProgramSpec {
	const messageSize = 68 // struct sk_msg_md
	return &ebpf.ProgramSpec{Name: "probe_redirect", Type: ebpf.SkMsg, AttachType: ebpf.AttachSkMsgVerdict, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, messageSize, asm.Word),
			asm.JGT.Imm(asm.R2, most, "pass"),
			asm.StoreImm(asm.RFP, -4, int64(key), asm.Word),
			asm.LoadMapPtr(asm.R2, sockets.FD()),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -4),
			asm.Mov.Imm(asm.R4, unix.BPF_F_INGRESS),
			asm.FnMsgRedirectHash.Call(),
			asm.Return(),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
			asm.Return(),
		}}
}

// keepReceived returns a program that leaves what TCP receives to its socket, as beeline_mesh_receive does.
func keepReceived() *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{Name: "probe_receive", Type: ebpf.SkSKB, AttachType: ebpf.AttachSkSKBVerdict, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}}
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
