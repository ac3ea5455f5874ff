// SPDX-License-Identifier: Apache-2.0

// Package rates measures the CPU time of balancers for a packet.
package rates

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"beeline.io/beeline/bench/forward"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
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
	return rig.InTurns(min(b.Runs, forward.Rounds), func(round int, s *forward.Side) error {
		if b.Only != nil && !b.Only.MatchString(s.Name) {
			return nil
		}
		if err := measure(ctx, b, s); err != nil || round >= offerRounds {
			return err
		}
		for _, rate := range offers {
			if err := offer(ctx, b, s, rate); err != nil {
				return fmt.Errorf("%d packets per second: %w", rate, err)
			}
		}
		return nil
	})
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

// burst is a slice of this length, as fast as packets are accepted.
func burst(b *harness.Bench, s *forward.Side, length time.Duration) forward.Burst {
	if b.Smoke {
		length = forward.SliceLengthSmoke
	}
	return forward.Burst{Set: s.Frames(), Packets: math.MaxInt64, Limit: length, Like: s.Like()}
}

// measure sends as fast as packets are accepted.
func measure(ctx context.Context, b *harness.Bench, s *forward.Side) error {
	slice := burst(b, s, forward.SliceLength)
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
	slice := burst(b, s, offerSlice)
	slice.Pace = time.Second / time.Duration(rate)
	o, err := s.Slice(ctx, slice)
	if err != nil {
		return err
	}
	series := Series(s.Name, rate)
	b.Results.Add(result.Row{Series: series, Metric: MetricPassed, Against: s.Against()}, float64(o.Sent)/o.Took.Seconds())
	b.Results.Add(result.Row{Series: series, Metric: MetricShare, Against: s.Against()}, o.CPU.Seconds()/o.Took.Seconds())
	return nil
}

// A goal is a ratio of two sides' CPU time for a packet. 0 is no bound.
type goal struct {
	side, by    string
	least, most float64
}

var goals = []goal{
	{forward.SideXDPSNAT, forward.SideMinimalXDP, 0, 1.25},
	{forward.SideMinimalRecords, forward.SideMinimalXDP, 0, 0},
	{forward.SideXDPSNAT, forward.SideMinimalRecords, 0, 0},
	{forward.SideXDPDSR, forward.SideMinimalXDP, 0, 1.25},
	{forward.SideMinimalTunnel, forward.SideMinimalXDP, 0, 0},
	{forward.SideXDPDSR, forward.SideMinimalTunnel, 0, 0},
	{forward.SideTCSNAT, forward.SideMinimalTC, 0, 1.2},
	{forward.SideTCChecksum, forward.SideMinimalTC, 0, 0},
	{forward.SideTCSNAT, forward.SideTCChecksum, 0, 0},
	{forward.SideTCDSR, forward.SideMinimalTC, 0, 1.2},
	{forward.SideTCTunnel, forward.SideMinimalTC, 0, 0},
	{forward.SideTCDSR, forward.SideTCTunnel, 0, 0},
	{forward.SideIPTables, forward.SideXDPSNAT, 4.2, 0},
	{forward.SideOldIPTables, forward.SideXDPSNAT, 4.2, 0},
	{forward.SideNFT, forward.SideXDPSNAT, 0, 0},
	{forward.SideTCSNAT, forward.SideXDPSNAT, 0, 0},
	{forward.SideIPTables, forward.SideTCSNAT, 0, 0},
}

// verdict is the goal, and whether it is kept: by the whole interval, or undecided.
func (g goal) verdict(ratio stat.Interval) string {
	word := func(kept, missed bool) string {
		switch {
		case ratio.Confidence >= 0.95 && kept:
			return "kept"
		case ratio.Confidence >= 0.95 && missed:
			return "missed"
		}
		return "not decided"
	}
	switch {
	case g.most > 0:
		return fmt.Sprintf("at most %g: %s", g.most, word(ratio.High <= g.most, ratio.Low > g.most))
	case g.least > 0:
		return fmt.Sprintf("at least %g: %s", g.least, word(ratio.Low >= g.least, ratio.High < g.least))
	}
	return ""
}

func printRates(r *harness.Report) {
	rows := r.Results.Of(partName, harness.MetricPacketCPU)
	cpus := forward.CPUs(r.Results.Settings.Two)
	r.Say("\n%d flows of UDP over IPv4, both ways known; the balancer on CPU %d, client and receiver on CPU %d; medians of %d rounds", forward.Flows, cpus.Server, cpus.Client, len(rows[0].Samples))
	r.Say("CPU time of the balancer for a packet and what a core takes; at rates that are offered, its share of the core (packets that pass, in millions per second)\n")
	line := fmt.Sprintf("  %-42s %6s %15s %6s ", "", "ns", "least - most", "Mpps")
	for _, rate := range offers {
		line += fmt.Sprintf(" %9.4g Mpps", float64(rate)/1e6)
	}
	r.Say("%s", line)
	proxies, ipvs := false, false
	for _, row := range rows {
		median := stat.Median(row.Samples)
		line := fmt.Sprintf("  %-42s %6.0f %6.0f - %6.0f %6.2f ", row.Side, median, stat.Quantile(row.Samples, 0), stat.Quantile(row.Samples, 1), 1e3/median)
		for _, rate := range offers {
			series := Series(row.Side, rate)
			line += fmt.Sprintf(" %5.0f %% (%.2f)", 100*stat.Median(r.Results.Samples(series, MetricShare)), stat.Median(r.Results.Samples(series, MetricPassed))/1e6)
		}
		r.Say("%s", line)
		proxies = proxies || strings.HasPrefix(row.Side, harness.ProxySides)
		ipvs = ipvs || row.Side == forward.SideIPVSNAT
	}
	if !proxies {
		r.Say("  There was no Kubernetes to run at --controlplane, so kube-proxy is left out.")
	}
	if !ipvs {
		r.Say("  This kernel has no IPVS, or its module ip_vs is not loaded, so IPVS is left out; the part instructions has it.")
	}
	r.Say("\nRatios of CPU time for a packet, round by round [95 %% interval]")
	compare := func(g goal) {
		of := func(side string) []float64 { return r.Results.Samples(Series(side, 0), harness.MetricPacketCPU) }
		if len(of(g.side)) == 0 || len(of(g.by)) == 0 {
			return // excluded by --case
		}
		ratio := stat.MedianInterval(stat.Ratios(of(g.side), of(g.by)))
		r.Say("  %-42s by %-22s %-24s %s", g.side, g.by, ratio, g.verdict(ratio))
	}
	for _, g := range goals {
		compare(g)
	}
	for _, row := range rows {
		if strings.HasPrefix(row.Side, harness.ProxySides) || strings.HasPrefix(row.Side, forward.SidesOfIPVS) {
			compare(goal{side: row.Side, by: forward.SideXDPSNAT})
		}
	}
}
