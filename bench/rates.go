// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
)

const partRates = "rates"

// ratesPart is the part rates.
var ratesPart = harness.Part{Name: partRates, Text: "packets through balancers: CPU time for each, and how many a core takes", Run: runRates, Print: printRates}

// For each slice of packets. CPU time is the balancer's.
var (
	metricPassed = result.Metric{Name: "packets per second", Unit: "1/s", Better: result.Higher}
	metricShare  = result.Metric{Name: "share of a CPU", Unit: "1", Better: result.Lower}
)

// rateOffers are the offered rates, in packets per second.
var rateOffers = []int{250_000, 500_000, 1_000_000, 2_000_000}

const (
	rateOfferSlice  = 50 * time.Millisecond
	rateOfferRounds = 5 // at most
)

func runRates(ctx context.Context, b *harness.Bench) (err error) {
	if b.Two.Client == b.Two.Server {
		return errors.New("the balancer and its clients need a CPU each, but there is only one")
	}
	// Beeline first: while the others are created it finds that its Service with DSR has no earlier flows.
	rig, err := newRateRig(ctx, b, (*rateRig).addBeeline, (*rateRig).addYardsticks, (*rateRig).addRules, (*rateRig).addIPVS, (*rateRig).addProxies, (*rateRig).settle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.end()) }()
	for round := range min(b.Runs, rateRounds) {
		for _, i := range harness.Turns(round, len(rig.sides)) {
			s := rig.sides[i]
			if b.Only != nil && !b.Only.MatchString(s.name) {
				continue
			}
			if err := measureRate(ctx, b, s); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if round >= rateOfferRounds {
				continue
			}
			for _, rate := range rateOffers {
				if err := offerRate(ctx, b, s, rate); err != nil {
					return fmt.Errorf("%s, %d packets per second: %w", s.name, rate, err)
				}
			}
		}
	}
	return nil
}

// rateSeries is a side's series; offered is 0 for packets as fast as they are accepted.
func rateSeries(side string, offered int) result.Series {
	s := result.Series{Part: partRates, Scenario: "UDP, established, as fast as it goes", Side: side, Family: "IPv4",
		Parameters: result.Parameters{"flows": rateFlows}}
	if offered > 0 {
		s.Scenario, s.Parameters["packets offered per second"] = "UDP, established, offered at a rate", offered
	}
	return s
}

// measureRate sends as fast as packets are accepted.
func measureRate(ctx context.Context, b *harness.Bench, s *rateSide) error {
	slice := burst{set: s.frames(), packets: math.MaxInt64, limit: rateSlice, like: s.like()}
	if b.Smoke {
		slice.limit = rateSliceSmoke
	}
	// The first moment loads the side's program and tables into the caches.
	warm := slice
	warm.packets, warm.limit = 2*rateFlows, 0
	if err := s.counted(ctx, warm, 0, false); err != nil {
		return err
	}
	o, err := s.slice(ctx, slice)
	if err != nil {
		return err
	}
	row := result.Row{Series: rateSeries(s.name, 0), Metric: harness.MetricPacketCPU, Against: s.against()}
	b.Results.Add(row, float64(o.cpu.Nanoseconds())/float64(o.sent))
	return nil
}

// offerRate sends so many packets per second, if they are accepted.
func offerRate(ctx context.Context, b *harness.Bench, s *rateSide, rate int) error {
	slice := burst{set: s.frames(), packets: math.MaxInt64, limit: rateOfferSlice, like: s.like(), pace: time.Second / time.Duration(rate)}
	if b.Smoke {
		slice.limit = rateSliceSmoke
	}
	o, err := s.slice(ctx, slice)
	if err != nil {
		return err
	}
	series := rateSeries(s.name, rate)
	b.Results.Add(result.Row{Series: series, Metric: metricPassed, Against: s.against()}, float64(o.sent)/o.took.Seconds())
	b.Results.Add(result.Row{Series: series, Metric: metricShare, Against: s.against()}, o.cpu.Seconds()/o.took.Seconds())
	return nil
}
