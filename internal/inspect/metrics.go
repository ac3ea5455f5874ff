// SPDX-License-Identifier: Apache-2.0

package inspect

// MetricKind is how a metric changes.
type MetricKind string

const (
	CounterMetric MetricKind = "counter" // only grows; restarts from zero with its table
	GaugeMetric   MetricKind = "gauge"
)

// A Metric is one value of a component, following the conventions of Prometheus.
type Metric struct {
	Name   string            `json:"name"`
	Kind   MetricKind        `json:"kind"`
	Help   string            `json:"help"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  float64           `json:"value"`
}
