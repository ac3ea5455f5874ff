// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"
	"net/netip"
	"os"

	"beeline.io/beeline/internal/util/kernelclock"
)

// The structures of bpf/conntrack/types.h.
type (
	// Tuple is the source and destination of a packet.
	Tuple = EdgeTCTuple
	// ConntrackEntry is the translation of packets of one direction of a flow.
	ConntrackEntry = EdgeTCCtEntry
	// ConntrackState is the state of a ConntrackEntry.
	ConntrackState = EdgeTCCtState
	// ConntrackTimeouts are the idle timeouts of flows by enum ct_timeout, in units of 2^20 ns.
	ConntrackTimeouts = [EdgeTCCtTimeoutTIMEOUTS]uint32
)

// The states and flags of a ConntrackEntry.
const (
	ConntrackNew         = EdgeTCCtStateCT_NEW
	ConntrackReplied     = EdgeTCCtStateCT_REPLIED
	ConntrackEstablished = EdgeTCCtStateCT_ESTABLISHED
	ConntrackClosing     = EdgeTCCtStateCT_CLOSING
	ConntrackClosed      = EdgeTCCtStateCT_CLOSED

	ConntrackReply    = EdgeTCCtFlagCT_REPLY
	ConntrackLocal    = EdgeTCCtFlagCT_LOCAL
	ConntrackFIN      = EdgeTCCtFlagCT_FIN
	ConntrackOutbound = EdgeTCCtFlagCT_OUTBOUND
	ConntrackDSR      = EdgeTCCtFlagCT_DSR
	ConntrackStream   = EdgeTCCtFlagCT_STREAM
)

// HasEdge reports whether the tables of a bpffs directory include those of the edge.
func HasEdge(bpffs string) bool {
	_, err := os.Stat(TablePath(bpffs, EdgeTCMapConntrack))
	return err == nil
}

// From returns the source of a tuple.
func (t EdgeTCTuple) From() netip.AddrPort { return AddrPortFrom(t.Source.Bytes, t.SourcePort) }

// To returns the destination of a tuple.
func (t EdgeTCTuple) To() netip.AddrPort { return AddrPortFrom(t.Destination.Bytes, t.DestinationPort) }

// String is a tuple as users see it, such as TCP 192.0.2.1:1234 to 10.96.0.1:80.
func (t EdgeTCTuple) String() string {
	return fmt.Sprintf("%s %s to %s", protocolName(t.Protocol), t.From(), t.To())
}

// Reverse returns the tuple of packets in the other direction.
func (t EdgeTCTuple) Reverse() Tuple {
	t.Source, t.Destination = t.Destination, t.Source
	t.SourcePort, t.DestinationPort = t.DestinationPort, t.SourcePort
	return t
}

// IsReply reports whether the entry is for packets from the backend to the client.
func (t *EdgeTCCtEntry) IsReply() bool { return t.Flags&uint8(ConntrackReply) != 0 }

// IsLocal reports whether the backend is on this node, or gets the packets of a pod of this node from its own address.
func (t *EdgeTCCtEntry) IsLocal() bool { return t.Flags&uint8(ConntrackLocal) != 0 }

// IsOneSided reports whether the flow has no entry for the other direction: with DSR the backend's
// replies do not pass through this node.
func (t *EdgeTCCtEntry) IsOneSided() bool { return DSR(t.Dsr) != DSRNone }

// Connection returns the service address that the client sends to, and the backend. key is the key of the
// entry.
func (t *EdgeTCCtEntry) Connection(key Tuple) Connection {
	if t.IsReply() {
		return Connection{Protocol: key.Protocol, Service: t.Xlate.From(), Backend: key.From()}
	}
	return Connection{Protocol: key.Protocol, Service: key.To(), Backend: t.Xlate.To()}
}

// Now returns the time on the clock of ConntrackEntry.LastSeen: whole seconds of the programs' clock.
func Now() uint32 { return kernelclock.Seconds() }
