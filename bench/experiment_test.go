// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/bench/forward"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/instructions"
	"beeline.io/beeline/bench/rates"
	"beeline.io/beeline/bench/result"
)

// experimentFiles are two runs in which a packet by XDP costs 400 ns and 2,000 instructions, and by two others
// more; nothing is known of the rest.
func experimentFiles(t *testing.T) (ratesPath, instructionsPath string) {
	t.Helper()
	one, two := &result.File{Schema: result.Schema}, &result.File{Schema: result.Schema}
	for range 6 {
		for side, ns := range map[string]float64{forward.SideXDPSNAT: 400, forward.SideOldIPTables: 2000} {
			one.Add(result.Row{Series: rates.Series(side, 0), Metric: harness.MetricPacketCPU}, ns)
			for _, rate := range []int{250_000, 500_000, 1_000_000, 2_000_000} {
				one.Add(result.Row{Series: rates.Series(side, rate), Metric: rates.MetricShare}, min(1, ns*float64(rate)/1e9))
				one.Add(result.Row{Series: rates.Series(side, rate), Metric: rates.MetricPassed}, min(float64(rate), 1e9/ns))
			}
		}
		for side, count := range map[string]float64{forward.SideXDPSNAT: 2000, forward.SideIPVSProxy: 8000} {
			two.Add(result.Row{Series: instructions.Series(side), Metric: instructions.MetricInstructions}, count)
		}
	}
	ratesPath, instructionsPath = filepath.Join(t.TempDir(), "rates.json"), filepath.Join(t.TempDir(), "instructions.json")
	for path, f := range map[string]*result.File{ratesPath: one, instructionsPath: two} {
		if err := f.Write(path); err != nil {
			t.Fatal(err)
		}
	}
	return ratesPath, instructionsPath
}

// The table has the published figures, and shares of the packets that pass by XDP: a fifth if a packet costs
// five times as much.
func TestExperiment(t *testing.T) {
	ratesPath, instructionsPath := experimentFiles(t)
	table := printed(t, "experiment", ratesPath, instructionsPath)
	for _, want := range []string{
		"cilium.io/blog",
		"| " + forward.SideXDPSNAT + " | 10 | 1.00 | 400 | 1.00 | 40 % / 80 % | 2000 | 1.00 |\n",
		"| " + forward.SideTCSNAT + " | 2.8 | 0.28 |  |  |  |  |  |\n",
		"| " + forward.SideOldIPTables + " |  |  | 2000 | 0.20 | 100 % (0.50) / 100 % (0.50) |  |  |\n",
		"| " + forward.SideIPVSProxy + " | < 2.4 |  |  |  |  | 8000 | 0.25 |\n",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("before\n"+experimentBegin+"old\n"+experimentEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		printed(t, "experiment", ratesPath, instructionsPath, "--into", page)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); !strings.HasPrefix(got, "before\n"+experimentBegin+table) || !strings.HasSuffix(got, "(pictures/experiment.svg)\n"+experimentEnd+"after\n") {
		t.Errorf("the page is\n%s", got)
	}
	picture, err := os.ReadFile(filepath.Join(filepath.Dir(page), "pictures", "experiment.svg"))
	for _, want := range []string{forward.SideIPVSProxy + " (published: &lt; 2.4 Mpps)", "emulated"} {
		if err != nil || !strings.Contains(string(picture), want) {
			t.Errorf("the picture has no %q (%v)", want, err)
		}
	}
}

// Without either part there is no experiment, and the error says which is missing.
func TestExperimentWithoutAPart(t *testing.T) {
	ratesPath, instructionsPath := experimentFiles(t)
	for want, args := range map[string][]string{"rates": {instructionsPath, instructionsPath}, "instructions": {ratesPath, ratesPath}} {
		c := command()
		c.SetArgs(append([]string{"experiment"}, args...))
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), "the part "+want) {
			t.Errorf("%v, want an error about the part %s", err, want)
		}
	}
}

// The results of the part instructions can be printed again from their file, like every part's.
func TestInstructionsText(t *testing.T) {
	_, instructionsPath := experimentFiles(t)
	text := printed(t, "doc", instructionsPath)
	for _, want := range []string{"== instructions: ", forward.SideIPVSProxy, "8000", "4.000 [4.000, 4.000]"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
