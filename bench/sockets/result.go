// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"reflect"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/internal/bpf"
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
var ratioMetrics = []result.Metric{harness.MetricP10, harness.MetricP50, harness.MetricRate, harness.MetricCPU}

// series is the scenario on one side.
func (s scenario) series(side int) result.Series {
	return result.Series{Part: part, Scenario: fmt.Sprintf("%s, %s backend", s.Mode, s.Backend), Side: sideNames[side],
		Family: s.Family, Parameters: result.Parameters{"connections": s.Connections, "services": s.Services}}
}

// addSlice adds the results of one slice. All sides are compared with the first.
func (s scenario) addSlice(results *result.File, side int, r endpoint.Result) {
	operations := float64(r.Operations)
	add := func(m result.Metric, value float64) { results.AddSide(sideNames[sideBare], s.series(side), m, value) }
	add(metricOperations, operations)
	harness.AddTraffic(results, sideNames[sideBare], s.series(side), r,
		harness.MetricP10, harness.MetricP50, harness.MetricP90, harness.MetricP99, harness.MetricRate, harness.MetricCPU)
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

func printSockets(r *harness.Report) {
	var measured []scenario
	for _, s := range scenarios(r.Results.Settings.Smoke) {
		if r.Results.Samples(s.series(sideBare), harness.MetricP50) != nil {
			measured = append(measured, s)
			s.print(r)
		}
	}
	// The ratios of all scenarios side by side.
	for _, m := range ratioMetrics {
		r.Say("\nRatios of %s, median of %d paired slices [95 %% interval]", m.Name, r.Results.Settings.Runs)
		line := fmt.Sprintf("  %-72s", "")
		for _, p := range pairs {
			line += fmt.Sprintf(" %-22s", p.name)
		}
		r.Say("%s", line)
		for _, s := range measured {
			line := fmt.Sprintf("  %-72s", s)
			for _, p := range pairs {
				side, by := r.Results.Samples(s.series(p.side), m), r.Results.Samples(s.series(p.by), m)
				if side == nil || by == nil {
					line += fmt.Sprintf(" %-22s", "-")
					continue
				}
				line += fmt.Sprintf(" %-22s", stat.MedianInterval(stat.Ratios(side, by)))
			}
			r.Say("%s", line)
		}
	}
}

func (s scenario) print(r *harness.Report) {
	cpus := harness.PairOf(r.Results.Settings, s.Connections)
	r.Say("\n%s; client on CPU %d, server on CPU %d", s, cpus.Client, cpus.Server)
	r.Say("  %-24s %8s %8s %8s %8s %10s %8s", "", "p10 us", "p50 us", "p90 us", "p99 us", "per second", "CPU us")
	resent := 0.0
	for i, name := range sideNames {
		if r.Results.Samples(s.series(i), harness.MetricP50) == nil {
			continue // no kube-proxy
		}
		median := func(m result.Metric) float64 { return stat.Median(r.Results.Samples(s.series(i), m)) }
		r.Say("  %-24s %8.1f %8.1f %8.1f %8.1f %10.0f %8.1f", name, median(harness.MetricP10),
			median(harness.MetricP50), median(harness.MetricP90), median(harness.MetricP99), median(harness.MetricRate), median(harness.MetricCPU))
		if s.Mode == endpoint.Stream {
			r.Say("  %-24s %.2f GB/s, %.3f ns of CPU time for a byte", "", median(metricThroughput), median(metricByteCPU))
		}
		for _, n := range r.Results.Samples(s.series(i), metricResent) {
			resent += n
		}
	}
	if resent > 0 {
		r.Say("  %.0f datagrams had no answer and were sent again.", resent)
	}
}

// A path is what handles traffic.
type path string

const (
	unhooked path = "unhooked" // nothing of Beeline
	passed   path = "passed"   // the hooks, which pass it
	balanced path = "balanced" // the hooks, which send it to a backend
)

// countersOf is exactly what the hooks must count for a client's traffic.
func countersOf(p path, mode endpoint.Mode, sockets int, r endpoint.Result) bpf.SocketCounters {
	var c bpf.SocketCounters
	if p == unhooked {
		return c
	}
	if p == balanced {
		c.ConnectBalance = r.Connected
	} else {
		c.ConnectPass = r.Connected
	}
	if mode.Datagrams() {
		c.DatagramPass = r.Sent // the server's replies
	}
	if mode == endpoint.UDPUnconnected {
		if p == balanced {
			c.FlowNew = uint64(sockets)
			c.DatagramBalance, c.DatagramName = r.Sent, r.Received
		} else {
			c.DatagramPass += r.Sent
		}
	}
	return c
}

// prove checks that the hooks have counted exactly what they should. `lost` datagrams may have been lost before
// the server answered them.
func prove(before, after, want bpf.SocketCounters, lost uint64) error {
	got := harness.Combine(after, before, func(a, b uint64) uint64 { return a - b })
	if want.DatagramPass-got.DatagramPass <= lost {
		want.DatagramPass = got.DatagramPass
	}
	var wrong []error
	for field, value := range reflect.ValueOf(got).Fields() {
		if !field.IsExported() {
			continue
		}
		if should := reflect.ValueOf(want).FieldByIndex(field.Index).Uint(); value.Uint() != should {
			wrong = append(wrong, fmt.Errorf("the hooks have counted %s %d times instead of %d", field.Name, value.Uint(), should))
		}
	}
	return errors.Join(wrong...)
}
