// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"beeline.io/beeline/bench/chart"
	"beeline.io/beeline/bench/forward"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/instructions"
	"beeline.io/beeline/bench/rates"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

// publishedBy is the source of the experiment that the parts rates and instructions repeat: how many packets of
// a flood a node's balancer forwards to the one backend of a Service.
const publishedBy = "Cilium 1.8, https://cilium.io/blog/2020/06/22/cilium-18/"

// A contender is one path through a balancer.
type contender struct {
	side string // of rows
	// published is in millions of packets per second; 0: not published. For Beeline's sides it is Cilium's.
	published float64
	words     string // instead of a number
}

var contenders = []contender{
	{side: forward.SideMinimalXDP},
	{side: forward.SideXDPSNAT, published: 10},
	{side: forward.SideXDPDSR},
	{side: forward.SideMinimalTC},
	{side: forward.SideTCSNAT, published: 2.8},
	{side: forward.SideTCDSR},
	{side: forward.ProxyName("iptables", 1), published: 2.4},
	{side: forward.SideOldIPTables},
	{side: forward.SideIPTables},
	{side: forward.SideMasquerade},
	{side: forward.ProxyName("nftables", 1)},
	{side: forward.SideNFT},
	{side: forward.SideIPVSProxy, words: "< 2.4"},
	{side: forward.SideIPVSNAT},
	{side: forward.SideIPVSTunnel},
	{side: forward.SideIPVSDirect},
}

// All figures are compared with this side.
const experimentBase = forward.SideXDPSNAT

// An experiment is two runs, with one of the parts each.
type experiment struct{ rates, instructions *result.File }

func (e experiment) check() error {
	for _, need := range []struct {
		results *result.File
		series  result.Series
		metric  result.Metric
	}{
		{e.rates, rates.Series(experimentBase, 0), harness.MetricPacketCPU},
		{e.instructions, instructions.Series(experimentBase), instructions.MetricInstructions},
	} {
		if need.results.Samples(need.series, need.metric) == nil {
			return fmt.Errorf("the results of the part %s have no row %q of %q", need.series.Part, need.metric.Name, experimentBase)
		}
	}
	return nil
}

// Samples of a side: nil if there are none.
func (e experiment) cpu(side string) []float64 {
	return e.rates.Samples(rates.Series(side, 0), harness.MetricPacketCPU)
}

func (e experiment) instructionsOf(side string) []float64 {
	return e.instructions.Samples(instructions.Series(side), instructions.MetricInstructions)
}

// ofBase is how many packets pass for each one of the base, given samples of the cost of one.
func ofBase(samples func(side string) []float64, side string) stat.Interval {
	return stat.MedianInterval(stat.Ratios(samples(experimentBase), samples(side)))
}

// publishedOfBase is the same for the published figures.
func (w contender) publishedOfBase() stat.Interval {
	if w.published == 0 {
		return stat.MedianInterval(nil)
	}
	for _, base := range contenders {
		if base.side == experimentBase {
			return stat.MedianInterval([]float64{w.published / base.published})
		}
	}
	return stat.MedianInterval(nil)
}

// shares are how many packets pass for each one of the base: as published, by CPU time, by instructions.
func (e experiment) shares(w contender) []stat.Interval {
	return []stat.Interval{w.publishedOfBase(), ofBase(e.cpu, w.side), ofBase(e.instructionsOf, w.side)}
}

func (e experiment) chart() chart.Chart {
	kinds := []string{"published: packets per second, from a NIC", "here: CPU time per packet, veth", "here: instructions per packet, emulated"}
	var all []chart.Way
	for _, w := range contenders {
		name := w.side
		if w.words != "" {
			name += " (published: " + w.words + " Mpps)"
		}
		all = append(all, chart.Way{Name: name, Figures: e.shares(w)})
	}
	return chart.Ways("experiment", "Packets that pass for each one by "+experimentBase, kinds, all)
}

// markdown is the table.
func (e experiment) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Share: packets that pass for each one by \"%s\". Published: %s. CPU time: %s; Linux %s, %d rounds; others used %.0f %% of the machine.\nInstructions: %s; Linux %s, emulated, %d rounds.\n\n",
		experimentBase, publishedBy, e.rates.Program, e.rates.Machine.Kernel, len(e.cpu(experimentBase)), 100*(e.rates.Noise.Others+e.rates.Noise.Stolen),
		e.instructions.Program, e.instructions.Machine.Kernel, len(e.instructionsOf(experimentBase)))
	b.WriteString("| | published, Mpps | share | CPU time, ns | share | core at 1 / 2 Mpps offered | instructions, emulated | share |\n|---|---|---|---|---|---|---|---|\n")
	for _, w := range contenders {
		shares := e.shares(w)
		published := w.words
		if w.published > 0 {
			published = fmt.Sprintf("%.3g", w.published)
		}
		cells := []string{w.side, published, share(shares[0]), figure(e.cpu(w.side)), share(shares[1]), e.busy(w.side), figure(e.instructionsOf(w.side)), share(shares[2])}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

// busy is the share of the core that a side needs and, if not all packets pass, how many millions do.
func (e experiment) busy(side string) string {
	var all []string
	for _, rate := range []int{1_000_000, 2_000_000} {
		series := rates.Series(side, rate)
		used, passed := e.rates.Samples(series, rates.MetricShare), e.rates.Samples(series, rates.MetricPassed)
		if len(used) == 0 || len(passed) == 0 {
			return ""
		}
		text := fmt.Sprintf("%.0f %%", 100*stat.Median(used))
		if millions := stat.Median(passed) / 1e6; millions < 0.95*float64(rate)/1e6 {
			text += fmt.Sprintf(" (%.2f)", millions)
		}
		all = append(all, text)
	}
	return strings.Join(all, " / ")
}

func figure(samples []float64) string {
	if len(samples) == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f", stat.Median(samples))
}

func share(i stat.Interval) string {
	switch {
	case math.IsNaN(i.Median):
		return ""
	case i.Low == i.High || fmt.Sprintf("%.2f", i.Low) == fmt.Sprintf("%.2f", i.High):
		return fmt.Sprintf("%.2f", i.Median)
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", i.Median, i.Low, i.High)
}

// A page has the experiment between these lines.
const (
	experimentBegin = "<!-- experiment: begin; `bench experiment --into` replaces this -->\n"
	experimentEnd   = "<!-- experiment: end -->\n"
)

func experimentCommand() *cobra.Command {
	var into, folder string
	c := &cobra.Command{
		Use: "experiment RATES.json INSTRUCTIONS.json", Short: "Compare a published measurement of balancers with local results", Args: cobra.ExactArgs(2),
		Long: "One table, and one picture, of the results of the parts rates and instructions, with the same experiment as published by others.",
		RunE: func(c *cobra.Command, args []string) (err error) {
			var e experiment
			if e.rates, err = result.Read(args[0]); err != nil {
				return err
			}
			if e.instructions, err = result.Read(args[1]); err != nil {
				return err
			}
			if err := e.check(); err != nil {
				return fmt.Errorf("%s and %s: %w", args[0], args[1], err)
			}
			if folder != "" {
				if _, err := chart.Write(folder, []chart.Chart{e.chart()}, "svg", "png"); err != nil {
					return err
				}
			}
			if into != "" {
				return e.document(into)
			}
			_, err = fmt.Fprint(c.OutOrStdout(), e.markdown())
			return err
		},
	}
	c.Flags().StringVar(&folder, "out", "", "folder for the picture; created if missing")
	c.Flags().StringVar(&into, "into", "", "Markdown page in which to replace the text between the marks, with the picture in the folder pictures next to it")
	return c
}

// document writes table and picture into a page.
func (e experiment) document(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--into: %w", err)
	}
	const pictures = "pictures"
	c := e.chart()
	text := fmt.Sprintf("%s\n![%s](%s/%s.svg)\n", e.markdown(), c.Title(), pictures, c.Name)
	if page, err = replaceBetween(page, experimentBegin, experimentEnd, "experiment", text); err != nil {
		return fmt.Errorf("--into: %s: %w", path, err)
	}
	if _, err := chart.Write(filepath.Join(filepath.Dir(path), pictures), []chart.Chart{c}, "svg"); err != nil {
		return err
	}
	return os.WriteFile(path, page, 0o644)
}
