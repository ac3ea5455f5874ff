// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/cluster/service"
)

// An Encapsulator makes the packets of a socket, identified by its cookie, take the path of clients' packets.
type Encapsulator interface {
	Begin(cookie uint64, via service.Via) error
	// End is called after the socket has been closed.
	End(cookie uint64) error
}

// segmentMost is the maximum TCP payload of a probe's packet, in bytes. With the overhead of DSR, at most 80
// bytes, and the headers of IPv6 and TCP, 60 bytes without options, it fits the minimum MTU of IPv6 (1280, RFC
// 8200 section 5).
const segmentMost = 1100

// Through returns Dialers whose connections take the path of clients' packets. The sockets have the mark of
// Direct, and different source ports, because all connect from this node's address to the same frontend,
// whichever backend they reach.
func Through(mark uint32, e Encapsulator) func(service.Via) Dialer {
	return func(via service.Via) Dialer {
		return func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			to := netip.AddrPortFrom(via.To, via.Backend.Port())
			var cookie uint64
			begun := false
			d := Marked(net.Dialer{KeepAlive: -1}, mark)
			marked := d.Control
			d.Control = func(network, address string, raw syscall.RawConn) (err error) {
				if err := marked(network, address, raw); err != nil {
					return err
				}
				failed := raw.Control(func(fd uintptr) { cookie, err = prepare(int(fd), via.To.Is4()) })
				if err = cmp.Or(failed, err); err == nil {
					err = e.Begin(cookie, via)
					begun = err == nil
				}
				return err
			}
			conn, err := d.DialContext(ctx, "tcp", to.String())
			if err != nil {
				if begun {
					err = errors.Join(err, e.End(cookie))
				}
				return nil, err
			}
			return &encapsulated{TCPConn: conn.(*net.TCPConn), end: func() error { return e.End(cookie) }}, nil
		}
	}
}

// prepare binds a socket before connect(), and returns its cookie.
func prepare(fd int, v4 bool) (cookie uint64, err error) {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, segmentMost); err != nil {
		return 0, os.NewSyscallError("setsockopt TCP_MAXSEG", err)
	}
	var any unix.Sockaddr = &unix.SockaddrInet6{}
	if v4 {
		any = &unix.SockaddrInet4{}
	}
	if err := unix.Bind(fd, any); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	if cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		return 0, fmt.Errorf("getsockopt SO_COOKIE: %w", err)
	}
	return cookie, nil
}

// encapsulated is a connection made by Through. It is closed with a RST: packets after its end would not reach
// a socket, and a port in TIME_WAIT could not be bound again.
type encapsulated struct {
	*net.TCPConn
	end    func() error
	closed sync.Once
}

func (c *encapsulated) Close() (err error) {
	c.closed.Do(func() { err = errors.Join(c.SetLinger(0), c.TCPConn.Close(), c.end()) })
	return err
}
