// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"beeline.io/beeline/bench/result"
)

// Metrics of more than one part. CPU time is that of all ends and kernel threads together, for a packet that of the
// balancer.
var (
	metricP10        = result.Metric{Name: "p10 latency", Unit: "us", Better: result.Lower}
	metricP50        = result.Metric{Name: "p50 latency", Unit: "us", Better: result.Lower}
	metricP90        = result.Metric{Name: "p90 latency", Unit: "us", Better: result.Lower}
	metricP99        = result.Metric{Name: "p99 latency", Unit: "us", Better: result.Lower}
	metricRate       = result.Metric{Name: "operations per second", Unit: "1/s", Better: result.Higher}
	metricCPU        = result.Metric{Name: "CPU time per operation", Unit: "us", Better: result.Lower}
	metricPerSecond  = result.Metric{Name: "requests per second", Unit: "1/s", Better: result.Higher}
	metricRequestCPU = result.Metric{Name: "CPU time per request", Unit: "us", Better: result.Lower}
	metricPacketCPU  = result.Metric{Name: "CPU time per packet", Unit: "ns", Better: result.Lower}
	metricTime       = result.Metric{Name: "time", Unit: "ms", Better: result.Lower}
	// The rest of the resident memory is the program, and the tables as far as the agent reads them.
	metricResident = result.Metric{Name: "resident memory", Unit: "MiB", Better: result.Lower}
	metricPeak     = result.Metric{Name: "most resident memory", Unit: "MiB", Better: result.Lower}
)

// micros is a duration in the unit of latencies.
func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
