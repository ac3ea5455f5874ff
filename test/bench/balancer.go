// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"beeline.io/beeline/test/bench/stat"
)

// balancerResult is what a way to the web servers gives, round by round.
type balancerResult struct {
	Way     string           `json:"way"`
	Samples []balancerSample `json:"samples"`
}

// balancerSample is one run of wrk.
type balancerSample struct {
	wrkResult
	PerSecond float64 `json:"perSecond"`
	CPU       float64 `json:"cpu"` // microseconds of the whole machine for each request
}

const (
	balancerRounds  = 7 // at most
	balancerSeconds = 2 // of each run
	smokeSeconds    = 1 // wrk knows nothing shorter
)

func runBalancer(ctx context.Context, b *bench) (err error) {
	rig, err := newBalancerRig(ctx, b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.end()) }()
	all := rig.ways()
	results := make([]balancerResult, len(all))
	for i, w := range all {
		results[i].Way = w.name
		if err := w.prove(ctx); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	rounds, seconds := min(b.runs, balancerRounds), balancerSeconds
	if b.smoke {
		seconds = smokeSeconds
	}
	for round := range rounds {
		for _, i := range turns(round, len(all)) {
			sample, err := all[i].measure(ctx, seconds)
			if err != nil {
				return fmt.Errorf("%s: %w", all[i].name, err)
			}
			results[i].Samples = append(results[i].Samples, sample)
		}
	}
	b.results.Balancer = results
	printBalancer(b)
	return nil
}

// measure is one run of wrk, and the proof that its requests went that way.
func (w *way) measure(ctx context.Context, seconds int) (s balancerSample, err error) {
	before, err := w.traffic()
	if err != nil {
		return s, err
	}
	used := usageNow()
	if s.wrkResult, err = runWrk(ctx, w.world.Host("client"), w.to, seconds); err != nil {
		return s, err
	}
	busy := usageNow().busy - used.busy
	s.PerSecond = float64(s.Requests) / s.Microseconds * 1e6
	s.CPU = float64(busy.Microseconds()) / float64(s.Requests)
	after, err := w.traffic()
	if err != nil {
		return s, err
	}
	return s, w.proveTraffic(before, after, s.Requests)
}

func (r balancerResult) values(of func(balancerSample) float64) (values []float64) {
	for _, s := range r.Samples {
		values = append(values, of(s))
	}
	return values
}

func printBalancer(b *bench) {
	all := b.results.Balancer
	rate := func(s balancerSample) float64 { return s.PerSecond }
	direct, sockmap := all[0], all[0]
	for _, r := range all {
		if r.Way == wayOfSockmap {
			sockmap = r
		}
	}
	b.say("\nwrk -t%d -c%d through two web servers, answers of %d bytes; medians of %d rounds, rates also least - most", wrkThreads, wrkConnections, answerLength, len(direct.Samples))
	b.say("\n  %-24s %10s %17s %8s %8s %8s   %-23s %-23s", "", "per second", "", "p50 us", "p99 us", "CPU us", "rate, by direct", "rate, by sockmap")
	for _, r := range all {
		rates := r.values(rate)
		median := func(of func(balancerSample) float64) float64 { return stat.Median(r.values(of)) }
		b.say("  %-24s %10.0f %8.0f -%7.0f %8.0f %8.0f %8.1f   %-23s %-23s", r.Way,
			stat.Median(rates), stat.Quantile(rates, 0), stat.Quantile(rates, 1),
			median(func(s balancerSample) float64 { return s.P50 }), median(func(s balancerSample) float64 { return s.P99 }),
			median(func(s balancerSample) float64 { return s.CPU }),
			stat.MedianInterval(stat.Ratios(rates, direct.values(rate))), stat.MedianInterval(stat.Ratios(rates, sockmap.values(rate))))
	}
}
