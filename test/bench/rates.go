// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"beeline.io/beeline/test/bench/stat"
)

// rateResult is what packets through a balancer cost, round by round.
type rateResult struct {
	Side string `json:"side"`
	// PerPacket is the balancer's CPU time for a packet, in ns, when it has as many as it
	// can take.
	PerPacket []float64 `json:"perPacketNs"`
	// Offered is what it does with so many packets, by rate.
	Offered []rateOffer `json:"offered"`
}

// rateOffer is a rate that clients offer. The samples are by round.
type rateOffer struct {
	Rate    float64   `json:"rate"`    // packets per second
	Passed  []float64 `json:"passed"`  // packets per second
	Softirq []float64 `json:"softirq"` // share of one CPU
}

var rateOffers = []float64{0.25e6, 0.5e6, 1e6, 2e6}

const (
	rateRounds      = 7      // at most
	ratePackets     = 200000 // of a burst as fast as it can be, at the fastest side
	rateSlice       = 60 * time.Millisecond
	rateSliceSmoke  = 5 * time.Millisecond
	rateOfferSlice  = 50 * time.Millisecond
	rateOfferRounds = 5
)

func runRates(ctx context.Context, b *bench) (err error) {
	rig, err := newRateRig(ctx, b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.end()) }()
	results := make([]rateResult, len(rig.sides))
	for i, s := range rig.sides {
		results[i].Side = s.name
		for _, rate := range rateOffers {
			results[i].Offered = append(results[i].Offered, rateOffer{Rate: rate})
		}
	}
	for round := range min(b.runs, rateRounds) {
		for _, i := range turns(round, len(rig.sides)) {
			if err := rig.sides[i].measure(ctx, b, &results[i], round < rateOfferRounds); err != nil {
				return fmt.Errorf("%s: %w", rig.sides[i].name, err)
			}
		}
	}
	b.results.Rates = results
	printRates(b, rig)
	return nil
}

// measure sends as fast as packets are taken, and then at each rate.
func (s *rateSide) measure(ctx context.Context, b *bench, r *rateResult, offers bool) error {
	slice, offer := rateSlice, rateOfferSlice
	if b.smoke {
		slice, offer = rateSliceSmoke, rateSliceSmoke
	}
	all := burst{set: s.frames(), packets: math.MaxInt64, limit: slice, like: s.like()}
	// The first moment brings the side's program and tables into the caches.
	warm := all
	warm.packets, warm.limit = 2*rateFlows, 0
	if err := s.counted(ctx, warm, 0, false); err != nil {
		return err
	}
	o, err := s.run(ctx, all, 0, false)
	if err != nil {
		return err
	}
	r.PerPacket = append(r.PerPacket, float64(o.cpu.Nanoseconds())/float64(o.sent))
	if !offers {
		return nil
	}
	for i := range r.Offered {
		all.limit, all.pace = offer, time.Duration(float64(time.Second)/r.Offered[i].Rate)
		o, err := s.run(ctx, all, 0, false)
		if err != nil {
			return err
		}
		r.Offered[i].Passed = append(r.Offered[i].Passed, float64(o.sent)/o.took.Seconds())
		r.Offered[i].Softirq = append(r.Offered[i].Softirq, o.cpu.Seconds()/o.took.Seconds())
	}
	return nil
}

func printRates(b *bench, rig *rateRig) {
	all := b.results.Rates
	by := map[string]rateResult{}
	for _, r := range all {
		by[r.Side] = r
	}
	b.say("\n%d flows of UDP over IPv4, established; the balancer on CPU %d, client and receiver on CPU %d; medians of %d rounds", rateFlows, rig.cpus.Server, rig.cpus.Client, len(all[0].PerPacket))
	b.say("CPU time of the balancer for a packet, and its share of a core (packets passed, in millions a second) where so many are offered\n")
	line := fmt.Sprintf("  %-42s %6s %15s %6s ", "", "ns", "least - most", "Mpps")
	for _, rate := range rateOffers {
		line += fmt.Sprintf(" %13.2g M", rate/1e6)
	}
	b.say("%s", line)
	for _, r := range all {
		median := stat.Median(r.PerPacket)
		line := fmt.Sprintf("  %-42s %6.0f %6.0f - %6.0f %6.2f ", r.Side, median, stat.Quantile(r.PerPacket, 0), stat.Quantile(r.PerPacket, 1), 1e3/median)
		for _, o := range r.Offered {
			line += fmt.Sprintf(" %5.0f %% (%.2f)", 100*stat.Median(o.Softirq), stat.Median(o.Passed)/1e6)
		}
		b.say("%s", line)
	}
	for _, reason := range rig.without {
		b.say("  without %s", reason)
	}
}
