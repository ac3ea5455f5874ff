// SPDX-License-Identifier: Apache-2.0

// Package balancer measures a client and two web servers, by Beeline and by other balancers.
package balancer

import (
	"context"
	"errors"
	"fmt"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
	"beeline.io/beeline/bench/web"
)

const partName = "balancer"

// Part is the part balancer.
var Part = harness.Part{Name: partName, Text: "a client and two web servers, by Beeline and by other balancers", Run: runBalancer, Print: printBalancer}

// For each run of wrk. CPU time is the whole machine's.
var metricRequests = result.Metric{Name: "requests", Unit: "1", Better: result.None}

const (
	balancerRounds  = 7 // at most
	balancerSeconds = 2 // of each run
	smokeSeconds    = 1 // the minimum of wrk
)

func runBalancer(ctx context.Context, b *harness.Bench) (err error) {
	rig, err := newRig(ctx, b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.end()) }()
	all := rig.ways()
	for _, w := range all {
		if err := w.prove(ctx); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	rounds, seconds := min(b.Runs, balancerRounds), balancerSeconds
	if b.Smoke {
		seconds = smokeSeconds
	}
	for round := range rounds {
		for _, i := range harness.Turns(round, len(all)) {
			if err := all[i].measure(ctx, b, seconds); err != nil {
				return fmt.Errorf("%s: %w", all[i].name, err)
			}
		}
	}
	return nil
}

// fewestRequests is the minimum of a run: with fewer, the kernel's own packets would matter.
const fewestRequests = 200

// measure runs wrk once. On a busy machine it may get next to no CPU: such a run is repeated.
func (w *way) measure(ctx context.Context, b *harness.Bench, seconds int) error {
	for range web.Tries {
		if err := w.run(ctx, b, seconds); !errors.Is(err, web.ErrNoAnswer) {
			return err
		}
	}
	return fmt.Errorf("fewer than %d requests in %d s, %d times in a row", fewestRequests, seconds, web.Tries)
}

// run runs wrk, and proves which path its requests took.
func (w *way) run(ctx context.Context, b *harness.Bench, seconds int) error {
	before, err := w.traffic()
	if err != nil {
		return err
	}
	used := harness.UsageNow()
	r, err := web.Run(ctx, w.world.Host("client"), w.to, seconds)
	if err != nil {
		return err
	}
	if r.Requests < fewestRequests {
		return web.ErrNoAnswer
	}
	busy := harness.UsageNow().Busy - used.Busy
	after, err := w.traffic()
	if err != nil {
		return err
	}
	add := func(m result.Metric, value float64) { b.Results.AddSide(wayOfDirect, waySeries(w.name), m, value) }
	requests := float64(r.Requests)
	add(metricRequests, requests)
	add(harness.MetricPerSecond, requests/r.Microseconds*1e6)
	add(harness.MetricP50, r.P50)
	add(harness.MetricP99, r.P99)
	add(harness.MetricRequestCPU, float64(busy.Microseconds())/requests)
	return w.proveTraffic(before, after, r.Requests)
}

func waySeries(way string) result.Series {
	return result.Series{Part: partName, Scenario: "HTTP, connections kept open", Side: way, Family: "IPv4",
		Parameters: result.Parameters{"connections": web.Connections, "servers": len(webPods)}}
}

func printBalancer(r *harness.Report) {
	rates := func(way string) []float64 { return r.Results.Samples(waySeries(way), harness.MetricPerSecond) }
	direct, sockmap := rates(wayOfDirect), rates(wayOfSockmap)
	r.Say("\nwrk -t%d -c%d through two web servers, answers of %d bytes; medians of %d rounds, rates also least - most", web.Threads, web.Connections, web.AnswerLength, len(direct))
	r.Say("\n  %-24s %10s %17s %8s %8s %8s   %-23s %-23s", "", "per second", "", "p50 us", "p99 us", "CPU us", "rate, by direct", "rate, by sockmap")
	for _, row := range r.Results.Of(partName, harness.MetricPerSecond) {
		median := func(m result.Metric) float64 { return stat.Median(r.Results.Samples(row.Series, m)) }
		r.Say("  %-24s %10.0f %8.0f -%7.0f %8.0f %8.0f %8.1f   %-23s %-23s", row.Side,
			median(harness.MetricPerSecond), stat.Quantile(row.Samples, 0), stat.Quantile(row.Samples, 1),
			median(harness.MetricP50), median(harness.MetricP99), median(harness.MetricRequestCPU),
			stat.MedianInterval(stat.Ratios(row.Samples, direct)), stat.MedianInterval(stat.Ratios(row.Samples, sockmap)))
	}
}
