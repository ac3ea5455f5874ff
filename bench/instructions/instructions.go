// SPDX-License-Identifier: Apache-2.0

// Package instructions counts the instructions of balancers for a packet, in an emulated machine.
package instructions

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

const partName = "instructions"

// Part is the part instructions. It is not for a real machine.
var Part = harness.Part{Name: partName, Text: "instructions for each packet through balancers, IPVS among them, in an emulated machine", Named: true, Run: runInstructions, Print: printInstructions}

// In an emulated machine whose time is the number of instructions executed (`scripts/kernels --instructions`
// boots one), CPU time is an instruction count. The path is that of the part rates, with the same threads, on
// one CPU.

// MetricInstructions is the work of a balancer for a packet.
var MetricInstructions = result.Metric{Name: "instructions per packet", Unit: "1", Better: result.Lower}

const (
	rounds  = 6 // at most: the count hardly differs
	packets = 4 * forward.Flows
)

func runInstructions(ctx context.Context, b *harness.Bench) (err error) {
	each, err := instructionTime()
	if err != nil {
		return err
	}
	if !forward.HasIPVS() {
		return errors.New("the kernel has no IPVS: load the module ip_vs")
	}
	if err := countFlowtable(ctx, b, each); err != nil {
		return fmt.Errorf("the flowtable: %w", err)
	}
	rig, err := forward.NewRig(ctx, b, (*forward.Rig).AddBeeline, (*forward.Rig).AddYardsticks, (*forward.Rig).AddRules, (*forward.Rig).AddIPVS, (*forward.Rig).Settle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.End()) }()
	return rig.InTurns(min(b.Runs, rounds), func(_ int, s *forward.Side) error { return countPackets(ctx, b, s, each) })
}

// Series is a side's series.
func Series(side string) result.Series {
	return result.Series{Part: partName, Scenario: "UDP, established", Side: side, Family: "IPv4", Parameters: result.Parameters{"flows": forward.Flows}}
}

// countPackets sends packets of known flows; `each` is the time of an instruction.
func countPackets(ctx context.Context, b *harness.Bench, s *forward.Side, each time.Duration) error {
	many := forward.Burst{Set: s.Frames(), Packets: packets, Like: s.Like()}
	if b.Smoke {
		many.Packets = forward.Flows
	}
	o, err := s.Run(ctx, many, 0, false)
	if err != nil {
		return err
	}
	row := result.Row{Series: Series(s.Name), Metric: MetricInstructions, Against: s.Against()}
	b.Results.Add(row, float64(o.CPU)/float64(each)/float64(o.Sent))
	return nil
}

// instructionTime is the time of an instruction, by the monotonic clock, or an error if they do not all take
// the same.
func instructionTime() (time.Duration, error) {
	const loops, tries = 200_000, 5
	// The minimum of some, because of interrupts.
	least := func(run func(int64)) float64 {
		best := math.Inf(1)
		for range tries {
			begin := forward.Monotonic()
			run(loops)
			best = min(best, float64(forward.Monotonic()-begin))
		}
		return best
	}
	return commonTime(least(runAdditions)/loops/instructionsOfLoop, least(runDivisions)/loops/instructionsOfLoop)
}

// commonTime is the time of additions and of divisions, in ns, if it is the same: QEMU gives each instruction a
// power of two.
func commonTime(addition, division float64) (time.Duration, error) {
	const within = 0.02
	ns := math.Round(addition)
	if near := func(t float64) bool { return math.Abs(t/ns-1) < within }; ns < 1 || !near(addition) || !near(division) {
		return 0, fmt.Errorf("an addition takes %.3g ns here, a division %.3g ns: this is no machine whose time is the number of its instructions, as `scripts/kernels --instructions` boots one", addition, division)
	}
	return time.Duration(ns), nil
}

// pairs are the printed ratios; they have no bounds.
var pairs = []struct{ side, by string }{
	{forward.SideXDPSNAT, forward.SideMinimalXDP}, {forward.SideXDPDSR, forward.SideMinimalXDP}, {forward.SideTCSNAT, forward.SideMinimalTC}, {forward.SideTCDSR, forward.SideMinimalTC},
	{forward.SideTCSNAT, forward.SideXDPSNAT},
	{forward.SideIPTables, forward.SideXDPSNAT}, {forward.SideOldIPTables, forward.SideXDPSNAT}, {forward.SideMasquerade, forward.SideXDPSNAT}, {forward.SideNFT, forward.SideXDPSNAT},
	{forward.SideIPVSNAT, forward.SideXDPSNAT}, {forward.SideIPVSProxy, forward.SideXDPSNAT}, {forward.SideIPVSTunnel, forward.SideXDPDSR}, {forward.SideIPVSDirect, forward.SideXDPDSR},
	{forward.SideIPVSNAT, forward.SideTCSNAT}, {forward.SideIPVSProxy, forward.SideTCSNAT}, {forward.SideIPVSNAT, forward.SideOldIPTables}, {forward.SideIPVSProxy, forward.SideMasquerade},
}

func printInstructions(r *harness.Report) {
	rows := r.Results.Of(partName, MetricInstructions)
	r.Say("\n%d flows of UDP over IPv4, both ways known, on one emulated CPU; medians of %d rounds", forward.Flows, len(rows[0].Samples))
	r.Say("Instructions of the balancer's own thread for a packet: no client, no receiver, no cache misses, no waiting\n")
	r.Say("  %-34s %12s %20s", "", "instructions", "least - most")
	for _, row := range rows {
		if row.Scenario == Series("").Scenario {
			sayInstructions(r, row)
		}
	}
	r.Say("\nRatios of instructions for a packet, round by round")
	of := func(side string) []float64 { return r.Results.Samples(Series(side), MetricInstructions) }
	for _, g := range pairs {
		r.Say("  %-34s by %-34s %s", g.side, g.by, strings.TrimSpace(stat.MedianInterval(stat.Ratios(of(g.side), of(g.by))).String()))
	}
	printFlowtable(r, rows)
}

func sayInstructions(r *harness.Report, row result.Row) {
	r.Say("  %-34s %12.0f %9.0f - %8.0f", row.Side, stat.Median(row.Samples), stat.Quantile(row.Samples, 0), stat.Quantile(row.Samples, 1))
}
