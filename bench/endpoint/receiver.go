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

// ReceiverConfig is what a receiver does: recvfrom(2) calls of an unconnected
// UDP socket, for datagrams of another one in the same process, through the
// host's loopback device.
type ReceiverConfig struct {
	// Sender is the address of the sending socket, one of the host's own.
	Sender netip.AddrPort `json:"sender"`
	// Asked is where the receiving socket sends one datagram first, so that
	// those it receives are answers: the sender, or a Service that has it as
	// its backend. Every datagram must come from there.
	Asked netip.AddrPort `json:"asked"`
	Calls int            `json:"calls"`
	CPU   int            `json:"cpu"`
}

// RunReceiver runs a receiver on a host. A datagram of another name than the one
// that was asked ends it with an error.
func RunReceiver(ctx context.Context, host *lab.Host, config ReceiverConfig) error {
	_, err := run[ReceiverConfig, struct{}](ctx, host, partReceiver, config)
	return err
}

func runReceiver(config ReceiverConfig) error {
	if err := pin(os.Getpid(), config.CPU); err != nil {
		return err
	}
	sender, _, err := patient(config.Sender)
	if err != nil {
		return err
	}
	receiver, to, err := patient(netip.AddrPortFrom(config.Sender.Addr(), 0))
	if err != nil {
		return err
	}
	asked := sockaddrOf(config.Asked)
	from := &sockaddr{family: asked.family}
	var b [1]byte
	if errno := sendTo(receiver, b[:], asked); errno != 0 {
		return fmt.Errorf("datagram to %s: %w", config.Asked, errno)
	}
	// Without its source: this call is none that counts.
	if _, errno := receive(sender, b[:]); errno != 0 {
		return fmt.Errorf("the datagram to %s has not reached %s: %w", config.Asked, config.Sender, errno)
	}
	for range config.Calls {
		if errno := sendTo(sender, b[:], to); errno != 0 {
			return fmt.Errorf("datagram to %s: %w", to.addrPort(), errno)
		}
		if _, errno := receiveFrom(receiver, b[:], from); errno != 0 {
			return fmt.Errorf("no datagram from %s: %w", config.Sender, errno)
		}
		if !from.is(asked) {
			return fmt.Errorf("%s was asked, and %s answered", config.Asked, from.addrPort())
		}
	}
	return printJSON(struct{}{})
}

// patient makes a UDP socket that waits for a datagram, but not for ever, and
// says where it is.
func patient(at netip.AddrPort) (fd int, where *sockaddr, err error) {
	fd, err = bound(at, unix.SOCK_DGRAM)
	if err != nil {
		return -1, nil, err
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: stuck / 1000}); err != nil {
		return -1, nil, os.NewSyscallError("setsockopt", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return -1, nil, os.NewSyscallError("getsockname", err)
	}
	port := 0
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		port = sa.Port
	case *unix.SockaddrInet6:
		port = sa.Port
	}
	return fd, sockaddrOf(netip.AddrPortFrom(at.Addr(), uint16(port))), nil
}
