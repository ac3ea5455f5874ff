// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"beeline.io/beeline/internal/api"
)

// collector exports metrics that are read at each scrape.
type collector struct {
	*Metrics
	source string
	read   func() ([]api.Metric, error)
}

// Describe declares nothing, because components add metrics without the registry.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the metrics and exports them, at most Options.MaxSeries of each.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	all, err := c.read()
	c.noteFailure(c.source, err)
	byName := map[string][]api.Metric{}
	for _, m := range all {
		byName[m.Name] = append(byName[m.Name], m)
	}
	for name, series := range byName {
		labels := slices.Sorted(maps.Keys(series[0].Labels))
		desc := prometheus.NewDesc(name, series[0].Help, labels, nil)
		for _, m := range c.limit.admit(name, labels, series) {
			to <- export(desc, labels, m)
		}
	}
}

// export returns a series for the registry.
func export(desc *prometheus.Desc, labels []string, m api.Metric) prometheus.Metric {
	if len(m.Labels) != len(labels) {
		return prometheus.NewInvalidMetric(desc, fmt.Errorf("%s has the labels %v and %v", m.Name, labels, m.Labels))
	}
	result, err := constant(desc, m, valuesOf(labels, m))
	if err != nil {
		return prometheus.NewInvalidMetric(desc, fmt.Errorf("%s: %w", m.Name, err))
	}
	return result
}

func constant(desc *prometheus.Desc, m api.Metric, values []string) (prometheus.Metric, error) {
	switch m.Kind {
	case api.CounterMetric:
		return prometheus.NewConstMetric(desc, prometheus.CounterValue, m.Value, values...)
	case api.GaugeMetric:
		return prometheus.NewConstMetric(desc, prometheus.GaugeValue, m.Value, values...)
	case api.HistogramMetric:
		if m.Histogram == nil {
			return nil, fmt.Errorf("a histogram without buckets")
		}
		buckets := make(map[float64]uint64, len(m.Histogram.Buckets))
		for _, b := range m.Histogram.Buckets {
			buckets[b.UpTo] = b.Count
		}
		return prometheus.NewConstHistogram(desc, m.Histogram.Count, m.Histogram.Sum, buckets, values...)
	}
	return nil, fmt.Errorf("unknown kind %q", m.Kind)
}

// valuesOf returns the values of labels; a missing label is empty.
func valuesOf(labels []string, m api.Metric) []string {
	values := make([]string, len(labels))
	for i, l := range labels {
		values[i] = m.Labels[l]
	}
	return values
}
