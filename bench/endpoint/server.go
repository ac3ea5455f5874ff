// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// A request is one byte, and so is its reply.
const (
	requestKeep   = 'k' // answer, and wait for the next
	requestClose  = 'c' // answer, and close
	requestStream = 's' // answer nothing, and read everything
)

type serverConfig struct {
	Port uint16 `json:"port"`
	CPU  int    `json:"cpu"`
}

// Server is a running server.
type Server struct{ *talker }

// StartServer starts a server on a host, for TCP and UDP in both families, and returns when it listens. It ends
// with ctx, with Stop, or with this program.
func StartServer(ctx context.Context, host *lab.Host, port uint16, cpu int) (*Server, error) {
	t, err := startTalker(ctx, host, partServer, serverConfig{port, cpu})
	return &Server{t}, err
}

// PID is the server's process ID.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Pin moves the server to another CPU.
func (s *Server) Pin(cpu int) error { return pin(s.PID(), cpu) }

// runServer answers until standard input ends.
func runServer(config serverConfig) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	s := server{epoll: epoll, listening: map[int]bool{}, streams: map[int]bool{}, clients: map[int]*sockaddr{}}
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			if err := s.open(netip.AddrPortFrom(any, config.Port), kind); err != nil {
				return err
			}
		}
	}
	if errno := epollAdd(epoll, unix.Stdin, unix.EPOLLIN, int32(unix.Stdin)); errno != 0 {
		return errno
	}
	fmt.Println()
	return s.serve()
}

// server is the server's process.
type server struct {
	epoll     int
	listening map[int]bool
	streams   map[int]bool
	clients   map[int]*sockaddr // source of the latest datagram, by socket
	buffer    [1]byte
	stream    [StreamWrite]byte
}

func (s *server) open(at netip.AddrPort, kind int) error {
	fd, err := bound(at, kind|unix.SOCK_NONBLOCK)
	if err != nil {
		return err
	}
	if kind == unix.SOCK_DGRAM {
		s.clients[fd] = &sockaddr{family: sockaddrOf(at).family}
	} else {
		s.listening[fd] = true
		if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
			return os.NewSyscallError("listen", err)
		}
	}
	return os.NewSyscallError("epoll_ctl", errnoOrNil(epollAdd(s.epoll, fd, unix.EPOLLIN, int32(fd))))
}

// bound makes a socket with an address of its own, for one family.
func bound(at netip.AddrPort, kind int) (int, error) {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()})
	if at.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if kind&^unix.SOCK_NONBLOCK == unix.SOCK_STREAM {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return -1, os.NewSyscallError("setsockopt", err)
		}
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return -1, os.NewSyscallError("setsockopt", err)
		}
	}
	return fd, os.NewSyscallError("bind", unix.Bind(fd, sa))
}

func (s *server) serve() error {
	events := make([]unix.EpollEvent, 256)
	for {
		n, errno := epollWait(s.epoll, events, -1)
		if errno != 0 {
			return os.NewSyscallError("epoll_wait", errno)
		}
		for _, event := range events[:n] {
			fd := int(event.Fd)
			var err error
			switch {
			case fd == unix.Stdin:
				return nil
			case s.listening[fd]:
				err = s.welcome(fd)
			case s.streams[fd]:
				s.swallow(fd)
			case s.clients[fd] != nil:
				err = s.answerDatagram(fd, s.clients[fd])
			default:
				s.answer(fd)
			}
			if err != nil {
				return err
			}
		}
	}
}

func (s *server) welcome(listener int) error {
	conn, errno := accept(listener)
	switch errno {
	case 0:
		if errno := epollAdd(s.epoll, conn, unix.EPOLLIN, int32(conn)); errno != 0 {
			return os.NewSyscallError("epoll_ctl", errno)
		}
	case unix.EAGAIN, unix.ECONNABORTED: // the client is gone
	default:
		return os.NewSyscallError("accept", errno)
	}
	return nil
}

func (s *server) answer(fd int) {
	n, errno := receive(fd, s.buffer[:])
	if errno == unix.EAGAIN {
		return
	}
	if n == 1 && errno == 0 && s.buffer[0] == requestStream {
		s.streams[fd] = true
		return
	}
	if n == 1 && errno == 0 {
		if _, errno = send(fd, s.buffer[:]); errno == 0 && s.buffer[0] == requestKeep {
			return
		}
	}
	closeFD(fd)
}

// swallow reads the available bytes of a stream.
func (s *server) swallow(fd int) {
	if n, errno := receive(fd, s.stream[:]); n <= 0 && errno != unix.EAGAIN {
		delete(s.streams, fd)
		closeFD(fd)
	}
}

// answerDatagram sends a datagram back.
func (s *server) answerDatagram(fd int, client *sockaddr) error {
	switch _, errno := receiveFrom(fd, s.buffer[:], client); errno {
	case 0:
	case unix.EAGAIN:
		return nil
	default:
		return os.NewSyscallError("recvfrom", errno)
	}
	return os.NewSyscallError("sendto", errnoOrNil(sendTo(fd, s.buffer[:], client)))
}
