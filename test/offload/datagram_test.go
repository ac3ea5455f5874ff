// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"net"
	"net/netip"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A udpServer sends back each datagram that it receives.
type udpServer struct {
	conn     *net.UDPConn
	v6       bool
	from     atomic.Pointer[netip.AddrPort] // of the latest datagram
	ttl      atomic.Int32                   // of the latest datagram
	received atomic.Uint64
	silent   atomic.Bool // answers nothing
}

// start has the kernel report the TTL of datagrams, and serves.
func (s *udpServer) start() error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return err
	}
	level, option := unix.IPPROTO_IP, unix.IP_RECVTTL
	if s.v6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, 1) }); err != nil || failed != nil {
		return unix.EINVAL
	}
	go s.serve()
	return nil
}

// serve ends when the socket is closed.
func (s *udpServer) serve() {
	b, control := make([]byte, 64<<10), make([]byte, 256)
	for {
		n, c, _, from, err := s.conn.ReadMsgUDPAddrPort(b, control)
		if err != nil {
			return
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		s.from.Store(&from)
		s.ttl.Store(ttlOf(control[:c]))
		s.received.Add(1)
		if !s.silent.Load() {
			s.conn.WriteToUDPAddrPort(b[:n], from) // the client misses the answer if this fails
		}
	}
}

// ttlOf is the TTL in a datagram's control messages, in host byte order.
func ttlOf(control []byte) int32 {
	all, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return -1
	}
	for _, m := range all {
		if len(m.Data) >= 4 && (m.Header.Type == unix.IP_TTL || m.Header.Type == unix.IPV6_HOPLIMIT) {
			return int32(m.Data[0])
		}
	}
	return -1
}
