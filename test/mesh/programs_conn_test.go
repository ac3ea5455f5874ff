// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// A remoteConn is a connection of testdata/sockets.py. One channel reads, another one does all else.
type remoteConn struct {
	socket          uint32
	local, remote   net.Addr
	reading, others *channel
	closed          atomic.Bool
	readBy, writeBy atomic.Pointer[time.Time]
}

// newConn is for a connection whose number and addresses sockets.py has returned.
func (r *remoteSockets) newConn(others *channel, answer []byte) (tcpConn, error) {
	c := &remoteConn{others: others}
	var addresses [2]netip.Addr
	var ports [2]uint16
	var names [2]string
	if _, err := fmt.Sscan(string(answer), &c.socket, &names[0], &ports[0], &names[1], &ports[1]); err != nil {
		return nil, fmt.Errorf("sockets.py: %q: %w", answer, err)
	}
	for i := range addresses {
		a, err := netip.ParseAddr(names[i])
		if err != nil {
			return nil, err
		}
		addresses[i] = a.Unmap()
	}
	c.local = net.TCPAddrFromAddrPort(netip.AddrPortFrom(addresses[0], ports[0]))
	c.remote = net.TCPAddrFromAddrPort(netip.AddrPortFrom(addresses[1], ports[1]))
	c.SetDeadline(time.Now().Add(patience / 2))
	var err error
	c.reading, err = r.channel()
	return c, err
}

// The most that one call reads or writes.
const largestRead, largestWrite = 1 << 20, 256 << 10

func (c *remoteConn) Read(into []byte) (int, error) {
	if len(into) == 0 {
		return 0, nil
	}
	for {
		limit, err := c.limit(&c.readBy)
		if err != nil {
			return 0, err
		}
		got, err := c.reading.call('r', c.socket, min(limit, pollTime), fmt.Append(nil, min(len(into), largestRead)))
		switch {
		case err == syscall.EAGAIN:
			continue
		case err == nil && len(got) == 0:
			return 0, io.EOF
		}
		return copy(into, got), c.named(err)
	}
}

func (c *remoteConn) Write(data []byte) (sent int, err error) {
	for sent < len(data) {
		limit, err := c.limit(&c.writeBy)
		if err != nil {
			return sent, err
		}
		answer, err := c.others.call('s', c.socket, min(limit, pollTime), data[sent:sent+min(len(data)-sent, largestWrite)])
		if err == syscall.EAGAIN {
			continue
		}
		if err != nil {
			return sent, c.named(err)
		}
		n, err := strconv.Atoi(string(answer))
		if err != nil {
			return sent, err
		}
		sent += n
	}
	return sent, nil
}

// limit is how long a call may wait.
func (c *remoteConn) limit(by *atomic.Pointer[time.Time]) (time.Duration, error) {
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	end := by.Load()
	if end == nil || end.IsZero() {
		return patience, nil
	}
	left := time.Until(*end)
	if left <= 0 {
		return 0, os.ErrDeadlineExceeded
	}
	return left, nil
}

// named is the error of a call that lost its socket to Close.
func (c *remoteConn) named(err error) error {
	if errors.Is(err, syscall.EBADF) && c.closed.Load() {
		return net.ErrClosed
	}
	return err
}

func (c *remoteConn) CloseWrite() error {
	_, err := c.others.call('f', c.socket, 0, nil)
	return err
}

// SetLinger knows only that close resets the connection.
func (c *remoteConn) SetLinger(seconds int) error {
	if seconds != 0 {
		return errors.ErrUnsupported
	}
	_, err := c.others.call('z', c.socket, 0, nil)
	return err
}

func (c *remoteConn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	_, err := c.others.call('x', c.socket, 0, nil)
	c.others.conn.Close()
	c.reading.conn.Close()
	return err
}

func (c *remoteConn) LocalAddr() net.Addr  { return c.local }
func (c *remoteConn) RemoteAddr() net.Addr { return c.remote }

func (c *remoteConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *remoteConn) SetReadDeadline(t time.Time) error {
	c.readBy.Store(&t)
	return nil
}

func (c *remoteConn) SetWriteDeadline(t time.Time) error {
	c.writeBy.Store(&t)
	return nil
}
