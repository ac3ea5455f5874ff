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
)

// commandLine has all flags of a run.
type commandLine struct {
	settings
	parts     []string
	output    string
	peer      []string
	endurance enduranceSettings
}

func runCommand() *cobra.Command {
	var s commandLine
	var seconds float64
	var only string
	c := &cobra.Command{
		Use: "bench", Short: "Measure what Beeline costs and saves (root)", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s.slice = time.Duration(seconds * float64(time.Second))
			if only != "" {
				var err error
				if s.only, err = regexp.Compile(only); err != nil {
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
	flags.StringVar(&s.program, "program", "bin/beeline", "the beeline program")
	flags.StringVar(&s.controlPlane, "controlplane", "build/controlplane", "the Kubernetes program that `make controlplane` builds; without it kube-proxy is left out")
	flags.StringVar(&s.envoy, "envoy", "build/envoy/envoy", "the Envoy that scripts/envoy installs; without it the part mesh leaves it out")
	flags.StringSliceVar(&s.parts, "part", nil, "only these parts: "+strings.Join(partNames(), ", ")+"; the last three run only if named")
	flags.IntVar(&s.runs, "runs", 31, "rounds of each comparison; 95 % confidence needs 6")
	flags.Float64Var(&seconds, "seconds", 0.04, "length of one slice of traffic")
	flags.StringVar(&s.cpus, "cpus", cpusAuto, "CPUs for the two ends of a connection: one, two, or auto for one with one connection and two with many")
	flags.StringVar(&only, "case", "", "of the part edge only the rows that match this regular expression, each as \"hook family case flows\", of the parts rates and endurance the sides, of the parts pods and offload the cases, of the part mesh \"proxy connections alone\" or \"... beside a busy program\"")
	flags.StringVarP(&s.output, "output", "o", "", "file for all samples, as JSON")
	flags.StringArrayVar(&s.peer, "peer", nil, "in the part edge also time this program, with this packet: name=ID,packet=FILE; more than once")
	flags.BoolVar(&s.smoke, "smoke", false, "a moment of each scenario, to see that traffic flows; the figures mean nothing")
	s.endurance.flags(flags)
	return c
}

func (s *commandLine) check(seconds float64) error {
	if s.smoke {
		s.runs, s.slice = 1, 20*time.Millisecond
		s.endurance.smoke()
	}
	for _, name := range s.parts {
		if !slices.Contains(partNames(), name) {
			return fmt.Errorf("--part %s: the parts are %s", name, strings.Join(partNames(), ", "))
		}
	}
	if len(s.peer) > 0 && len(s.parts) > 0 && !slices.Contains(s.parts, partEdge) {
		return fmt.Errorf("--peer %s: peers are timed in the part %s: name it with --part, or name no part", s.peer[0], partEdge)
	}
	if slices.Contains(s.parts, partEndurance) {
		if err := s.endurance.check(); err != nil {
			return err
		}
	}
	switch {
	case !slices.Contains([]string{cpusAuto, cpusOne, cpusTwo}, s.cpus):
		return fmt.Errorf("--cpus %s: one, two or auto", s.cpus)
	case s.runs < 1 || s.runs > 1000:
		return fmt.Errorf("--runs %d: between 1 and 1000", s.runs)
	case seconds < 0.01 || seconds > 60:
		return fmt.Errorf("--seconds %g: between 0.01 and 60", seconds)
	}
	return nil
}

// chosen are the parts that a run measures, in order.
func (s *commandLine) chosen(peers []*peer) (all []part) {
	for _, p := range parts(&s.endurance, peers) {
		if len(s.parts) == 0 && !p.named || slices.Contains(s.parts, p.name) {
			all = append(all, p)
		}
	}
	return all
}

// run measures, prints, and writes the samples.
func run(ctx context.Context, s commandLine, out io.Writer) error {
	b, err := newBench(s.settings, out)
	if err != nil {
		return err
	}
	peers, err := openPeers(s.peer)
	if err != nil {
		return err
	}
	defer closePeers(peers)
	begin, used := time.Now(), usageNow()
	if err := describe(ctx, b, s.chosen(peers), peers); err != nil {
		return err
	}
	b.printHead()
	for _, p := range s.chosen(peers) {
		b.printTitle(p)
		if err := p.run(ctx, b); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted (%w)", err)
			}
			return fmt.Errorf("%s: %w", p.name, err)
		}
		p.print(&b.report)
	}
	b.results.LoadAfter, b.results.Noise = loadAverage(), noiseBetween(used, usageNow())
	b.results.Took = time.Since(begin).Seconds()
	b.printFoot()
	if s.output == "" {
		return nil
	}
	if err := b.results.Write(s.output); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// describe writes into the results what is measured, by which program.
func describe(ctx context.Context, b *bench, chosen []part, peers []*peer) error {
	settings := &b.results.Settings
	for _, p := range chosen {
		settings.Parts = append(settings.Parts, p.name)
	}
	for _, p := range peers {
		settings.Peers = append(settings.Peers, p.name)
	}
	version, err := exec.CommandContext(ctx, b.program, "version").Output()
	if err != nil {
		return fmt.Errorf("--program %s: %w (`make build` makes it)", b.program, err)
	}
	b.results.Program = strings.TrimSpace(string(version))
	return nil
}
