// SPDX-License-Identifier: Apache-2.0

package needs

import (
	"fmt"
	"io"
	"net"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A message of up to so many octets skips TCP in countsForSockmap.
const mostSkipped = 100

// countsForSockmap sends between two sockets by TCP, past it and by TCP again. It asks after each how much there is to
// read, and then reads all of it by one call. Programs must also show who reads: by the tracepoint, with BTF.
func countsForSockmap() (has bool, err error) {
	if has, err := hasTypeName("btf_trace_tcp_rcv_space_adjust"); !has {
		return false, err
	}
	from, to, err := tcpPair()
	if err != nil {
		return false, err
	}
	defer from.Close()
	defer to.Close()
	sockets, err := joined(from, to)
	if err != nil {
		return false, err
	}
	defer sockets.Close()
	sent := 0
	for _, size := range []int{10 * mostSkipped, mostSkipped, 10 * mostSkipped} {
		if _, err := from.Write(make([]byte, size)); err != nil {
			return false, err
		}
		sent += size
		if unread, err := unreadOf(to, sent); unread != sent {
			return false, err
		}
	}
	if err := to.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return false, err
	}
	n, err := to.Read(make([]byte, 2*sent))
	if err == nil && n < sent {
		_, err = io.ReadFull(to, make([]byte, sent-n)) // what is lost is no answer
	}
	return n == sent, err
}

// unreadOf asks a socket how much there is to read until it is all, or for a second.
func unreadOf(conn *net.TCPConn, all int) (unread int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	for end := time.Now().Add(time.Second); unread != all && time.Now().Before(end); time.Sleep(time.Millisecond) {
		var failed error
		if err := raw.Control(func(fd uintptr) { unread, failed = unix.IoctlGetInt(int(fd), unix.SIOCINQ) }); err != nil || failed != nil {
			return 0, fmt.Errorf("SIOCINQ: %v, %v", err, failed)
		}
	}
	return unread, nil
}

// joined is a map of two sockets by which short messages of the first skip TCP to the second.
func joined(from, to *net.TCPConn) (*ebpf.Map, error) {
	const keyOfReceiver, messageSize, pass = 1, 68, 1 // messageSize is an offset in struct sk_msg_md
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Name: "needs_sockets", Type: ebpf.SockMap, KeySize: 4, ValueSize: 4, MaxEntries: 2})
	if err != nil {
		return nil, err
	}
	programs := map[ebpf.AttachType]*ebpf.ProgramSpec{
		ebpf.AttachSkMsgVerdict: {Type: ebpf.SkMsg, Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, messageSize, asm.Word),
			asm.JGT.Imm(asm.R2, mostSkipped, "by TCP"),
			asm.LoadMapPtr(asm.R2, sockets.FD()),
			asm.Mov.Imm(asm.R3, keyOfReceiver),
			asm.Mov.Imm(asm.R4, unix.BPF_F_INGRESS),
			asm.FnMsgRedirectMap.Call(),
			asm.Return(),
			asm.Mov.Imm(asm.R0, pass).WithSymbol("by TCP"),
			asm.Return(),
		}},
		ebpf.AttachSkSKBVerdict: {Type: ebpf.SkSKB, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()}},
	}
	for hook, spec := range programs {
		spec.AttachType, spec.License = hook, "GPL"
		if err := attach(sockets, hook, spec); err != nil {
			sockets.Close()
			return nil, err
		}
	}
	for key, conn := range []*net.TCPConn{from, to} {
		if err := put(sockets, uint32(key), conn); err != nil {
			sockets.Close()
			return nil, err
		}
	}
	return sockets, nil
}

func attach(sockets *ebpf.Map, hook ebpf.AttachType, spec *ebpf.ProgramSpec) error {
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return err
	}
	defer p.Close()
	return link.RawAttachProgram(link.RawAttachProgramOptions{Target: sockets.FD(), Program: p, Attach: hook})
}

func put(sockets *ebpf.Map, key uint32, conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = sockets.Put(key, uint32(fd)) }); err != nil {
		return err
	}
	return failed
}

// tcpPair returns both ends of a new connection.
func tcpPair() (from, to *net.TCPConn, err error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if from, err = net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr)); err != nil {
		return nil, nil, err
	}
	if to, err = l.AcceptTCP(); err != nil {
		from.Close()
	}
	return from, to, err
}
