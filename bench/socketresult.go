// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

// For each slice. CPU time is that of client, server and kernel threads together.
var (
	metricOperations = result.Metric{Name: "operations", Unit: "1", Better: result.None}
	metricThroughput = result.Metric{Name: "throughput", Unit: "GB/s", Better: result.Higher}
	metricByteCPU    = result.Metric{Name: "CPU time per byte", Unit: "ns", Better: result.Lower}
	metricResent     = result.Metric{Name: "datagrams sent again", Unit: "1", Better: result.None}
)

// The metrics with printed ratios. The tenth percentile is of undisturbed operations: on a busy machine only
// that may be significant.
var ratioMetrics = []result.Metric{metricP10, metricP50, metricRate, metricCPU}

// series is the scenario on one side.
func (s scenario) series(side int) result.Series {
	return result.Series{Part: partSockets, Scenario: fmt.Sprintf("%s, %s backend", s.Mode, s.Backend), Side: sideNames[side],
		Family: s.Family, Parameters: result.Parameters{"connections": s.Connections, "services": s.Services}}
}

// addSlice adds the results of one slice. All sides are compared with the first.
func (s scenario) addSlice(results *result.File, side int, r endpoint.Result) {
	operations := float64(r.Operations)
	add := func(m result.Metric, value float64) {
		row := result.Row{Series: s.series(side), Metric: m}
		if side != sideBare && m.Better != result.None {
			row.Against = sideNames[sideBare]
		}
		results.Add(row, value)
	}
	add(metricOperations, operations)
	add(metricP10, micros(r.P10))
	add(metricP50, micros(r.P50))
	add(metricP90, micros(r.P90))
	add(metricP99, micros(r.P99))
	add(metricRate, operations/r.Elapsed.Seconds())
	add(metricCPU, micros(r.CPU)/operations)
	if s.Mode == endpoint.Stream {
		add(metricThroughput, operations*endpoint.StreamWrite/r.Elapsed.Seconds()/1e9)
		add(metricByteCPU, float64(r.CPU.Nanoseconds())/operations/endpoint.StreamWrite)
	}
	if s.Mode.Datagrams() {
		add(metricResent, float64(r.Resent))
	}
}

// The pairs with printed ratios: a side and the side it is divided by.
var pairs = []struct {
	name     string
	side, by int
}{
	{"A/A", sideAgain, sideBare},
	{"no-op to bare", sideNoOp, sideBare},
	{"direct to bare", sideDirect, sideBare},
	{"direct to no-op", sideDirect, sideNoOp},
	{"ClusterIP to bare", sideService, sideBare},
	{"ClusterIP to direct", sideService, sideDirect},
	{"nftables to bare", sideProxyNFT, sideBare},
	{"ClusterIP to nftables", sideService, sideProxyNFT},
	{"ClusterIP to iptables", sideService, sideProxyIPT},
}

func printSockets(r *report) {
	var measured []scenario
	for _, s := range scenarios(r.results.Settings.Smoke) {
		if r.results.Samples(s.series(sideBare), metricP50) != nil {
			measured = append(measured, s)
			s.print(r)
		}
	}
	// The ratios of all scenarios side by side.
	for _, m := range ratioMetrics {
		r.say("\nRatios of %s, median of %d paired slices [95 %% interval]", m.Name, r.results.Settings.Runs)
		line := fmt.Sprintf("  %-72s", "")
		for _, p := range pairs {
			line += fmt.Sprintf(" %-22s", p.name)
		}
		r.say("%s", line)
		for _, s := range measured {
			line := fmt.Sprintf("  %-72s", s)
			for _, p := range pairs {
				side, by := r.results.Samples(s.series(p.side), m), r.results.Samples(s.series(p.by), m)
				if side == nil || by == nil {
					line += fmt.Sprintf(" %-22s", "-")
					continue
				}
				line += fmt.Sprintf(" %-22s", stat.MedianInterval(stat.Ratios(side, by)))
			}
			r.say("%s", line)
		}
	}
}

func (s scenario) print(r *report) {
	cpus := pairOf(r.results.Settings, s.Connections)
	r.say("\n%s; client on CPU %d, server on CPU %d", s, cpus.Client, cpus.Server)
	r.say("  %-24s %8s %8s %8s %8s %10s %8s", "", "p10 us", "p50 us", "p90 us", "p99 us", "per second", "CPU us")
	resent := 0.0
	for i, name := range sideNames {
		if r.results.Samples(s.series(i), metricP50) == nil {
			continue // no kube-proxy
		}
		median := func(m result.Metric) float64 { return stat.Median(r.results.Samples(s.series(i), m)) }
		r.say("  %-24s %8.1f %8.1f %8.1f %8.1f %10.0f %8.1f", name, median(metricP10),
			median(metricP50), median(metricP90), median(metricP99), median(metricRate), median(metricCPU))
		if s.Mode == endpoint.Stream {
			r.say("  %-24s %.2f GB/s, %.3f ns of CPU time for a byte", "", median(metricThroughput), median(metricByteCPU))
		}
		for _, n := range r.results.Samples(s.series(i), metricResent) {
			resent += n
		}
	}
	if resent > 0 {
		r.say("  %.0f datagrams had no answer and were sent again.", resent)
	}
}
