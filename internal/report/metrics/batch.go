// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"beeline.io/beeline/internal/api"
)

// Batch collects declared metrics.
type Batch struct {
	Metrics  []api.Metric
	declared map[string]Family
}

// NewBatch returns an empty batch.
func NewBatch() *Batch { return &Batch{declared: Declared()} }

// Add adds a series of a declared metric; labels alternates names and values. It panics if the metric is not
// declared, which each scrape would find.
func (b *Batch) Add(name string, value float64, labels ...string) {
	b.AddLabels(name, value, Labels(labels...))
}

// AddLabels is Add with labels that several series share.
func (b *Batch) AddLabels(name string, value float64, labels map[string]string) {
	b.add(name, api.Metric{Labels: labels, Value: value})
}

// AddHistogram adds a series of a declared histogram.
func (b *Batch) AddHistogram(name string, h *api.Histogram, labels map[string]string) {
	b.add(name, api.Metric{Labels: labels, Histogram: h})
}

func (b *Batch) add(name string, m api.Metric) {
	f, ok := b.declared[name]
	if !ok {
		panic("metric " + name + " is not declared")
	}
	m.Name, m.Kind, m.Help = name, f.Kind, f.Help
	b.Metrics = append(b.Metrics, m)
}

// Labels returns a set of labels; pairs alternates names and values.
func Labels(pairs ...string) map[string]string {
	labels := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		labels[pairs[i]] = pairs[i+1]
	}
	return labels
}

// Seconds returns a time in seconds since 1970; 0 for the zero time.
func Seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
