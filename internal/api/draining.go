// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/netip"
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

// Draining is a backend that gets no new connections, because it is in no set any more or fails its health
// check.
type Draining struct {
	Address  netip.AddrPort   `json:"address"`
	Protocol service.Protocol `json:"protocol"`
	// Port is the name of the service port; empty for a backend of several Services.
	Port string `json:"port,omitempty"`
	// Connections is the number of remaining connections of clients that the edge serves. Connections of
	// the socket shortcut have no conntrack entries and are not counted.
	Connections int `json:"connections"`
	// IdleSeconds is the time since the last packet of a client in any of Connections.
	IdleSeconds float64 `json:"idleSeconds,omitempty"`
	// DSR: the edge sees only what clients send. Where a router spreads clients over several balancers,
	// another one may have seen the end of a connection.
	DSR bool `json:"dsr,omitempty"`
	// Untracked: connections from before the change have no conntrack entry here until they send something
	// (DSR with Maglev), and are not in Connections.
	Untracked bool `json:"untracked,omitempty"`
	// Down: its health check fails.
	Down bool `json:"down,omitempty"`
	// Why is why it is down. It may contain text from the checked server.
	Why string `json:"why,omitempty"`
}

func (l Draining) String() string {
	what := "draining"
	if l.Down {
		what = "down"
	}
	connections := "connections"
	if l.Connections == 1 {
		connections = "connection"
	}
	where := "left"
	if l.DSR || l.Untracked {
		where = "tracked here"
	}
	what = fmt.Sprintf("%s, %d %s %s", what, l.Connections, connections, where)
	if l.DSR && l.Connections > 0 {
		what += fmt.Sprintf(", last packet %v ago", time.Duration(l.IdleSeconds)*time.Second)
	}
	if l.Untracked {
		what += "; connections that are idle since it left are not tracked here: `ss -tn` on the backend shows them"
	}
	if l.Why != "" {
		what += ": " + l.Why
	}
	return what
}
