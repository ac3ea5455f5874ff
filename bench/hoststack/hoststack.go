// SPDX-License-Identifier: Apache-2.0

// Package hoststack measures programs that talk through shared memory.
package hoststack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

const partName = "hoststack"

// Part is the part hoststack. It needs programs of its own.
var Part = harness.Part{Name: partName, Text: "programs that talk through shared memory, beside the kernel's loopback", Named: true, Run: runHostStack, Print: printHostStack}

// The sides: the kernel's loopback, the same again, and rings. The difference of the first two is what the
// measurement cannot see.
const (
	kernel = iota
	kernelAgain
	rings
	sides
)

var names = [sides]string{"kernel", "kernel (A/A)", "rings"}

const scenario = "ping-pong of 64 octets between two processes"

func hostStackSeries(side int, c harness.LoadCase) result.Series {
	return result.Series{Part: partName, Scenario: scenario + ", " + c.String(), Side: names[side], Family: "IPv4",
		Parameters: result.Parameters{"connections": c.Connections}}
}

func runHostStack(ctx context.Context, b *harness.Bench) error {
	library, pingpong, err := harness.HostStackPrograms(b.Program)
	if err != nil {
		return err
	}
	for _, c := range harness.LoadCases(false) {
		if err := measure(ctx, b, library, pingpong, c); err != nil {
			return err
		}
	}
	for _, c := range exchangeCases() {
		err := harness.InTurns(b.Runs, exchangeNames[:], func(side int) error { return exchange(ctx, b, library, pingpong, c, side) })
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

func measure(ctx context.Context, b *harness.Bench, library, pingpong string, c harness.LoadCase) error {
	if c.Busy {
		stop, err := harness.StartBusyProgram(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	return harness.InTurns(b.Runs, names[:], func(side int) error {
		if side == rings {
			return pingPong(ctx, b, pingpong, library, c.Connections, c.Connections, hostStackSeries(side, c))
		}
		return pingPong(ctx, b, pingpong, "", c.Connections, 0, hostStackSeries(side, c))
	})
}

// pingPongSample is what beeline-pingpong prints: times in microseconds.
type pingPongSample struct {
	Attached  int     `json:"attached"` // connections of the client on rings
	Rounds    int     `json:"rounds"`
	P50       float64 `json:"p50"`
	P90       float64 `json:"p90"`
	P99       float64 `json:"p99"`
	ClientCPU float64 `json:"client_cpu"`
	ServerCPU float64 `json:"server_cpu"`
}

// pingPong runs one slice, in which so many connections are on rings.
func pingPong(ctx context.Context, b *harness.Bench, program, preload string, connections, onRings int, series result.Series, more ...string) error {
	cpus := harness.PairOf(b.Results.Settings, connections)
	arguments := append([]string{"--connections", strconv.Itoa(connections), "--seconds", fmt.Sprint(b.Slice.Seconds()),
		"--cpus", fmt.Sprintf("%d,%d", cpus.Client, cpus.Server)}, more...)
	command := exec.CommandContext(ctx, program, arguments...)
	command.Env = append(os.Environ(), "LD_PRELOAD="+preload, "BEELINE_HOSTSTACK_INCLUDE=127.0.0.0/8")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, &stderr)
	}
	var s pingPongSample
	if err := json.Unmarshal(out, &s); err != nil {
		return err
	}
	if s.Attached != onRings {
		return fmt.Errorf("%d of %d connections are on rings, want %d", s.Attached, connections, onRings)
	}
	b.Results.AddSide(names[kernel], series, harness.MetricP50, s.P50)
	b.Results.AddSide(names[kernel], series, harness.MetricP90, s.P90)
	b.Results.AddSide(names[kernel], series, harness.MetricCPU, s.ClientCPU+s.ServerCPU)
	return nil
}

func printHostStack(r *harness.Report) {
	r.Say("\n%s on loopback. Ratios to the kernel, median of the rounds [95 %% interval]; the CPU time is of both processes", scenario)
	for _, c := range harness.LoadCases(false) {
		of := func(side int, m result.Metric) []float64 {
			return r.Results.Samples(hostStackSeries(side, c), m)
		}
		if len(of(kernel, harness.MetricP50)) == 0 {
			continue
		}
		r.Say("  %d connections, %s: kernel p50 %.1f us, p90 %.1f us, %.1f us of CPU time for each", c.Connections, c, stat.Median(of(kernel, harness.MetricP50)),
			stat.Median(of(kernel, harness.MetricP90)), stat.Median(of(kernel, harness.MetricCPU)))
		for _, side := range []int{kernelAgain, rings} {
			r.Say("    %-12s%s", names[side], r.Ratios(hostStackSeries(side, c), hostStackSeries(kernel, c), harness.MetricP50, harness.MetricP90, harness.MetricCPU))
		}
	}
	printExchanges(r)
}

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

// exchange runs one slice of a side.
func exchange(ctx context.Context, b *harness.Bench, library, pingpong string, c exchangeCase, side int) error {
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
	return pingPong(ctx, b, pingpong, client, 1, c.attached(side), exchangeSeries(side, c), arguments...)
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
			r.Say("    %-22s%s", exchangeNames[side], r.Ratios(exchangeSeries(exchangeKernel, c), exchangeSeries(side, c), harness.MetricP50, harness.MetricCPU))
		}
	}
}
