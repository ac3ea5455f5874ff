// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/bench/edge"
	"beeline.io/beeline/bench/endurance"
	"beeline.io/beeline/bench/harness"
)

// commandLine has all flags of a run.
type commandLine struct {
	harness.Settings
	parts     []string
	output    string
	peer      []string
	endurance endurance.Settings
}

func runCommand() *cobra.Command {
	var s commandLine
	var seconds float64
	var only string
	c := &cobra.Command{
		Use: "bench", Short: "Measure what Beeline costs and saves (root)", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s.Slice = time.Duration(seconds * float64(time.Second))
			if only != "" {
				var err error
				if s.Only, err = regexp.Compile(only); err != nil {
					return fmt.Errorf("--case: %w", err)
				}
			}
			if err := s.check(seconds); err != nil {
				return err
			}
			if os.Geteuid() != 0 {
				return errors.New("network namespaces, cgroups and BPF programs need root")
			}
			return run(c.Context(), s, c.OutOrStdout())
		},
	}
	flags := c.Flags()
	flags.StringVar(&s.Program, "program", "bin/beeline", "the beeline program")
	flags.StringVar(&s.ControlPlane, "controlplane", "build/controlplane", "the Kubernetes program that `make controlplane` builds; without it kube-proxy is left out")
	flags.StringVar(&s.Envoy, "envoy", "build/envoy/envoy", "the Envoy that scripts/envoy installs; without it the part mesh leaves it out")
	flags.StringSliceVar(&s.parts, "part", nil, "only these parts: "+strings.Join(partNames(), ", ")+"; the last three run only if named")
	flags.IntVar(&s.Runs, "runs", 31, "rounds of each comparison; 95 % confidence needs 6")
	flags.Float64Var(&seconds, "seconds", 0.04, "length of one slice of traffic")
	flags.StringVar(&s.CPUs, "cpus", harness.CPUsAuto, "CPUs for the two ends of a connection: one, two, or auto for one with one connection and two with many")
	flags.StringVar(&only, "case", "", "of the part edge only the rows that match this regular expression, each as \"hook family case flows\", of the parts rates and endurance the sides, of the parts pods and offload the cases, of the part mesh \"proxy connections alone\" or \"... beside a busy program\"")
	flags.StringVarP(&s.output, "output", "o", "", "file for all samples, as JSON")
	flags.StringArrayVar(&s.peer, "peer", nil, "in the part edge also time this program, with this packet: name=ID,packet=FILE; more than once")
	flags.BoolVar(&s.Smoke, "smoke", false, "a moment of each scenario, to see that traffic flows; the figures mean nothing")
	s.endurance.Flags(flags)
	return c
}

func (s *commandLine) check(seconds float64) error {
	if s.Smoke {
		s.Runs, s.Slice = 1, 20*time.Millisecond
		s.endurance.Smoke()
	}
	for _, name := range s.parts {
		if !slices.Contains(partNames(), name) {
			return fmt.Errorf("--part %s: the parts are %s", name, strings.Join(partNames(), ", "))
		}
	}
	if len(s.peer) > 0 && len(s.parts) > 0 && !slices.Contains(s.parts, edge.PartName) {
		return fmt.Errorf("--peer %s: peers are timed in the part %s: name it with --part, or name no part", s.peer[0], edge.PartName)
	}
	if slices.Contains(s.parts, endurance.PartName) {
		if err := s.endurance.Check(); err != nil {
			return err
		}
	}
	switch {
	case !slices.Contains([]string{harness.CPUsAuto, harness.CPUsOne, harness.CPUsTwo}, s.CPUs):
		return fmt.Errorf("--cpus %s: one, two or auto", s.CPUs)
	case s.Runs < 1 || s.Runs > 1000:
		return fmt.Errorf("--runs %d: between 1 and 1000", s.Runs)
	case seconds < 0.01 || seconds > 60:
		return fmt.Errorf("--seconds %g: between 0.01 and 60", seconds)
	}
	return nil
}

// chosen are the parts that a run measures, in order.
func (s *commandLine) chosen(peers []*edge.Peer) (all []harness.Part) {
	for _, p := range parts(&s.endurance, peers) {
		if len(s.parts) == 0 && !p.Named || slices.Contains(s.parts, p.Name) {
			all = append(all, p)
		}
	}
	return all
}

// run measures, prints, and writes the samples.
func run(ctx context.Context, s commandLine, out io.Writer) error {
	b, err := harness.New(s.Settings, out)
	if err != nil {
		return err
	}
	peers, err := edge.OpenPeers(s.peer)
	if err != nil {
		return err
	}
	defer edge.ClosePeers(peers)
	begin, used := time.Now(), harness.UsageNow()
	if err := describe(ctx, b, s.chosen(peers), peers); err != nil {
		return err
	}
	b.PrintHead()
	for _, p := range s.chosen(peers) {
		b.PrintTitle(p)
		if err := p.Run(ctx, b); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted (%w)", err)
			}
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		p.Print(&b.Report)
	}
	b.Results.LoadAfter, b.Results.Noise = harness.LoadAverage(), harness.NoiseBetween(used, harness.UsageNow())
	b.Results.Took = time.Since(begin).Seconds()
	b.PrintFoot()
	if s.output == "" {
		return nil
	}
	if err := b.Results.Write(s.output); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// describe writes into the results what is measured, by which program.
func describe(ctx context.Context, b *harness.Bench, chosen []harness.Part, peers []*edge.Peer) error {
	settings := &b.Results.Settings
	for _, p := range chosen {
		settings.Parts = append(settings.Parts, p.Name)
	}
	for _, p := range peers {
		settings.Peers = append(settings.Peers, p.Name)
	}
	version, err := exec.CommandContext(ctx, b.Program, "version").Output()
	if err != nil {
		return fmt.Errorf("--program %s: %w (`make build` makes it)", b.Program, err)
	}
	b.Results.Program = strings.TrimSpace(string(version))
	return nil
}
