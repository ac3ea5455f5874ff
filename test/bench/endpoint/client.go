// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// ClientConfig is what a client does.
type ClientConfig struct {
	Target      netip.AddrPort `json:"target"`
	Connections int            `json:"connections"` // at the same time
	// Close opens a connection for each request. It is ended by a reset, so
	// that no connection is left in TIME_WAIT: those of earlier slices would
	// make later ones slower.
	Close   bool          `json:"close"`
	Warmup  time.Duration `json:"warmup"` // not counted
	Measure time.Duration `json:"measure"`
	CPU     int           `json:"cpu"`
	// Processes are those whose CPU time belongs to the traffic besides the
	// client's own: the server, and the kernel's own threads.
	Processes []int `json:"processes"`
}

// Result is what a client measured.
type Result struct {
	// Connected is the number of connect(2) calls, those of the warm-up
	// included.
	Connected uint64 `json:"connected"`
	// The others are of the measured time only.
	Operations uint64        `json:"operations"`
	Elapsed    time.Duration `json:"elapsed"`
	CPU        time.Duration `json:"cpu"`
	P10        time.Duration `json:"p10"`
	P50        time.Duration `json:"p50"`
	P90        time.Duration `json:"p90"`
	P99        time.Duration `json:"p99"`
}

// RunClient runs a client on a host. An operation that fails ends it with an
// error.
func RunClient(ctx context.Context, host *lab.Host, config ClientConfig) (Result, error) {
	return run[ClientConfig, Result](ctx, host, partClient, config)
}

// stuck is when a client gives up that gets no answer.
const stuck = 3000 // milliseconds

// client is the client's process.
type client struct {
	ClientConfig
	epoll   int
	target  *sockaddr
	request [1]byte
	conns   []conn
	events  []unix.EpollEvent

	connected uint64
	samples   []uint32 // ns of each operation
	window    window
}

// conn is one of the connections at the same time.
type conn struct {
	fd    int
	begun time.Time // the operation that goes on
	sent  bool
}

func runClient(config ClientConfig) error {
	if err := pin(os.Getpid(), config.CPU); err != nil {
		return err
	}
	c := &client{
		ClientConfig: config, target: sockaddrOf(config.Target), request: [1]byte{requestKeep},
		conns: make([]conn, config.Connections), events: make([]unix.EpollEvent, config.Connections),
		samples: make([]uint32, 0, int(config.Measure.Seconds()*500_000)+1000),
	}
	if c.Close {
		c.request[0] = requestClose
	}
	var err error
	if c.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	for i := range c.samples[:cap(c.samples)] {
		c.samples[:cap(c.samples)][i] = 1 // so that no page is missing later
	}
	if err := c.loop(); err != nil {
		return err
	}
	return printJSON(c.result())
}

func (c *client) loop() error {
	for i := range c.conns {
		if err := c.open(i); err != nil {
			return err
		}
	}
	c.window.warmUp(c.Warmup, c.Measure, c.Processes)
	for {
		n, errno := epollWait(c.epoll, c.events, stuck)
		if errno != 0 {
			return os.NewSyscallError("epoll_wait", errno)
		}
		if n == 0 {
			return fmt.Errorf("no answer from %s for %d ms", c.Target, stuck)
		}
		for _, event := range c.events[:n] {
			if err := c.ready(int(event.Fd), event.Events); err != nil {
				return err
			}
		}
		if c.window.ended {
			return c.closeAll()
		}
	}
}

// open begins an operation with a new connection.
func (c *client) open(i int) error {
	begun := time.Now()
	fd, errno := socket(c.target.family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if errno != 0 {
		return os.NewSyscallError("socket", errno)
	}
	if errno := resetOnClose(fd); errno != 0 {
		return os.NewSyscallError("setsockopt", errno)
	}
	c.connected++
	if errno := connect(fd, c.target); errno != 0 && errno != unix.EINPROGRESS {
		return fmt.Errorf("connect to %s: %w", c.Target, errno)
	}
	c.conns[i] = conn{fd: fd, begun: begun}
	// Edge-triggered: one call tells of the connection and of the answer.
	return os.NewSyscallError("epoll_ctl", errnoOrNil(epollAdd(c.epoll, fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLET, int32(i))))
}

func errnoOrNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// ready goes on with a connection of which epoll has told.
func (c *client) ready(i int, events uint32) error {
	conn := &c.conns[i]
	if !conn.sent {
		return c.ask(conn)
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
		return fmt.Errorf("answer of %d bytes from %s: %w", n, c.Target, errno)
	}
	if c.Close {
		closeFD(conn.fd)
	}
	now := time.Now()
	if c.window.count(now) {
		c.samples = append(c.samples, uint32(min(now.Sub(conn.begun), 1<<32-1)))
	}
	if c.window.ended {
		return nil
	}
	if c.Close {
		return c.open(i)
	}
	conn.begun = now
	return c.ask(conn)
}

func (c *client) ask(conn *conn) error {
	_, errno := send(conn.fd, c.request[:])
	if errno != 0 {
		return fmt.Errorf("request to %s: %w", c.Target, errno)
	}
	conn.sent = true
	return nil
}

// closeAll ends what is still open; of a connection for each request, the
// others are in the middle of one.
func (c *client) closeAll() error {
	for _, conn := range c.conns {
		closeFD(conn.fd)
	}
	return nil
}
