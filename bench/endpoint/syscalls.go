// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the measured loops. They do not inform the Go scheduler, which would wake another thread
// when one of them blocks: here there is no other work.

// A sockaddr is an address in the kernel's format, made once.
type sockaddr struct {
	family int
	v4     unix.RawSockaddrInet4
	v6     unix.RawSockaddrInet6
	size   uint32 // for the kernel to fill in
}

func sockaddrOf(a netip.AddrPort) *sockaddr {
	port := a.Port()<<8 | a.Port()>>8 // programs and tables are for little-endian machines
	if a.Addr().Is4() {
		return &sockaddr{family: unix.AF_INET, v4: unix.RawSockaddrInet4{Family: unix.AF_INET, Port: port, Addr: a.Addr().As4()}}
	}
	return &sockaddr{family: unix.AF_INET6, v6: unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: port, Addr: a.Addr().As16()}}
}

func (s *sockaddr) raw() (unsafe.Pointer, uintptr) {
	if s.family == unix.AF_INET {
		return unsafe.Pointer(&s.v4), unix.SizeofSockaddrInet4
	}
	return unsafe.Pointer(&s.v6), unix.SizeofSockaddrInet6
}

// is reports whether two have the same address and port.
func (s *sockaddr) is(other *sockaddr) bool {
	return s.family == other.family && s.v4.Addr == other.v4.Addr && s.v4.Port == other.v4.Port &&
		s.v6.Addr == other.v6.Addr && s.v6.Port == other.v6.Port
}

// addrPort is for messages.
func (s *sockaddr) addrPort() netip.AddrPort {
	addr, port := netip.AddrFrom16(s.v6.Addr), s.v6.Port
	if s.family == unix.AF_INET {
		addr, port = netip.AddrFrom4(s.v4.Addr), s.v4.Port
	}
	return netip.AddrPortFrom(addr, port<<8|port>>8)
}

func socket(family, kind int) (int, unix.Errno) {
	fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(family), uintptr(kind), 0)
	return int(fd), errno
}

func connect(fd int, to *sockaddr) unix.Errno {
	p, size := to.raw()
	_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(p), size)
	return errno
}

func bind(fd int, to *sockaddr) unix.Errno {
	p, size := to.raw()
	_, _, errno := unix.RawSyscall(unix.SYS_BIND, uintptr(fd), uintptr(p), size)
	return errno
}

// acceptFrom sets the source of a connection. The family of `from` is the socket's.
func acceptFrom(fd int, from *sockaddr) (int, unix.Errno) {
	p, size := from.raw()
	from.size = uint32(size)
	conn, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), uintptr(p), uintptr(unsafe.Pointer(&from.size)),
		unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return int(conn), errno
}

func accept(fd int) (int, unix.Errno) {
	conn, _, errno := unix.RawSyscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
	return int(conn), errno
}

func send(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

func receive(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	return int(n), errno
}

func sendTo(fd int, b []byte, to *sockaddr) unix.Errno {
	p, size := to.raw()
	_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_NOSIGNAL, uintptr(p), size)
	return errno
}

// receiveFrom sets the source of a datagram. The family of `from` is the socket's.
func receiveFrom(fd int, b []byte, from *sockaddr) (int, unix.Errno) {
	p, size := from.raw()
	from.size = uint32(size)
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		0, uintptr(p), uintptr(unsafe.Pointer(&from.size)))
	return int(n), errno
}

func closeFD(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// lingerZero makes close(2) end a connection by a reset.
var lingerZero = unix.Linger{Onoff: 1, Linger: 0}

func resetOnClose(fd int) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER,
		uintptr(unsafe.Pointer(&lingerZero)), unsafe.Sizeof(lingerZero), 0)
	return errno
}

func epollAdd(epoll, fd int, events uint32, data int32) unix.Errno {
	event := unix.EpollEvent{Events: events, Fd: data}
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epoll), unix.EPOLL_CTL_ADD, uintptr(fd),
		uintptr(unsafe.Pointer(&event)), 0, 0)
	return errno
}

// epollWait returns 0 events after the timeout in milliseconds; -1 means no timeout.
func epollWait(epoll int, events []unix.EpollEvent, timeout int) (int, unix.Errno) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])),
			uintptr(len(events)), uintptr(timeout), 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}
