// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/sockdiag"
)

// A Destination is where a packet goes.
type Destination struct {
	netip.AddrPort
	Protocol uint8 // IPPROTO_TCP or IPPROTO_UDP
}

// BoundSockets returns the addresses and ports that sockets of this network namespace have bound by name to receive
// what clients send: listeners of TCP, and sockets of UDP that are not connected. Wildcards are not names.
func BoundSockets() (map[Destination]bool, error) {
	bound := map[Destination]bool{}
	for protocol, state := range map[uint8]sockdiag.States{unix.IPPROTO_TCP: sockdiag.Listening, unix.IPPROTO_UDP: sockdiag.Closed} {
		all, err := sockdiag.List(protocol, state)
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			if a := s.Local.Addr().Unmap(); !a.IsUnspecified() && s.Local.Port() != 0 {
				bound[Destination{netip.AddrPortFrom(a, s.Local.Port()), protocol}] = true
			}
		}
	}
	return bound, nil
}
