// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"beeline.io/beeline/bench/forward"
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
	rig, err := forward.NewRig(ctx, b, (*forward.Rig).AddBeeline, (*forward.Rig).AddYardsticks, (*forward.Rig).AddRules, (*forward.Rig).AddIPVS, (*forward.Rig).AddProxies, (*forward.Rig).Settle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.End()) }()
	for round := range min(b.Runs, forward.Rounds) {
		for _, i := range harness.Turns(round, len(rig.Sides)) {
			s := rig.Sides[i]
			if b.Only != nil && !b.Only.MatchString(s.Name) {
				continue
			}
			if err := measureRate(ctx, b, s); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			if round >= rateOfferRounds {
				continue
			}
			for _, rate := range rateOffers {
				if err := offerRate(ctx, b, s, rate); err != nil {
					return fmt.Errorf("%s, %d packets per second: %w", s.Name, rate, err)
				}
			}
		}
	}
	return nil
}

// rateSeries is a side's series; offered is 0 for packets as fast as they are accepted.
func rateSeries(side string, offered int) result.Series {
	s := result.Series{Part: partRates, Scenario: "UDP, established, as fast as it goes", Side: side, Family: "IPv4",
		Parameters: result.Parameters{"flows": forward.Flows}}
	if offered > 0 {
		s.Scenario, s.Parameters["packets offered per second"] = "UDP, established, offered at a rate", offered
	}
	return s
}

// measureRate sends as fast as packets are accepted.
func measureRate(ctx context.Context, b *harness.Bench, s *forward.Side) error {
	slice := forward.Burst{Set: s.Frames(), Packets: math.MaxInt64, Limit: forward.SliceLength, Like: s.Like()}
	if b.Smoke {
		slice.Limit = forward.SliceLengthSmoke
	}
	// The first moment loads the side's program and tables into the caches.
	warm := slice
	warm.Packets, warm.Limit = 2*forward.Flows, 0
	if err := s.Counted(ctx, warm, 0, false); err != nil {
		return err
	}
	o, err := s.Slice(ctx, slice)
	if err != nil {
		return err
	}
	row := result.Row{Series: rateSeries(s.Name, 0), Metric: harness.MetricPacketCPU, Against: s.Against()}
	b.Results.Add(row, float64(o.CPU.Nanoseconds())/float64(o.Sent))
	return nil
}

// offerRate sends so many packets per second, if they are accepted.
func offerRate(ctx context.Context, b *harness.Bench, s *forward.Side, rate int) error {
	slice := forward.Burst{Set: s.Frames(), Packets: math.MaxInt64, Limit: rateOfferSlice, Like: s.Like(), Pace: time.Second / time.Duration(rate)}
	if b.Smoke {
		slice.Limit = forward.SliceLengthSmoke
	}
	o, err := s.Slice(ctx, slice)
	if err != nil {
		return err
	}
	series := rateSeries(s.Name, rate)
	b.Results.Add(result.Row{Series: series, Metric: metricPassed, Against: s.Against()}, float64(o.Sent)/o.Took.Seconds())
	b.Results.Add(result.Row{Series: series, Metric: metricShare, Against: s.Against()}, o.CPU.Seconds()/o.Took.Seconds())
	return nil
}
