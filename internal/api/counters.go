// SPDX-License-Identifier: Apache-2.0

package api

import (
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
)

// PortCounters are the edge's counters of a service port, since the port was added. They count clients outside
// the cluster, and other clients whose packets the edge handles.
type PortCounters struct {
	// ID is the ID of the service port in the tables.
	ID             uint32            `json:"id"`
	Port           string            `json:"port,omitempty"`
	Protocol       service.Protocol  `json:"protocol"`
	NewFlows       uint64            `json:"newFlows"` // begun
	RefusedPackets uint64            `json:"refusedPackets"`
	DroppedPackets uint64            `json:"droppedPackets"`
	FromClients    conntrack.Traffic `json:"fromClients"` // by clients
	ToClients      conntrack.Traffic `json:"toClients"`   // by clients
}
