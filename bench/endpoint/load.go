// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// LoadConfig configures the clients of a load. Each client has a unique source address and port, and sends one
// request.
type LoadConfig struct {
	Target    netip.AddrPort `json:"target"`
	Datagrams bool           `json:"datagrams"` // UDP: one request, one reply
	// ServerCloses makes the server close TCP connections first; otherwise the client does.
	ServerCloses bool `json:"serverCloses"`
	// Sources are local addresses of the host. First is the number of the first client; different numbers
	// have different (address, port) pairs.
	Sources netip.Prefix `json:"sources"`
	First   int          `json:"first"`
	Count   int          `json:"count"`
	Rate    int          `json:"rate"` // clients per second
	// A client without a reply after Patience has failed.
	Patience time.Duration `json:"patience"`
	// AskAgain retransmits a UDP request each second.
	AskAgain bool `json:"askAgain"`
	CPU      int  `json:"cpu"`
}

// LoadResult is the result of the clients.
type LoadResult struct {
	Asked    int `json:"asked"`
	Answered int `json:"answered"`
	// Delayed are those of Answered that took longer than delayedAfter: a SYN was retransmitted.
	Delayed  int `json:"delayed"`
	Refused  int `json:"refused"`
	Reset    int `json:"reset"`
	TimedOut int `json:"timedOut"`
	// Wrong are replies that do not match the request.
	Wrong   int           `json:"wrong"`
	Sending time.Duration `json:"sending"` // from the first client to the last one
	P50     float64       `json:"p50"`     // us, of Answered
	P99     float64       `json:"p99"`
}

// Failed is the number of clients that were not served.
func (r LoadResult) Failed() int { return r.Asked - r.Answered }

// The kernel retransmits a SYN after a second (RFC 6298, 2).
const delayedAfter = 900 * time.Millisecond

// RunLoad runs the clients of a load on a host.
func RunLoad(ctx context.Context, host *lab.Host, config LoadConfig) (LoadResult, error) {
	return run[LoadConfig, LoadResult](ctx, host, partLoad, config)
}

// States of a client.
const (
	clientOpening = iota + 1 // connect(2) has been called
	clientAsked
	clientAnswered // the server has to close the connection
	clientDone
)

type loadClient struct {
	begun time.Duration
	again time.Duration // of the latest transmission
	fd    int32
	took  int32 // us; -1 without a reply
	state uint8
}

// load is the clients' process.
type load struct {
	LoadConfig
	target  *sockaddr
	epoll   int
	start   time.Time
	clients []loadClient
	oldest  int // all before it are done
	// open is the number of descriptors of clients. At mostOpen no client begins, and the rate is less than
	// it should be: after a pause of the machine more may wait than the rate implies.
	open, mostOpen int
	result         LoadResult
	buffer         [16]byte
}

// fdReserve are descriptors for everything else that a process has open.
const fdReserve = 64

func runLoad(config LoadConfig) error {
	// If all clients fail, so many wait at once.
	if most := min(config.Count, int(float64(config.Rate)*config.Patience.Seconds())); most+fdReserve > openFiles() {
		return fmt.Errorf("%d clients may wait at once, but a process has at most %d descriptors: raise the limit (ulimit -n) or lower the rate", most, openFiles())
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	l := &load{LoadConfig: config, target: sockaddrOf(config.Target), epoll: epoll, clients: make([]loadClient, 0, config.Count),
		mostOpen: openFiles() - fdReserve}
	if err := l.run(); err != nil {
		return err
	}
	return printJSON(l.summary())
}

// openFiles is the process's limit of descriptors, which the Go runtime has raised to the maximum.
func openFiles() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<30))
}

// Clients that begin before replies are read: so no burst after a pause of the machine fills the queues between
// namespaces.
const loadBurst = 32

func (l *load) run() error {
	events := make([]unix.EpollEvent, 256)
	l.start = time.Now()
	for l.oldest < l.Count {
		now := time.Since(l.start)
		due := min(l.Count, 1+int(now.Seconds()*float64(l.Rate)))
		for range loadBurst {
			if len(l.clients) >= due || l.open >= l.mostOpen {
				break
			}
			if err := l.begin(); err != nil {
				return err
			}
		}
		wait := 1
		if len(l.clients) < due && l.open < l.mostOpen {
			wait = 0
		}
		n, errno := epollWait(l.epoll, events, wait)
		if errno != 0 {
			return os.NewSyscallError("epoll_wait", errno)
		}
		for _, event := range events[:n] {
			l.proceed(&l.clients[event.Fd], uint32(event.Fd))
		}
		l.expire()
	}
	return nil
}

// sourceOf is the address and port of a client by its number.
func sourceOf(sources netip.Prefix, number int) netip.AddrPort {
	// The first and the last address of the prefix stay unused. Ports are those that clients choose
	// themselves and some below; each address starts at another one.
	const firstPort, ports, stride = 10_000, 50_000, 7919 // coprime
	addresses := 1<<(sources.Addr().BitLen()-sources.Bits()) - 2
	at, turn := number%addresses, number/addresses
	base := sources.Masked().Addr().As4()
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(base[:])+1+uint32(at))
	return netip.AddrPortFrom(netip.AddrFrom4(a), uint16(firstPort+(at*31337+turn*stride)%ports))
}

// begin starts the next client.
func (l *load) begin() error {
	kind := unix.SOCK_STREAM
	if l.Datagrams {
		kind = unix.SOCK_DGRAM
	}
	at := len(l.clients)
	fd, errno := socket(l.target.family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if errno != 0 {
		return os.NewSyscallError("socket", errno)
	}
	source := sourceOf(l.Sources, l.First+at)
	if errno := bind(fd, sockaddrOf(source)); errno != 0 {
		return fmt.Errorf("bind %s: %w", source, errno)
	}
	now := time.Since(l.start)
	l.open++
	l.clients = append(l.clients, loadClient{begun: now, again: now, fd: int32(fd), took: -1, state: clientOpening})
	l.result.Sending = now
	c := &l.clients[at]
	switch errno := connect(fd, l.target); errno {
	case 0, unix.EINPROGRESS:
	default:
		l.fail(c, errno)
		return nil
	}
	const edgeTriggered = 1 << 31
	events := uint32(unix.EPOLLIN | edgeTriggered)
	if !l.Datagrams {
		events |= unix.EPOLLOUT // when connected
	}
	if errno := epollAdd(l.epoll, fd, events, int32(at)); errno != 0 {
		return os.NewSyscallError("epoll_ctl", errno)
	}
	if l.Datagrams {
		l.ask(c, uint32(at))
	}
	return nil
}

// question is a client's request: a datagram has the client's number.
func (l *load) question(number uint32) []byte {
	if l.Datagrams {
		l.buffer[0] = requestDatagram
		binary.LittleEndian.PutUint32(l.buffer[4:], number)
		return l.buffer[:8]
	}
	l.buffer[0] = requestKeep
	if l.ServerCloses {
		l.buffer[0] = requestClose
	}
	return l.buffer[:1]
}

func (l *load) ask(c *loadClient, number uint32) {
	switch _, errno := send(int(c.fd), l.question(number)); errno {
	case 0:
		c.state = clientAsked
	case unix.EAGAIN, unix.ENOTCONN: // not connected yet
	default:
		l.fail(c, errno)
	}
}

func (l *load) proceed(c *loadClient, number uint32) {
	if c.state == clientOpening {
		l.ask(c, number)
	}
	for c.state == clientAsked || c.state == clientAnswered {
		n, errno := receive(int(c.fd), l.buffer[:])
		switch {
		case errno == unix.EAGAIN:
			return
		case errno != 0:
			l.fail(c, errno)
		case c.state == clientAsked && l.isAnswer(n, number):
			c.took = int32((time.Since(l.start) - c.begun).Microseconds())
			c.state = clientAnswered
			if !l.ServerCloses {
				l.end(c)
			}
		case c.state == clientAnswered && n == 0:
			l.end(c)
		case n == 0: // closed before the reply
			l.fail(c, unix.ECONNRESET)
		default:
			l.result.Wrong++
			l.drop(c)
		}
	}
}

// isAnswer reports whether the n bytes in the buffer reply to a client's request.
func (l *load) isAnswer(n int, number uint32) bool {
	if l.Datagrams {
		return n == 8 && l.buffer[0] == requestDatagram && binary.LittleEndian.Uint32(l.buffer[4:]) == number
	}
	return n == 1 && (l.buffer[0] == requestClose) == l.ServerCloses
}

func (l *load) end(c *loadClient) {
	l.result.Answered++
	if time.Duration(c.took)*time.Microsecond > delayedAfter {
		l.result.Delayed++
	}
	closeFD(int(c.fd))
	l.open--
	c.state = clientDone
}

func (l *load) fail(c *loadClient, errno unix.Errno) {
	switch errno {
	case unix.ECONNREFUSED:
		l.result.Refused++
	case unix.ETIMEDOUT:
		l.result.TimedOut++
	default:
		l.result.Reset++
	}
	l.drop(c)
}

// drop ends a failed client, without leaving any state of its connection.
func (l *load) drop(c *loadClient) {
	c.took = -1
	if !l.Datagrams {
		resetOnClose(int(c.fd))
	}
	closeFD(int(c.fd))
	l.open--
	c.state = clientDone
}

// expire ends the clients whose time has expired.
func (l *load) expire() {
	now := time.Since(l.start)
	for l.oldest < len(l.clients) {
		c := &l.clients[l.oldest]
		if c.state != clientDone {
			if now-c.begun < l.Patience {
				break
			}
			l.fail(c, unix.ETIMEDOUT)
		}
		l.oldest++
	}
	if !l.AskAgain || !l.Datagrams {
		return
	}
	for i := l.oldest; i < len(l.clients); i++ {
		if c := &l.clients[i]; c.state == clientAsked && now-c.again >= time.Second {
			c.again = now
			l.ask(c, uint32(i))
		}
	}
}

func (l *load) summary() LoadResult {
	l.result.Asked = len(l.clients)
	var all []int32
	for _, c := range l.clients {
		if c.took >= 0 {
			all = append(all, c.took)
		}
	}
	if slices.Sort(all); len(all) > 0 {
		l.result.P50, l.result.P99 = float64(all[len(all)/2]), float64(all[len(all)*99/100])
	}
	return l.result
}
