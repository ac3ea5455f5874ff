// SPDX-License-Identifier: Apache-2.0

// Package sockdiag lists and destroys sockets of the calling thread's network namespace. After a namespace
// switch, the caller must lock the goroutine to its thread (runtime.LockOSThread). The package uses
// sock_diag(7) with inet_diag_req_v2 of linux/inet_diag.h.
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

// States that all protocols share. A connected UDP socket is Established, any other is Closed.
const (
	Established States = 1 << 1
	Closed      States = 1 << 7
	Listening   States = 1 << 10
	AllStates   States = 1<<13 - 1
)

// A Socket is a socket as the kernel reports it.
type Socket struct {
	Protocol uint8 // unix.IPPROTO_TCP, _UDP, _UDPLITE or _SCTP
	State    States
	// Local and Remote are of the socket's own family. An IPv4 address of an AF_INET6 socket is IPv4-mapped
	// (RFC 4291 section 2.5.5.2; Addr.Unmap converts it), and its wildcard is "::". Remote is the wildcard
	// with port 0 if the socket has no peer.
	Local, Remote netip.AddrPort
	Device        uint32 // interface index it is bound to (SO_BINDTODEVICE); 0: none
	Cookie        uint64 // SO_COOKIE
	UID           uint32 // of its creator
	// Inode is the inode in /proc/PID/fd; 0 if no process has the socket open.
	Inode uint32
	// V6Only is IPV6_V6ONLY. The kernel reports it for Closed and Listening sockets.
	V6Only bool
}

// String returns protocol, addresses and cookie, for messages.
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

// ErrNoProtocol means that the kernel has no sock_diag for the protocol, neither built in nor as a module
// (tcp_diag, udp_diag, sctp_diag).
var ErrNoProtocol = errors.New("the kernel cannot list such sockets (no sock_diag module for them)")

// List returns the sockets of a protocol in any of the states, of both families. It may miss sockets that are
// created, closed or change their state meanwhile.
//
// It returns ErrNoProtocol or a netlink error.
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
			err = nil // the table changed during the dump, which the kernel does not check
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

// ErrNoDestroy means that the kernel is built without CONFIG_INET_DIAG_DESTROY, or cannot destroy sockets of
// this protocol (SCTP).
var ErrNoDestroy = errors.New("the kernel cannot end such a socket (CONFIG_INET_DIAG_DESTROY)")

// Destroy destroys a socket returned by List (SOCK_DESTROY, Linux 4.5). Blocked calls on it return
// ECONNABORTED, and the peer of a TCP connection gets a reset. The cookie protects other sockets with the same
// addresses. Destroy returns false without an error if the socket no longer exists, or if the kernel does not
// find it because several sockets have the same addresses (SO_REUSEPORT): the kernel finds one of them, and the
// next only when that one is destroyed.
//
// It returns ErrNoDestroy or a netlink error. It needs CAP_NET_ADMIN.
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
