// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"fmt"
	"testing"

	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/report/metrics/metricstest"
)

// Each counter of the programs' pages moves its metric and no other; each reason of a refusal has a series.
func TestCountersAndMetrics(t *testing.T) {
	w := NewWatcher(ModeOn, nil, nil)
	metricstest.EachMovesOne(t, &w.sums, w.Metrics, map[string]string{
		"Attached":         "beeline_mesh_hoststack_attached_total",
		"Unlisted":         "",
		"Received":         "beeline_mesh_hoststack_bytes_total{direction=received}",
		"Sent":             "beeline_mesh_hoststack_bytes_total{direction=sent}",
		"Violations":       "beeline_mesh_hoststack_violations_total",
		"ReturnedToKernel": "beeline_mesh_hoststack_returned_total",
	})
	for i, reason := range refusals {
		w.sums.Refused[reason] = uint64(i) + 1
	}
	b, want := metrics.NewBatch(), map[string]float64{}
	w.Metrics(b)
	for i, reason := range refusals {
		want[fmt.Sprintf("beeline_mesh_hoststack_refused_total{reason=%s}", reason)] = float64(i) + 1
	}
	for _, m := range b.Metrics {
		if n, ok := want[metricstest.Name(m)]; ok && n == m.Value {
			delete(want, metricstest.Name(m))
		}
	}
	if len(want) > 0 {
		t.Errorf("no series, or another value: %v", want)
	}
}
