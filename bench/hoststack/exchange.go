// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"context"
	"fmt"
	"strconv"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

// The sides of exchanges: the library at both ends or at one.
const (
	exchangeKernel = iota
	exchangeKernelAgain
	exchangeBoth
	exchangeClient
	exchangeServer
	exchangeSides
)

var exchangeNames = [exchangeSides]string{"kernel", "kernel (A/A)", "library at both ends", "library at the client", "library at the server"}

// An exchangeCase is requests of 64 octets with replies of one size, on a connection each or all on one.
type exchangeCase struct {
	reply int
	once  bool
}

func exchangeCases() []exchangeCase {
	return []exchangeCase{{64, true}, {1 << 16, true}, {1 << 20, true}, {64, false}, {1 << 16, false}, {1 << 20, false}}
}

func (c exchangeCase) String() string {
	if c.once {
		return fmt.Sprintf("replies of %d octets, a connection for each", c.reply)
	}
	return fmt.Sprintf("replies of %d octets on one connection", c.reply)
}

// attached is how many connections of the client are on rings: only one that lasts has earned them.
func (c exchangeCase) attached(side int) int {
	if side == exchangeBoth && !c.once {
		return 1
	}
	return 0
}

func exchangeSeries(side int, c exchangeCase) result.Series {
	return result.Series{Part: partName, Scenario: "request of 64 octets, " + c.String(), Side: exchangeNames[side], Family: "IPv4",
		Parameters: result.Parameters{"octets": c.reply}}
}

// exchangeRound has each side take its turn, another one first in each round.
func exchangeRound(ctx context.Context, b *harness.Bench, library, pingpong string, c exchangeCase, round int) error {
	for turn := range exchangeSides {
		side := (turn + round) % exchangeSides
		var client, server string
		if side == exchangeBoth || side == exchangeClient {
			client = library
		}
		if side == exchangeBoth || side == exchangeServer {
			server = library
		}
		arguments := []string{"--bytes", "64", "--reply", strconv.Itoa(c.reply), "--server-preload", server}
		if c.once {
			arguments = append(arguments, "--once")
		}
		want := c.attached(side)
		sample, err := pingPong(ctx, b, pingpong, client, 1, arguments...)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", exchangeNames[side], c, err)
		}
		if sample.Attached != want {
			return fmt.Errorf("%s, %s: %d connections are on rings, want %d", exchangeNames[side], c, sample.Attached, want)
		}
		sample.add(b.Results, exchangeSeries(side, c), side == exchangeKernel)
	}
	return nil
}

func printExchanges(r *harness.Report) {
	r.Say("\nRequests of 64 octets by blocking calls. Ratios of the kernel to each side (more is better), median of the rounds [95 %% interval]")
	for _, c := range exchangeCases() {
		of := func(side int, m result.Metric) []float64 {
			return r.Results.Samples(exchangeSeries(side, c), m)
		}
		if len(of(exchangeKernel, harness.MetricP50)) == 0 {
			continue
		}
		r.Say("  %s: kernel p50 %.1f us, %.1f us of CPU time for each", c, stat.Median(of(exchangeKernel, harness.MetricP50)),
			stat.Median(of(exchangeKernel, harness.MetricCPU)))
		for side := exchangeKernelAgain; side < exchangeSides; side++ {
			line := fmt.Sprintf("    %-22s", exchangeNames[side])
			for _, m := range []result.Metric{harness.MetricP50, harness.MetricCPU} {
				line += fmt.Sprintf("  %s %s", m.Name, stat.MedianInterval(stat.Ratios(of(exchangeKernel, m), of(side, m))))
			}
			r.Say("%s", line)
		}
	}
}
