// SPDX-License-Identifier: Apache-2.0

// Command bench measures what Beeline costs and saves, on this machine, in labs
// of network namespaces. docs/benchmarks.md says how, and what to make of it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"beeline.io/beeline/test/bench/endpoint"
	"beeline.io/beeline/test/lab"
)

// settings are the command line.
type settings struct {
	program string
	// controlPlane is Kubernetes, for the sides of kube-proxy; there need not be one.
	controlPlane string

	parts  []string
	runs   int
	slice  time.Duration
	cpus   string
	output string
	smoke  bool
}

// A part measures one thing, in labs of its own.
type part struct {
	name string
	text string
	run  func(context.Context, *bench) error
}

var parts = []part{
	{"sockets", "requests through a ClusterIP beside the direct way", runSockets},
	{"hook", "what the programs at connect(2), sendmsg(2) and recvmsg(2) themselves cost", runHook},
	{"edge", "what the programs at devices cost for each packet", runEdge},
	{"balancer", "a client and two web servers, by Beeline and by other balancers", runBalancer},
	{"control", "start, change and memory of the agent with many Services", runControl},
	{"changes", "one change until a new connection sees it: from files, from an API server, and with kube-proxy", runChanges},
}

// bench is one run.
type bench struct {
	settings
	out     io.Writer
	results results

	one, two cpuPair // the CPUs of the endpoints
}

func main() {
	lab.Main() // these two do not return in the processes that play a part
	endpoint.Main()
	s, err := parseFlags()
	if errors.Is(err, pflag.ErrHelp) {
		return
	}
	if err == nil && os.Geteuid() != 0 {
		err = errors.New("network namespaces, cgroups and BPF programs need root")
	}
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, s, os.Stdout)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parseFlags() (settings, error) {
	var s settings
	var seconds float64
	flags := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	flags.StringVar(&s.program, "program", "bin/beeline", "the beeline program")
	flags.StringVar(&s.controlPlane, "controlplane", "build/controlplane", "the program of Kubernetes that make controlplane builds; without it kube-proxy is left out")
	flags.StringSliceVar(&s.parts, "part", nil, "only these parts: "+strings.Join(partNames(), ", "))
	flags.IntVar(&s.runs, "runs", 31, "rounds of each comparison; 95 % confidence needs 6")
	flags.Float64Var(&seconds, "seconds", 0.04, "length of one slice of traffic")
	flags.StringVar(&s.cpus, "cpus", cpusAuto, "CPUs for the two ends of a connection: one, two, or auto for one with one connection and two with many")
	flags.StringVarP(&s.output, "output", "o", "", "file for all samples, as JSON")
	flags.BoolVar(&s.smoke, "smoke", false, "a moment of each scenario, to see that traffic flows; the figures mean nothing")
	if err := flags.Parse(os.Args[1:]); err != nil {
		return s, err
	}
	s.slice = time.Duration(seconds * float64(time.Second))
	if s.smoke {
		s.runs, s.slice = 1, 20*time.Millisecond
	}
	for _, name := range s.parts {
		if !slices.Contains(partNames(), name) {
			return s, fmt.Errorf("--part %s: the parts are %s", name, strings.Join(partNames(), ", "))
		}
	}
	switch {
	case !slices.Contains([]string{cpusAuto, cpusOne, cpusTwo}, s.cpus):
		return s, fmt.Errorf("--cpus %s: one, two or auto", s.cpus)
	case flags.NArg() > 0:
		return s, fmt.Errorf("%q is not understood; --help lists the flags", flags.Args())
	case s.runs < 1 || s.runs > 1000:
		return s, fmt.Errorf("--runs %d: between 1 and 1000", s.runs)
	case seconds < 0.01 || seconds > 60:
		return s, fmt.Errorf("--seconds %g: between 0.01 and 60", seconds)
	}
	return s, nil
}

func partNames() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// run measures, prints, and writes the samples.
func run(ctx context.Context, s settings, out io.Writer) error {
	b := &bench{settings: s, out: out}
	var err error
	if b.one, b.two, err = chooseCPUs(); err != nil {
		return err
	}
	begin, used := time.Now(), usageNow()
	if b.results, err = newResults(ctx, s); err != nil {
		return err
	}
	b.results.print(b)
	for _, p := range parts {
		if len(s.parts) > 0 && !slices.Contains(s.parts, p.name) {
			continue
		}
		b.say("\n== %s: %s", p.name, p.text)
		if err := p.run(ctx, b); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted (%w)", err)
			}
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	b.results.LoadAfter, b.results.Noise = loadAverage(), noiseBetween(used, usageNow())
	b.results.Took = time.Since(begin).Seconds()
	b.say("\nDone in %s. Load average %s before, %s after.", time.Since(begin).Round(time.Second), b.results.LoadBefore, b.results.LoadAfter)
	b.results.Noise.print(b)
	if s.output != "" {
		return b.results.write(s.output)
	}
	return nil
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.out, format+"\n", args...) }
