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

// ReceiverConfig configures a receiver: recvfrom(2) calls of an unconnected UDP socket, for datagrams of
// another one in the same process, through the host's loopback device.
type ReceiverConfig struct {
	// Sender is the address of the sending socket, one of the host's own.
	Sender netip.AddrPort `json:"sender"`
	// Asked is where the receiving socket sends one datagram first, so that those it receives are replies:
	// the sender, or a Service that has it as its backend. Every datagram must have this source.
	Asked netip.AddrPort `json:"asked"`
	Calls int            `json:"calls"`
	CPU   int            `json:"cpu"`
}

// RunReceiver runs a receiver on a host. A datagram with another source ends it with an error.
func RunReceiver(ctx context.Context, host *lab.Host, config ReceiverConfig) error {
	_, err := run[ReceiverConfig, struct{}](ctx, host, partReceiver, config)
	return err
}

func runReceiver(config ReceiverConfig) error {
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
	// Without the source: this call must not count.
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
			return fmt.Errorf("the request was sent to %s, but %s replied", config.Asked, from.addrPort())
		}
	}
	return printJSON(struct{}{})
}

// patient creates a UDP socket with a receive timeout, and returns its address.
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
