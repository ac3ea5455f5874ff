// SPDX-License-Identifier: Apache-2.0

package api

import (
	"beeline.io/beeline/internal/cluster/service"
)

// Connections are the TCP connections of programs on this node to a service port or one of its backends, since the
// port was added or the statistics were enabled.
type Connections struct {
	Started    uint64 `json:"started"` // SYNs, without retransmissions
	Connecting uint64 `json:"connecting"`
	Failed     uint64 `json:"failed"` // reset, timed out or given up before they were established
	Open       uint64 `json:"open"`   // established
	Closed     uint64 `json:"closed"` // after they were established
	// Of connections that have ended. Bytes are payload without retransmissions, segments include SYNs.
	SentBytes     uint64 `json:"sentBytes"`
	ReceivedBytes uint64 `json:"receivedBytes"`
	Retransmits   uint64 `json:"retransmits"`
	// Seconds that half, and 99 %, of the handshakes took at most, from SYN to SYN-ACK; at most a quarter too
	// high. 0: there were none.
	HandshakeP50Seconds float64 `json:"handshakeP50Seconds"`
	HandshakeP99Seconds float64 `json:"handshakeP99Seconds"`
}

// PortConnections are the connections to a service port.
type PortConnections struct {
	// ID is the ID of the service port in the tables.
	ID       uint32           `json:"id"`
	Port     string           `json:"port,omitempty"`
	Protocol service.Protocol `json:"protocol"`
	Connections
	// Backends is nil without --socket-stats-per-backend.
	Backends []BackendConnections `json:"backends,omitempty"`
}

// BackendConnections are the connections to one backend of a service port.
type BackendConnections struct {
	Address string `json:"address"` // with port
	Connections
}
