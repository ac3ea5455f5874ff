// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"testing"

	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/report/metrics/metricstest"
	"beeline.io/beeline/internal/shortcut/offload/flowtable"
)

// Each number of the state moves its metric and no other, and so does each path, reason and provider.
func TestStatusAndMetrics(t *testing.T) {
	var status Status
	read := func(b *metrics.Batch) { addStatus(b, &status) }
	metricstest.EachMovesOne(t, &status, read, map[string]string{
		"ThresholdPackets": "",
		"CacheEntries":     "beeline_offload_entries",
		"CacheLimit":       "beeline_offload_entries_limit",
		"LearnedEntries":   "beeline_offload_learned_total",
		"CacheBytes":       "beeline_offload_bytes_total",
	})
	for want, changed := range map[string]Status{
		"beeline_offload_packets_total{path=cache}":         {Packets: map[string]uint64{"cache": 7}},
		"beeline_offload_ended_total{reason=route}":         {EndedEntries: map[string]uint64{"route": 7}},
		"beeline_offload_refused":                           {RefusedDirections: map[string]int{"a rule": 3, "another": 4}},
		"beeline_offload_flowtable_replaced_total":          {Flowtable: &flowtable.Status{Replaced: map[string]uint64{"a": 5, "b": 2}}},
		"beeline_offload_provider_info{provider=flowtable}": {Provider: "flowtable"},
	} {
		status = changed
		b := metrics.NewBatch()
		read(b)
		for _, m := range b.Metrics {
			name, value := metricstest.Name(m), 7.0
			if m.Name == "beeline_offload_provider_info" {
				value = 1
			}
			if is := m.Value == value && name != "beeline_offload_provider_info{provider=none}"; is != (name == want) {
				t.Errorf("the metric %s is %v, want %s alone to be %v, of the status %+v", name, m.Value, want, value, changed)
			}
		}
	}
}
