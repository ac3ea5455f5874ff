// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"slices"
	"time"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/result"
)

// Metrics of more than one part. CPU time is that of all ends and kernel threads together, for a packet that of the
// balancer.
var (
	MetricP10        = result.Metric{Name: "p10 latency", Unit: "us", Better: result.Lower}
	MetricP50        = result.Metric{Name: "p50 latency", Unit: "us", Better: result.Lower}
	MetricP90        = result.Metric{Name: "p90 latency", Unit: "us", Better: result.Lower}
	MetricP99        = result.Metric{Name: "p99 latency", Unit: "us", Better: result.Lower}
	MetricRate       = result.Metric{Name: "operations per second", Unit: "1/s", Better: result.Higher}
	MetricCPU        = result.Metric{Name: "CPU time per operation", Unit: "us", Better: result.Lower}
	MetricPerSecond  = result.Metric{Name: "requests per second", Unit: "1/s", Better: result.Higher}
	MetricRequestCPU = result.Metric{Name: "CPU time per request", Unit: "us", Better: result.Lower}
	MetricPacketCPU  = result.Metric{Name: "CPU time per packet", Unit: "ns", Better: result.Lower}
	MetricTime       = result.Metric{Name: "time", Unit: "ms", Better: result.Lower}
	// The rest of the resident memory is the program, and the tables as far as the agent reads them.
	MetricResident = result.Metric{Name: "resident memory", Unit: "MiB", Better: result.Lower}
	MetricPeak     = result.Metric{Name: "most resident memory", Unit: "MiB", Better: result.Lower}
)

// Micros is a duration in the unit of latencies.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// ProxySides is the common prefix of kube-proxy's sides.
const ProxySides = "kube-proxy, "

// SideBeeline is the side with Beeline.
const SideBeeline = "Beeline"

// BothFamilies are the families of addresses.
var BothFamilies = []string{"IPv4", "IPv6"}

// Turns is the order of so many sides in a round, which changes with the round: so any drift affects all of
// them.
func Turns(round, sides int) []int {
	order := make([]int, 0, sides)
	for i := range sides {
		order = append(order, (i+round)%sides)
	}
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// InTurns runs each side in each round, in the order of Turns.
func InTurns(rounds int, sides []string, run func(side int) error) error {
	for round := range rounds {
		for _, side := range Turns(round, len(sides)) {
			if err := run(side); err != nil {
				return fmt.Errorf("%s: %w", sides[side], err)
			}
		}
	}
	return nil
}

// AddTraffic adds these metrics of a slice of traffic, compared with a side.
func AddTraffic(results *result.File, against string, series result.Series, r endpoint.Result, metrics ...result.Metric) {
	operations := float64(r.Operations)
	values := map[result.Metric]float64{MetricP10: Micros(r.P10), MetricP50: Micros(r.P50), MetricP90: Micros(r.P90), MetricP99: Micros(r.P99),
		MetricRate: operations / r.Elapsed.Seconds(), MetricCPU: Micros(r.CPU) / operations}
	for _, m := range metrics {
		results.AddSide(against, series, m, values[m])
	}
}

// ChangeTimeout is how long a change may take until it is visible.
const ChangeTimeout = 3 * time.Minute
