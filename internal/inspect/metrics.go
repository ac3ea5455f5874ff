// SPDX-License-Identifier: Apache-2.0

package inspect

// MetricKind says how a metric changes.
type MetricKind string

const (
	CounterMetric MetricKind = "counter" // it only grows, and starts from zero when its table does
	GaugeMetric   MetricKind = "gauge"
)

// A Metric is one value of a component, under the conventions of Prometheus.
type Metric struct {
	Name   string            `json:"name"`
	Kind   MetricKind        `json:"kind"`
	Help   string            `json:"help"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  float64           `json:"value"`
}
