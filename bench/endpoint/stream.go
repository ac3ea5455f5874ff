// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stuck is when a client without a reply gives up: a CPU of a busy machine may pause for seconds.
const stuck = 60_000 // milliseconds

// streams are TCP connections of a client.
type streams struct {
	*client
	close   bool // after each reply
	request [1]byte
	conns   []conn
}

// conn is one of the concurrent connections.
type conn struct {
	fd    int
	begun time.Time // of the current operation
	sent  bool
}

func newStreams(c *client) *streams {
	s := &streams{client: c, request: [1]byte{requestKeep}, conns: make([]conn, c.Connections)}
	if c.Mode == ConnectRequestClose {
		s.close, s.request[0] = true, requestClose
	}
	return s
}

func (s *streams) loop() error {
	for i := range s.conns {
		if err := s.open(i); err != nil {
			return err
		}
	}
	s.meter.window.warmUp(s.Warmup, s.Measure, s.Processes)
	for {
		n, errno := epollWait(s.epoll, s.events, stuck)
		if errno != 0 {
			return os.NewSyscallError("epoll_wait", errno)
		}
		if n == 0 {
			return fmt.Errorf("no answer from %s for %d ms", s.Target, stuck)
		}
		for _, event := range s.events[:n] {
			if err := s.ready(int(event.Fd), event.Events); err != nil {
				return err
			}
		}
		if s.meter.window.ended {
			return s.closeAll()
		}
	}
}

// open begins an operation with a new connection.
func (s *streams) open(i int) error {
	begun := time.Now()
	fd, errno := socket(s.target.family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if errno != 0 {
		return os.NewSyscallError("socket", errno)
	}
	if errno := resetOnClose(fd); errno != 0 {
		return os.NewSyscallError("setsockopt", errno)
	}
	s.result.Connected++
	if errno := connect(fd, s.target); errno != 0 && errno != unix.EINPROGRESS {
		return fmt.Errorf("connect to %s: %w", s.Target, errno)
	}
	s.conns[i] = conn{fd: fd, begun: begun}
	// Edge-triggered: one call reports both the connection and the reply.
	return os.NewSyscallError("epoll_ctl", errnoOrNil(epollAdd(s.epoll, fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLET, int32(i))))
}

// ready handles a connection after an event of epoll.
func (s *streams) ready(i int, events uint32) error {
	conn := &s.conns[i]
	if !conn.sent {
		return s.ask(conn)
	}
	if events&unix.EPOLLIN == 0 {
		return nil
	}
	var answer [1]byte
	n, errno := receive(conn.fd, answer[:])
	if errno == unix.EAGAIN {
		return nil
	}
	if n != 1 || errno != 0 {
		return fmt.Errorf("answer of %d bytes from %s: %w", n, s.Target, errno)
	}
	if s.close {
		closeFD(conn.fd)
	}
	now := time.Now()
	s.meter.note(conn.begun, now)
	if s.meter.window.ended {
		return nil
	}
	if s.close {
		return s.open(i)
	}
	conn.begun = now
	return s.ask(conn)
}

func (s *streams) ask(conn *conn) error {
	_, errno := send(conn.fd, s.request[:])
	if errno != 0 {
		return fmt.Errorf("request to %s: %w", s.Target, errno)
	}
	conn.sent = true
	return nil
}

// closeAll closes what is still open; with one connection per request, the others are in the middle of one.
func (s *streams) closeAll() error {
	for _, conn := range s.conns {
		closeFD(conn.fd)
	}
	return nil
}
