// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/report/metrics"
)

// metrics returns what the edge counts. It walks no table: traffic and conntrack entries are those of the last GC
// pass.
func (r *running) metrics() ([]api.Metric, error) {
	counters, err := bpf.ReadEdgeCounters(r.env.BPFFS)
	b := metrics.NewBatch()
	for reason, n := range counters {
		b.Add("beeline_edge_packets_total", float64(n), "reason", reason)
	}
	for mode, n := range r.edge.Modes() {
		b.Add("beeline_edge_devices", float64(n), "mode", mode)
	}
	addPasses(b, r.conntrack.Passes())
	ports := 0
	for _, p := range r.ports {
		ports += int(p.Last) - int(p.First) + 1
	}
	b.Add("beeline_snat_ports_limit", float64(ports))
	return b.Metrics, errors.Join(err, r.traffic.metrics(b))
}

// tableNames are the labels of the conntrack tables.
var tableNames = map[bool]string{true: bpf.EdgeTCMapConntrack, false: bpf.EdgeTCMapUnreplied}

// addPasses adds the results of GC passes.
func addPasses(b *metrics.Batch, p conntrack.Passes) {
	for assured, limit := range map[bool]uint32{true: p.Assured, false: p.Unreplied} {
		b.Add("beeline_conntrack_limit", float64(limit), "table", tableNames[assured])
	}
	b.Add("beeline_conntrack_expired_flows_total", float64(p.Expired))
	if p.Last.IsZero() {
		return
	}
	b.Add("beeline_conntrack_gc_timestamp_seconds", metrics.Seconds(p.Last))
	b.Add("beeline_conntrack_gc_duration_seconds", p.Took.Seconds())
	b.Add("beeline_snat_ports_used_max", float64(p.Census.SNATPorts))
	for _, protocol := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		b.Add("beeline_snat_flows", float64(p.Census.SNATFlows[protocol]), "protocol", protocol.String())
		for assured, table := range tableNames {
			for state, name := range conntrack.StateNames {
				n := p.Census.Entries[conntrack.EntryClass{Assured: assured, Protocol: protocol, State: state}]
				b.Add("beeline_conntrack_entries", float64(n), "table", table, "protocol", protocol.String(), "state", name)
			}
		}
	}
}
