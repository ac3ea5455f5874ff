// SPDX-License-Identifier: Apache-2.0

// Package rates measures the CPU time of balancers for a packet.
package rates

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

const partName = "rates"

// Part is the part rates.
var Part = harness.Part{Name: partName, Text: "packets through balancers: CPU time for each, and how many a core takes", Run: runRates, Print: printRates}

// For each slice of packets. CPU time is the balancer's.
var (
	MetricPassed = result.Metric{Name: "packets per second", Unit: "1/s", Better: result.Higher}
	MetricShare  = result.Metric{Name: "share of a CPU", Unit: "1", Better: result.Lower}
)

// offers are the offered rates, in packets per second.
var offers = []int{250_000, 500_000, 1_000_000, 2_000_000}

const (
	offerSlice  = 50 * time.Millisecond
	offerRounds = 5 // at most
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
			if err := measure(ctx, b, s); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			if round >= offerRounds {
				continue
			}
			for _, rate := range offers {
				if err := offer(ctx, b, s, rate); err != nil {
					return fmt.Errorf("%s, %d packets per second: %w", s.Name, rate, err)
				}
			}
		}
	}
	return nil
}

// Series is a side's series; offered is 0 for packets as fast as they are accepted.
func Series(side string, offered int) result.Series {
	s := result.Series{Part: partName, Scenario: "UDP, established, as fast as it goes", Side: side, Family: "IPv4",
		Parameters: result.Parameters{"flows": forward.Flows}}
	if offered > 0 {
		s.Scenario, s.Parameters["packets offered per second"] = "UDP, established, offered at a rate", offered
	}
	return s
}

// measure sends as fast as packets are accepted.
func measure(ctx context.Context, b *harness.Bench, s *forward.Side) error {
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
	row := result.Row{Series: Series(s.Name, 0), Metric: harness.MetricPacketCPU, Against: s.Against()}
	b.Results.Add(row, float64(o.CPU.Nanoseconds())/float64(o.Sent))
	return nil
}

// offer sends so many packets per second, if they are accepted.
func offer(ctx context.Context, b *harness.Bench, s *forward.Side, rate int) error {
	slice := forward.Burst{Set: s.Frames(), Packets: math.MaxInt64, Limit: offerSlice, Like: s.Like(), Pace: time.Second / time.Duration(rate)}
	if b.Smoke {
		slice.Limit = forward.SliceLengthSmoke
	}
	o, err := s.Slice(ctx, slice)
	if err != nil {
		return err
	}
	series := Series(s.Name, rate)
	b.Results.Add(result.Row{Series: series, Metric: MetricPassed, Against: s.Against()}, float64(o.Sent)/o.Took.Seconds())
	b.Results.Add(result.Row{Series: series, Metric: MetricShare, Against: s.Against()}, o.CPU.Seconds()/o.Took.Seconds())
	return nil
}
