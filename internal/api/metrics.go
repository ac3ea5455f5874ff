// SPDX-License-Identifier: Apache-2.0

package api

// MetricKind is how a metric changes.
type MetricKind string

const (
	CounterMetric MetricKind = "counter" // only grows; restarts from zero with its table
	GaugeMetric   MetricKind = "gauge"
	// HistogramMetric has a Histogram instead of a Value.
	HistogramMetric MetricKind = "histogram"
)

// A Metric is one value of a component, following the conventions of Prometheus.
type Metric struct {
	Name   string            `json:"name"`
	Kind   MetricKind        `json:"kind"`
	Help   string            `json:"help"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  float64           `json:"value"`
	// Histogram is nil for other kinds.
	Histogram *Histogram `json:"histogram,omitempty"`
}

// A Histogram counts values by their size.
type Histogram struct {
	// Buckets have ascending bounds. Values above the last bound are only in Count.
	Buckets []Bucket `json:"buckets"`
	Count   uint64   `json:"count"`
	Sum     float64  `json:"sum"`
}

// A Bucket counts the values up to its bound, those of the buckets before it included.
type Bucket struct {
	UpTo  float64 `json:"upTo"`
	Count uint64  `json:"count"`
}
