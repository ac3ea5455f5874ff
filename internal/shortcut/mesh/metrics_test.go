// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"testing"

	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/report/metrics/metricstest"
)

// Each counter of the programs moves its metric and no other. Two have conditions instead.
func TestCountersAndMetrics(t *testing.T) {
	var counts Counters
	metricstest.EachMovesOne(t, &counts, func(b *metrics.Batch) { addCounters(b, &counts) }, map[string]string{
		"Outbound":  "beeline_mesh_connections_total{direction=outbound}",
		"Inbound":   "beeline_mesh_connections_total{direction=inbound}",
		"Unnamed":   "beeline_mesh_unnamed_total",
		"Dns":       "beeline_mesh_dns_total",
		"Refused":   "beeline_mesh_refused_total",
		"Listeners": "beeline_mesh_listeners_unserved_total",
		"Joined":    "beeline_mesh_sockets_joined_total",
		"NotJoined": "beeline_mesh_sockets_unserved_total{reason=table-full}",
		"Foreign":   "beeline_mesh_sockets_unserved_total{reason=other-sockmap}",
		"Skipped":   "beeline_mesh_messages_total{path=sockmap}",
		"ByTcp":     "beeline_mesh_messages_total{path=tcp}",
		"Stuck":     "beeline_mesh_sockets_stuck_total",
		"Loops":     "",
		"Unknown":   "",
	})
}
