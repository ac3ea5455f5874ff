// SPDX-License-Identifier: Apache-2.0

// Package sockdiag lists and ends the sockets of a network namespace: that of
// the calling thread, so lock the goroutine to its thread after a switch
// (runtime.LockOSThread). It speaks sock_diag(7) with inet_diag_req_v2 of
// linux/inet_diag.h.
package sockdiag

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// States is a set of socket states: bit n for state n of net/tcp_states.h.
type States uint32

// The states that all protocols share. A UDP socket is Established when it is
// connected, else Closed.
const (
	Established States = 1 << 1
	Closed      States = 1 << 7
	Listening   States = 1 << 10
	AllStates   States = 1<<13 - 1
)

// A Socket is one socket as the kernel describes it.
type Socket struct {
	Protocol uint8 // unix.IPPROTO_TCP, _UDP, _UDPLITE or _SCTP
	State    States
	// Local and Remote are of the socket's own family: what an AF_INET6 socket
	// has of IPv4 is v4-mapped (RFC 4291 section 2.5.5.2; Addr.Unmap makes IPv4
	// of it), and its wildcard is "::". Remote is the wildcard with port 0 where
	// the socket has no peer.
	Local, Remote netip.AddrPort
	Device        uint32 // index of the device it is bound to (SO_BINDTODEVICE); 0: none
	Cookie        uint64 // SO_COOKIE
	UID           uint32 // of its maker
	// Inode is that of /proc/PID/fd; 0 once no process has the socket open.
	Inode uint32
	// V6Only is IPV6_V6ONLY. The kernel tells it of Closed and Listening sockets.
	V6Only bool
}

// String is protocol, addresses and cookie: for messages.
func (s Socket) String() string {
	return fmt.Sprintf("%s %s -> %s (cookie %#x)", protocolName(s.Protocol), s.Local, s.Remote, s.Cookie)
}

func protocolName(protocol uint8) string {
	switch protocol {
	case unix.IPPROTO_TCP:
		return "TCP"
	case unix.IPPROTO_UDP:
		return "UDP"
	case unix.IPPROTO_UDPLITE:
		return "UDP-Lite"
	case unix.IPPROTO_SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("protocol %d", protocol)
}

// ErrNoProtocol: the kernel has no sock_diag for the protocol, neither built in
// nor as a module (tcp_diag, udp_diag, sctp_diag).
var ErrNoProtocol = errors.New("the kernel cannot list such sockets (no sock_diag module for them)")

// List returns the sockets of a protocol that are in one of the states, of both
// families. Sockets that come, go or change state meanwhile may be missing.
//
// Errors: ErrNoProtocol; those of netlink.
func List(protocol uint8, states States) ([]Socket, error) {
	var all []Socket
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		r := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		r.AddData(&request{family: family, protocol: protocol, states: states})
		var bad error
		err := r.ExecuteIter(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY, func(message []byte) bool {
			s, err := parse(message)
			s.Protocol = protocol
			all, bad = append(all, s), err
			return err == nil
		})
		if errors.Is(err, unix.ENOENT) {
			err = ErrNoProtocol
		}
		if errors.Is(err, nl.ErrDumpInterrupted) {
			err = nil // tables that are read while they change: the kernel does not check these dumps
		}
		if errors.Is(err, unix.EAFNOSUPPORT) && family == unix.AF_INET6 {
			err = nil // a kernel without IPv6
		}
		if err = errors.Join(err, bad); err != nil {
			return nil, fmt.Errorf("list %s sockets: %w", protocolName(protocol), err)
		}
	}
	return all, nil
}

// ErrNoDestroy: the kernel is built without CONFIG_INET_DIAG_DESTROY, or cannot
// end sockets of this protocol (SCTP).
var ErrNoDestroy = errors.New("the kernel cannot end such a socket (CONFIG_INET_DIAG_DESTROY)")

// Destroy ends a socket that List returned (SOCK_DESTROY, Linux 4.5): whoever
// waits for it gets ECONNABORTED, and the peer of a TCP connection a reset. The
// cookie keeps another socket of the same addresses from harm. It is no error,
// but ended is false, if the socket is gone, or if the kernel does not find it
// since others have the same addresses (SO_REUSEPORT): it finds one of them, and
// another one when that has ended.
//
// Errors: ErrNoDestroy; those of netlink. It needs CAP_NET_ADMIN.
func Destroy(s Socket) (ended bool, err error) {
	r := nl.NewNetlinkRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK)
	r.AddData(requestFor(s))
	_, err = r.Execute(unix.NETLINK_INET_DIAG, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = ErrNoDestroy
	}
	if err != nil {
		return false, fmt.Errorf("end %s: %w", s, err)
	}
	return true, nil
}
