// SPDX-License-Identifier: Apache-2.0

// Package offload measures forwarded traffic, through the stack of a router and past it.
package offload

import (
	"context"
	"errors"
	"fmt"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/stat"
)

const partName = "offload"

// Part is the part offload.
var Part = harness.Part{Name: partName, Text: "forwarded traffic through the stack of a router and past it", Run: runOffload, Print: printOffload}

// The sides: forwarded by the stack, with conntrack, and by the flow cache. The second is the first again: their
// difference is what the measurement cannot see.
const (
	stack = iota
	stackAgain
	cache
	offloadSides
	// Only packets without NAT have this side: a program that looks up nothing bounds what a flow cache can save.
	redirect = offloadSides
)

var names = [offloadSides + 1]string{"stack", "stack (A/A)", "flow cache", "only redirect"}

// offloadRules drop what conntrack finds invalid, as kube-proxy's rules do, and translate packets to the first address
// to the second one, with another port, and their source to the router's.
const offloadRules = `table ip router {
	chain forward { type filter hook forward priority 0; ct state invalid drop; ct state new counter; }
	chain before { type nat hook prerouting priority -100; meta l4proto { tcp, udp } ip daddr %s counter dnat to %s:%d; }
	chain after { type nat hook postrouting priority 100; ct status dnat masquerade; }
}`

// offloadNAT names the two kinds of flows.
func offloadNAT(nat bool) string {
	if nat {
		return "SNAT and DNAT"
	}
	return "plain"
}

func runOffload(ctx context.Context, b *harness.Bench) error {
	if b.Two.Client == b.Two.Server {
		return errors.New("the router and its clients need a CPU each, but there is only one")
	}
	if err := runPackets(ctx, b); err != nil {
		return fmt.Errorf("packets: %w", err)
	}
	if err := runTraffic(ctx, b); err != nil {
		return fmt.Errorf("traffic: %w", err)
	}
	return nil
}

func printOffload(r *harness.Report) {
	r.Say("\nUDP packets of established flows through a router, as fast as they are accepted: CPU time of the router for each, in ns. Ratios to the stack, median of the rounds [95 %% interval]")
	for _, c := range packetCases() {
		of := func(side int) []float64 { return r.Results.Samples(c.series(side), harness.MetricPacketCPU) }
		if len(of(stack)) == 0 {
			continue
		}
		ratio := func(side int) stat.Interval { return stat.MedianInterval(stat.Ratios(of(side), of(stack))) }
		line := fmt.Sprintf("  %-13s %6d flows: stack %5.0f, flow cache %5.0f; A/A %s, flow cache %s", offloadNAT(c.nat), c.flows, stat.Median(of(stack)), stat.Median(of(cache)),
			ratio(stackAgain), ratio(cache))
		if len(of(redirect)) > 0 {
			line += fmt.Sprintf(", only redirect %s", ratio(redirect))
		}
		r.Say("%s", line)
	}
	r.Say("\nTraffic between two hosts through a router. Ratios to the stack, median of paired slices [95 %% interval]; the CPU time is of both hosts, the router and its agent; of a stream an operation is %d KiB", endpoint.StreamWrite>>10)
	for _, c := range trafficCases() {
		if len(r.Results.Samples(c.series(stack), harness.MetricRate)) == 0 {
			continue
		}
		r.Say("  %s: stack %.0f per second, %.1f us of CPU time each", c, stat.Median(r.Results.Samples(c.series(stack), harness.MetricRate)),
			stat.Median(r.Results.Samples(c.series(stack), harness.MetricCPU)))
		for _, side := range []int{stackAgain, cache} {
			r.Say("    %-12s%s", names[side], r.Ratios(c.series(side), c.series(stack), harness.MetricP50, harness.MetricRate, harness.MetricCPU))
		}
	}
}
