// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"beeline.io/beeline/test/bench/endpoint"
	"beeline.io/beeline/test/bench/stat"
)

// sample is what one slice gave. Times are in microseconds.
type sample struct {
	Operations uint64  `json:"operations"`
	Connected  uint64  `json:"connected"`
	P10        float64 `json:"p10"`
	P50        float64 `json:"p50"`
	P90        float64 `json:"p90"`
	P99        float64 `json:"p99"`
	Rate       float64 `json:"rate"`             // operations per second
	CPU        float64 `json:"cpu"`              // per operation: client, server, kernel threads
	Resent     uint64  `json:"resent,omitempty"` // datagrams
}

func sampleOf(r endpoint.Result) sample {
	return sample{
		Operations: r.Operations, Connected: r.Connected,
		P10: micros(r.P10), P50: micros(r.P50), P90: micros(r.P90), P99: micros(r.P99),
		Rate: float64(r.Operations) / r.Elapsed.Seconds(),
		CPU:  micros(r.CPU) / float64(r.Operations), Resent: r.Resent,
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// A metric is one of the figures of a sample.
type metric struct {
	name string
	of   func(sample) float64
}

var (
	metricP10  = metric{"p10", func(s sample) float64 { return s.P10 }}
	metricP50  = metric{"p50", func(s sample) float64 { return s.P50 }}
	metricP90  = metric{"p90", func(s sample) float64 { return s.P90 }}
	metricP99  = metric{"p99", func(s sample) float64 { return s.P99 }}
	metricRate = metric{"operations per second", func(s sample) float64 { return s.Rate }}
	metricCPU  = metric{"CPU per operation", func(s sample) float64 { return s.CPU }}
)

// The metrics that are compared. The tenth percentile is that of operations that
// nothing disturbed: on a busy machine it alone may tell something.
var ratioMetrics = []metric{metricP10, metricP50, metricRate, metricCPU}

// socketResult is all about one scenario.
type socketResult struct {
	Scenario scenario        `json:"scenario"`
	CPUs     cpuPair         `json:"cpus"`
	Samples  [sides][]sample `json:"samples"` // by side, then by round
	Resent   uint64          `json:"resent"`  // datagrams, for want of an answer
	// Ratios are of paired slices, those of one round: A/A, direct and
	// ClusterIP to the bare node, and ClusterIP to direct on the same node.
	Ratios map[string]map[string]stat.Interval `json:"ratios"`
}

// The pairs that are compared: a side and the side it is divided by.
var pairs = []struct {
	name     string
	side, by int
}{
	{"A/A", sideAgain, sideBare},
	{"direct to bare", sideDirect, sideBare},
	{"ClusterIP to bare", sideService, sideBare},
	{"ClusterIP to direct", sideService, sideDirect},
}

func (r *socketResult) values(side int, m metric) []float64 {
	values := make([]float64, len(r.Samples[side]))
	for i, s := range r.Samples[side] {
		values[i] = m.of(s)
	}
	return values
}

func (r *socketResult) summarize() {
	r.Ratios = map[string]map[string]stat.Interval{}
	for _, p := range pairs {
		r.Ratios[p.name] = map[string]stat.Interval{}
		for _, m := range ratioMetrics {
			r.Ratios[p.name][m.name] = stat.MedianInterval(stat.Ratios(r.values(p.side, m), r.values(p.by, m)))
		}
	}
}

func (r *socketResult) print(b *bench) {
	b.say("\n%s; client on CPU %d, server on CPU %d", r.Scenario, r.CPUs.Client, r.CPUs.Server)
	b.say("  %-24s %8s %8s %8s %8s %10s %8s", "", "p10 us", "p50 us", "p90 us", "p99 us", "per second", "CPU us")
	for i, name := range sideNames {
		median := func(m metric) float64 { return stat.Median(r.values(i, m)) }
		b.say("  %-24s %8.1f %8.1f %8.1f %8.1f %10.0f %8.1f", name, median(metricP10),
			median(metricP50), median(metricP90), median(metricP99), median(metricRate), median(metricCPU))
	}
	if r.Resent > 0 {
		b.say("  %d datagrams had no answer and were sent again.", r.Resent)
	}
}

// printSocketSummary puts the ratios of all scenarios side by side.
func printSocketSummary(b *bench, all []socketResult) {
	for _, m := range ratioMetrics {
		b.say("\nRatios of %s, median of %d paired slices [95 %% interval]", m.name, b.runs)
		line := fmt.Sprintf("  %-57s", "")
		for _, p := range pairs {
			line += fmt.Sprintf(" %-22s", p.name)
		}
		b.say("%s", line)
		for _, r := range all {
			line := fmt.Sprintf("  %-57s", r.Scenario)
			for _, p := range pairs {
				line += fmt.Sprintf(" %-22s", r.Ratios[p.name][m.name])
			}
			b.say("%s", line)
		}
	}
}
