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

// Mode is the kind of traffic. Requests and answers are one byte each.
type Mode string

const (
	// ConnectRequestClose opens a TCP connection for each request, and resets it, so that no connection
	// stays in TIME_WAIT: those of earlier slices would make later ones slower.
	ConnectRequestClose Mode = "connect-request-close"
	// RequestResponse keeps TCP connections open.
	RequestResponse Mode = "request-response"
	// Stream writes StreamWrite bytes at a time on a connection, which the server reads and discards. An
	// operation is one write.
	Stream Mode = "stream"
	// UDPUnconnected sends each request with sendto(2), and checks the source address of recvfrom(2).
	UDPUnconnected Mode = "UDP, unconnected"
	// UDPConnected connects each socket once, and uses no address then.
	UDPConnected Mode = "UDP, connected"
	// UDPFlows opens a connected socket for so many requests, one after the other, and closes it. All of
	// them are an operation.
	UDPFlows Mode = "UDP, short flows"
)

// StreamWrite is the number of bytes in one write of a Stream.
const StreamWrite = 64 << 10

// Datagrams reports whether the traffic is UDP.
func (m Mode) Datagrams() bool { return m == UDPUnconnected || m == UDPConnected || m == UDPFlows }

// ClientConfig configures a client.
type ClientConfig struct {
	Mode        Mode           `json:"mode"`
	Target      netip.AddrPort `json:"target"`
	Connections int            `json:"connections"` // or UDP sockets, at the same time
	Requests    int            `json:"requests"`    // of a socket of UDPFlows
	Warmup      time.Duration  `json:"warmup"`      // not counted
	Measure     time.Duration  `json:"measure"`
	CPU         int            `json:"cpu"`
	// LostAfter is how long to wait for the reply to a datagram before it is retransmitted; 0: half a
	// minute.
	LostAfter time.Duration `json:"lostAfter"`
	// Processes are those whose CPU time belongs to the traffic, besides the client's own: the server, and
	// kernel threads.
	Processes []int `json:"processes"`
}

// Result is what a client measured.
type Result struct {
	// These count all calls, including the warm-up.
	Connected uint64 `json:"connected"` // connect(2)
	Sent      uint64 `json:"sent"`      // datagrams
	Received  uint64 `json:"received"`  // datagrams
	Resent    uint64 `json:"resent"`    // of those sent, for lack of a reply
	// The others cover only the measured time.
	Operations uint64        `json:"operations"`
	Elapsed    time.Duration `json:"elapsed"`
	CPU        time.Duration `json:"cpu"`
	P10        time.Duration `json:"p10"`
	P50        time.Duration `json:"p50"`
	P90        time.Duration `json:"p90"`
	P99        time.Duration `json:"p99"`
}

// RunClient runs a client on a host. A failed operation ends it with an error.
func RunClient(ctx context.Context, host *lab.Host, config ClientConfig) (Result, error) {
	return run[ClientConfig, Result](ctx, host, partClient, config)
}

// client is the client's process.
type client struct {
	ClientConfig
	epoll  int
	target *sockaddr
	events []unix.EpollEvent
	meter  meter
	result Result
}

func runClient(config ClientConfig) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	c := &client{
		ClientConfig: config, epoll: epoll, target: sockaddrOf(config.Target),
		events: make([]unix.EpollEvent, config.Connections), meter: newMeter(config.Measure),
	}
	switch config.Mode {
	case ConnectRequestClose, RequestResponse:
		err = newStreams(c).loop()
	case Stream:
		err = c.write()
	case UDPUnconnected, UDPConnected, UDPFlows:
		err = newDatagrams(c).loop()
	default:
		err = fmt.Errorf("unknown mode %q", config.Mode)
	}
	if err != nil {
		return err
	}
	c.meter.report(&c.result)
	return printJSON(c.result)
}

func errnoOrNil(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
