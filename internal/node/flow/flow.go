// SPDX-License-Identifier: Apache-2.0

// Package flow describes the flows that flow offload forwards, as conntrack knows them.
package flow

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Tuple is what packets of one direction have in common, in one place of their way.
type Tuple struct {
	Source, Destination netip.AddrPort // IPv4 is not mapped into IPv6
	Protocol            uint8          // IPPROTO_TCP or IPPROTO_UDP
}

// Reverse returns the tuple of the replies.
func (t Tuple) Reverse() Tuple { return Tuple{t.Destination, t.Source, t.Protocol} }

func (t Tuple) String() string {
	return fmt.Sprintf("%s %s -> %s", protocolName(t.Protocol), t.Source, t.Destination)
}

func protocolName(number uint8) string {
	switch number {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	}
	return fmt.Sprint("protocol ", number)
}

// A Flow is one direction of a forwarded flow. The reply to a packet of it takes the way of its Reverse.
type Flow struct {
	// In is what its packets have as they arrive, Out as they leave: without NAT the same.
	In, Out Tuple
	// InDevice and OutDevice are the indexes of the devices by which they arrive and leave; 0: not known.
	InDevice, OutDevice int
	// Helper is the conntrack helper of the flow, such as "ftp"; empty: none.
	Helper string
}

// Reverse returns the direction of the replies, if these take the same devices.
func (f Flow) Reverse() Flow {
	return Flow{In: f.Out.Reverse(), Out: f.In.Reverse(), InDevice: f.OutDevice, OutDevice: f.InDevice, Helper: f.Helper}
}
