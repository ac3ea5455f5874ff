// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// reach has one host talk with another by TCP, UDP and ICMP echo in both families. Both see each other's addresses.
func (w *world) reach(from, to string) {
	w.t.Helper()
	for family, addr := range addresses(w.Host(to), 0) {
		for network, port := range map[string]uint16{"tcp": lab.PortTCP, "udp": lab.PortUDP} {
			answer, err := w.ask(from, network, netip.AddrPortFrom(addr.Addr(), port))
			if err != nil || answer.Pod != to || w.Host(from).Role == lab.RolePod && answer.Peer.Addr() != addresses(w.Host(from), 0)[family].Addr() {
				w.t.Errorf("%s to %s at %s by %s: %s saw %s, %v", from, to, addr.Addr(), network, answer.Pod, answer.Peer, err)
			}
		}
		w.pings(from, addr.Addr())
	}
}

// pings checks that an echo request is answered.
func (w *world) pings(from string, to netip.Addr) {
	w.t.Helper()
	if got, err := w.echo(from, to, 0); err != nil || !got.isReply || got.from != to {
		w.t.Errorf("%s pings %s: %+v, %v", from, to, got, err)
	}
}

// An echoed packet is the ICMP message that a host received about its echo request.
type echoed struct {
	from    netip.Addr
	isReply bool // otherwise "time exceeded"
}

var echoes atomic.Uint64

const (
	icmpv6TooBig       = 2
	icmpTimeExceeded   = 11
	icmpv6TimeExceeded = 3
)

// echo sends an echo request with a TTL (0: the default), and returns the first message about it.
func (w *world) echo(host string, to netip.Addr, ttl int) (got echoed, err error) {
	w.t.Helper()
	family, protocol, level, option := unix.AF_INET, unix.IPPROTO_ICMP, unix.IPPROTO_IP, unix.IP_TTL
	request, reply, exceeded := byte(8), byte(0), byte(icmpTimeExceeded)
	if to.Is6() {
		family, protocol, level, option = unix.AF_INET6, unix.IPPROTO_ICMPV6, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
		request, reply, exceeded = 128, 129, icmpv6TimeExceeded
	}
	fd, err := w.Host(host).Socket(family, unix.SOCK_RAW, protocol)
	w.must(err)
	defer unix.Close(fd)
	if ttl > 0 {
		w.must(unix.SetsockoptInt(fd, level, option, ttl))
	}
	mark := binary.BigEndian.AppendUint64(nil, echoes.Add(1)|0xbee1<<48)
	packet := append([]byte{request, 0, 0, 0, 0, 1, 0, 1}, mark...)
	if to.Is4() { // the kernel computes that of ICMPv6
		binary.BigEndian.PutUint16(packet[2:], checksum(packet))
	}
	w.must(os.NewSyscallError("sendto", unix.Sendto(fd, packet, 0, rawAddress(to))))
	timeout := unix.NsecToTimeval(int64(patience / 12))
	w.must(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	b := make([]byte, 2048)
	for {
		n, sender, err := unix.Recvfrom(fd, b, 0)
		if err == unix.EINTR { // with SO_RCVTIMEO the kernel does not restart the call, see signal(7)
			continue
		}
		if err != nil {
			return got, fmt.Errorf("no answer: %w", err)
		}
		message := b[:n]
		if from, ok := sender.(*unix.SockaddrInet4); ok {
			got.from, message = netip.AddrFrom4(from.Addr), message[int(b[0]&15)*4:]
		} else {
			got.from = netip.AddrFrom16(sender.(*unix.SockaddrInet6).Addr)
		}
		got.isReply = message[0] == reply
		// A host also receives its own request if it is the destination.
		if (got.isReply || message[0] == exceeded) && bytes.Contains(message, mark) {
			return got, nil
		}
	}
}

func rawAddress(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// A stream is a TCP connection between two pods that carries numbered blocks in both directions until it is stopped.
type stream struct {
	name      string
	near, far *net.TCPConn
	blocks    [2]atomic.Int64 // received at the near and far end
	failed    chan error      // of each of four goroutines
	stop      atomic.Bool
}

const blockSize = 32 << 10

// block is block number n of a stream.
func block(n int64, into []byte) {
	for i := range into {
		into[i] = byte(i * (i >> 8) >> 3)
	}
	binary.BigEndian.PutUint64(into, uint64(n))
}

// stream connects two hosts. A pause after each block limits the rate.
func (w *world) stream(from, to string, family int, pause time.Duration) *stream {
	w.t.Helper()
	s := &stream{name: fmt.Sprintf("%s to %s, IPv%d", from, to, 4+2*family), failed: make(chan error, 4)}
	listener, err := w.Host(to).Listen("tcp", netip.AddrPortFrom(addresses(w.Host(to), 0)[family].Addr(), 0).String())
	w.must(err)
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := listener.Accept()
		accepted <- conn
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := w.Host(from).Dial(ctx, "tcp", listener.Addr().String())
	w.must(err)
	s.near = conn.(*net.TCPConn)
	s.far = (<-accepted).(*net.TCPConn)
	w.t.Cleanup(func() { s.near.Close(); s.far.Close() })
	for i, c := range []*net.TCPConn{s.near, s.far} {
		go func() { s.failed <- s.send(c, pause) }()
		go func() { s.failed <- s.receive(c, &s.blocks[i]) }()
	}
	return s
}

func (s *stream) send(c *net.TCPConn, pause time.Duration) error {
	b := make([]byte, blockSize)
	block(0, b)
	for n := uint64(0); !s.stop.Load(); n++ {
		binary.BigEndian.PutUint64(b, n)
		if err := c.SetWriteDeadline(time.Now().Add(2 * patience)); err != nil {
			return err
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
		time.Sleep(pause)
	}
	return c.CloseWrite()
}

func (s *stream) receive(c *net.TCPConn, received *atomic.Int64) error {
	want, got := make([]byte, blockSize), make([]byte, blockSize)
	block(0, want)
	for n := int64(0); ; n++ {
		binary.BigEndian.PutUint64(want, uint64(n))
		if err := c.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
			return err
		}
		switch _, err := io.ReadFull(c, got); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case !bytes.Equal(got, want):
			return fmt.Errorf("block %d differs", n)
		}
		received.Add(1)
	}
}

// progress is the smaller number of blocks received by one end.
func (s *stream) progress() int64 { return min(s.blocks[0].Load(), s.blocks[1].Load()) }

// finish ends a stream and returns its first error.
func (s *stream) finish() error {
	s.stop.Store(true)
	var all error
	for range 4 {
		all = errors.Join(all, <-s.failed)
	}
	if all != nil {
		return fmt.Errorf("%s: %w", s.name, all)
	}
	return nil
}

// advance waits until each stream has received more blocks in both directions.
func (w *world) advance(streams []*stream, blocks int64) {
	w.t.Helper()
	for _, s := range streams {
		begin := s.progress()
		w.eventually(fmt.Sprintf("%s receives %d more blocks after %d", s.name, blocks, begin), func() bool {
			return s.progress() >= begin+blocks
		})
	}
}
