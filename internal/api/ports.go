// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"

	"beeline.io/beeline/internal/cluster/service"
)

// PortConflict is a socket of the node's network namespace that is bound to a port of a Service or
// Pod. Connections to the port go to the Service or Pod.
type PortConflict struct {
	// Address is the address and port that the socket is bound to.
	Address  string           `json:"address"`
	Protocol service.Protocol `json:"protocol"`
	// Owners are the objects with this NodePort or HostPort.
	Owners []service.Ref `json:"owners"`
	// PID is the first process that has the socket open; 0 if none was found in the agent's PID
	// namespace.
	PID     int    `json:"pid,omitempty"`
	Process string `json:"process,omitempty"`
}

func (h PortConflict) String() string {
	names := make([]string, len(h.Owners))
	for i, o := range h.Owners {
		names[i] = o.String()
	}
	who := "a process that this agent cannot see"
	if h.PID != 0 {
		who = fmt.Sprintf("%s (pid %d)", h.Process, h.PID)
	}
	return fmt.Sprintf("%s %s, of %s, is held by %s", h.Protocol, h.Address, strings.Join(names, " and "), who)
}
