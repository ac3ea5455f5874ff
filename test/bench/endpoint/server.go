// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// A request is one byte, and so is its answer.
const (
	requestKeep  = 'k' // answer, and wait for the next
	requestClose = 'c' // answer, and close
)

type serverConfig struct {
	Port uint16 `json:"port"`
	CPU  int    `json:"cpu"`
}

// Server is a running server.
type Server struct {
	cmd   *lab.Cmd
	input io.Closer
}

// StartServer starts a server on a host, in both families, and returns when it
// listens. It ends with ctx, with Stop, or with this program.
func StartServer(ctx context.Context, host *lab.Host, port uint16, cpu int) (*Server, error) {
	cmd, err := command(ctx, host, partServer)
	if err != nil {
		return nil, err
	}
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	complaints := &strings.Builder{}
	cmd.Stderr = complaints
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &Server{cmd, input}
	err = json.NewEncoder(input).Encode(serverConfig{port, cpu})
	if err == nil {
		_, err = bufio.NewReader(output).ReadString('\n')
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("server in %s: %w: %s", host.Name, err, strings.TrimSpace(complaints.String()))
	}
	return s, nil
}

// PID of the server.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Pin moves the server to another CPU.
func (s *Server) Pin(cpu int) error { return pin(s.PID(), cpu) }

// Stop ends the server.
func (s *Server) Stop() {
	s.input.Close()
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// runServer answers until standard input ends.
func runServer(config serverConfig) error {
	if err := pin(os.Getpid(), config.CPU); err != nil {
		return err
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	listening := map[int]bool{}
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		fd, err := listen(any, config.Port)
		if err != nil {
			return err
		}
		listening[fd] = true
		if errno := epollAdd(epoll, fd, unix.EPOLLIN, int32(fd)); errno != 0 {
			return errno
		}
	}
	if errno := epollAdd(epoll, unix.Stdin, unix.EPOLLIN, int32(unix.Stdin)); errno != 0 {
		return errno
	}
	fmt.Println()
	return serve(epoll, listening)
}

func listen(addr netip.Addr, port uint16) (int, error) {
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(port)})
	if addr.Is6() {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(port)}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return -1, os.NewSyscallError("setsockopt", err)
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return -1, os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Bind(fd, sa); err != nil {
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, os.NewSyscallError("listen", unix.Listen(fd, unix.SOMAXCONN))
}

func serve(epoll int, listening map[int]bool) error {
	events := make([]unix.EpollEvent, 256)
	for {
		n, errno := epollWait(epoll, events, -1)
		if errno != 0 {
			return os.NewSyscallError("epoll_wait", errno)
		}
		for _, event := range events[:n] {
			fd := int(event.Fd)
			switch {
			case fd == unix.Stdin:
				return nil
			case listening[fd]:
				if err := welcome(epoll, fd); err != nil {
					return err
				}
			default:
				answer(fd)
			}
		}
	}
}

func welcome(epoll, listener int) error {
	conn, errno := accept(listener)
	switch errno {
	case 0:
		if errno := epollAdd(epoll, conn, unix.EPOLLIN, int32(conn)); errno != 0 {
			return os.NewSyscallError("epoll_ctl", errno)
		}
	case unix.EAGAIN, unix.ECONNABORTED: // the client has gone
	default:
		return os.NewSyscallError("accept", errno)
	}
	return nil
}

var buffer [1]byte

func answer(fd int) {
	n, errno := receive(fd, buffer[:])
	if errno == unix.EAGAIN {
		return
	}
	if n == 1 && errno == 0 {
		if _, errno = send(fd, buffer[:]); errno == 0 && buffer[0] == requestKeep {
			return
		}
	}
	closeFD(fd)
}
