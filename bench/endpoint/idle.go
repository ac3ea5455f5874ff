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
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// IdleConfig configures TCP connections that are opened, used once, and then left idle. When they speak again,
// the server speaks first on every second one.
type IdleConfig struct {
	Targets  []netip.AddrPort `json:"targets"`
	Each     int              `json:"each"` // connections to each target
	Sources  netip.Prefix     `json:"sources"`
	First    int              `json:"first"` // number of the first client, as in LoadConfig
	Patience time.Duration    `json:"patience"`
	CPU      int              `json:"cpu"`
}

// IdleResult is the result of the connections to one target, by who spoke first.
type IdleResult struct {
	Client, Server IdleCount
}

// IdleCount counts connections that spoke again. All others were reset or timed out.
type IdleCount struct {
	Asked    int `json:"asked"`
	Answered int `json:"answered"`
	Delayed  int `json:"delayed"`
	Reset    int `json:"reset"`
}

// Idle is a process with idle connections.
type Idle struct{ *talker }

// StartIdle opens the connections, and returns when each had one reply.
func StartIdle(ctx context.Context, host *lab.Host, config IdleConfig) (*Idle, error) {
	t, err := startTalker(ctx, host, partIdle, config)
	return &Idle{t}, err
}

// Speak has all connections speak, and returns the results for each target. The servers have to speak at the
// same time.
func (i *Idle) Speak() ([]IdleResult, error) {
	var all []IdleResult
	err := i.finish(&all)
	return all, err
}

// A talker is a process that reports when it is ready, and that ends with a result on request.
type talker struct {
	part       string
	cmd        *lab.Cmd
	input      io.WriteCloser
	output     *bufio.Reader
	complaints *strings.Builder
}

func startTalker(ctx context.Context, host *lab.Host, part string, config any) (*talker, error) {
	t := &talker{part: part + " in " + host.Name, complaints: &strings.Builder{}}
	var err error
	if t.cmd, err = command(ctx, host, part); err != nil {
		return nil, err
	}
	if t.input, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.output, t.cmd.Stderr = bufio.NewReader(output), t.complaints
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	err = json.NewEncoder(t.input).Encode(config)
	if err == nil {
		_, err = t.output.ReadString('\n')
	}
	if err != nil {
		t.Stop()
		return nil, t.wrap(err)
	}
	return t, nil
}

func (t *talker) wrap(err error) error {
	return fmt.Errorf("%s: %w: %s", t.part, err, strings.TrimSpace(t.complaints.String()))
}

// tell writes a line to the process.
func (t *talker) tell(line string) error {
	_, err := io.WriteString(t.input, line+"\n")
	return err
}

// finish ends the process, and reads its result.
func (t *talker) finish(result any) error {
	err := t.tell(tellFinish)
	if err == nil {
		err = json.NewDecoder(t.output).Decode(result)
	}
	if err != nil {
		t.Stop()
		return t.wrap(err)
	}
	t.input.Close()
	return t.cmd.Wait()
}

// Stop ends the process; a second call does nothing.
func (t *talker) Stop() {
	t.input.Close()
	t.cmd.Process.Kill()
	t.cmd.Wait()
}

// Lines for a process.
const (
	tellSpeak  = "speak"
	tellFinish = "finish"
)

// awaitLine waits for the next line of standard input that is not empty: the newline of the configuration may
// still be there.
func awaitLine() error {
	var b [1]byte
	for text := false; ; {
		n, err := unix.Read(unix.Stdin, b[:])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		case b[0] != '\n':
			text = true
		case text:
			return nil
		}
	}
}

type idleConnection struct {
	fd     int
	server bool // speaks first
	heard  bool // the server has spoken
	count  *IdleCount
}

func runIdle(config IdleConfig) error {
	if n := len(config.Targets) * config.Each; n+fdReserve > openFiles() {
		return fmt.Errorf("%d connections, but a process has at most %d descriptors (ulimit -n)", n, openFiles())
	}
	results := make([]IdleResult, len(config.Targets))
	var all []idleConnection
	for t, target := range config.Targets {
		for i := range config.Each {
			c := idleConnection{server: i%2 == 1, count: &results[t].Client}
			if c.server {
				c.count = &results[t].Server
			}
			source := sourceOf(config.Sources, config.First+len(all))
			if err := c.open(source, target, config.Patience); err != nil {
				return fmt.Errorf("connection %d from %s to %s: %w", len(all), source, target, err)
			}
			c.count.Asked++
			all = append(all, c)
		}
	}
	fmt.Println()
	if err := awaitLine(); err != nil {
		return err
	}
	if err := speak(all, config.Patience); err != nil {
		return err
	}
	return printJSON(results)
}

// open connects, and sends one request.
func (c *idleConnection) open(source, target netip.AddrPort, patience time.Duration) error {
	to := sockaddrOf(target)
	fd, errno := socket(to.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC)
	if errno != 0 {
		return os.NewSyscallError("socket", errno)
	}
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	for _, option := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if errno := bind(fd, sockaddrOf(source)); errno != 0 {
		return os.NewSyscallError("bind", errno)
	}
	if errno := connect(fd, to); errno != 0 {
		return os.NewSyscallError("connect", errno)
	}
	b := [1]byte{requestIdle}
	if c.server {
		b[0] = requestIdleSpeak
	}
	if _, errno := send(fd, b[:]); errno != 0 {
		return os.NewSyscallError("send", errno)
	}
	if n, errno := receive(fd, b[:]); n != 1 || errno != 0 {
		return fmt.Errorf("no answer: %w", errno)
	}
	c.fd = fd
	return os.NewSyscallError("fcntl", unix.SetNonblock(fd, true))
}

// speak sends from the clients that speak first, and counts the replies of all.
func speak(all []idleConnection, patience time.Duration) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	begun, left := time.Now(), len(all)
	b := [1]byte{requestKeep}
	for i := range all {
		c := &all[i]
		if errno := epollAdd(epoll, c.fd, unix.EPOLLIN, int32(i)); errno != 0 {
			return os.NewSyscallError("epoll_ctl", errno)
		}
		if !c.server {
			send(c.fd, b[:]) // reading the reply shows any error
		}
	}
	events := make([]unix.EpollEvent, 256)
	for left > 0 && time.Since(begun) < patience {
		n, errno := epollWait(epoll, events, 50)
		if errno != 0 {
			return os.NewSyscallError("epoll_wait", errno)
		}
		for _, event := range events[:n] {
			if c := &all[event.Fd]; c.proceed(time.Since(begun)) {
				closeFD(c.fd)
				left--
			}
		}
	}
	return nil
}

// proceed reports whether a connection has its reply, or will never get one.
func (c *idleConnection) proceed(since time.Duration) bool {
	var b [1]byte
	n, errno := receive(c.fd, b[:])
	switch {
	case errno == unix.EAGAIN:
		return false
	case errno != 0 || n == 0:
		c.count.Reset++
		return true
	case c.server && !c.heard && b[0] == serverSpeaks:
		c.heard = true
		b[0] = requestKeep
		send(c.fd, b[:])
		return false
	}
	c.count.Answered++
	if since > delayedAfter {
		c.count.Delayed++
	}
	return true
}
