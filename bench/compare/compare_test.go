// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"beeline.io/beeline/bench/result"
)

var (
	cost = result.Metric{Name: "time per packet", Unit: "ns", Better: result.Lower}
	rate = result.Metric{Name: "requests per second", Unit: "1/s", Better: result.Higher}
	size = result.Metric{Name: "requests", Unit: "1", Better: result.None}
)

// simulated is a run of many scenarios with a yardstick each; in the scenarios of `changed` all figures except
// the yardstick's are multiplied, and those of the whole run by pace.
func simulated(seed uint64, pace float64, changed map[string]float64) *result.File {
	random := rand.New(rand.NewPCG(seed, 1))
	f := &result.File{Schema: result.Schema, Program: "simulated", Machine: result.Machine{CPU: "a CPU", CPUs: 2, Kernel: "6.1"}}
	for i := range 60 {
		scenario := string(rune('A'+i/26)) + string(rune('a'+i%26))
		times := 1.0
		if factor, found := changed[scenario]; found {
			times = factor
		}
		for range 9 {
			weather := math.Exp(0.1 * random.NormFloat64()) // of the round, for both sides
			noise := func() float64 { return pace * weather * math.Exp(0.02*random.NormFloat64()) }
			series := result.Series{Part: "edge", Scenario: scenario, Side: "Beeline", Parameters: result.Parameters{"flows": 1}}
			f.Add(result.Row{Series: series, Metric: cost, Against: "minimal"}, 200*times*noise())
			f.Add(result.Row{Series: series, Metric: rate}, 5000*times/noise())
			f.Add(result.Row{Series: series, Metric: size}, 1000*times)
			series.Side = "minimal"
			f.Add(result.Row{Series: series, Metric: cost}, 40*noise())
		}
	}
	return f
}

func of(t *testing.T, old, now *result.File) *Comparison {
	t.Helper()
	c, err := Of(old, now)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A run compared with itself has only ones, and no warnings.
func TestTheSame(t *testing.T) {
	f := simulated(1, 1, nil)
	c := of(t, f, f)
	if len(c.Rows) != 3*60 || c.Better != 0 || c.Worse != 0 || len(c.Warnings) != 0 {
		t.Errorf("%d rows, %d better, %d worse, %q", len(c.Rows), c.Better, c.Worse, c.Warnings)
	}
	for _, r := range c.Rows {
		if math.Abs(r.Ratio.Median-1) > 1e-12 || r.Verdict != Unclear || r.Old != r.New {
			t.Errorf("%+v", r)
		}
		if r.Relative != nil && math.Abs(r.Relative.Ratio.Median-1) > 1e-12 {
			t.Errorf("%+v", r.Relative)
		}
	}
}

// Changes are found with their direction, and hardly anything else. A slower machine makes nothing worse that
// has a yardstick.
func TestChanges(t *testing.T) {
	changed := map[string]float64{"Aa": 1.2, "Ab": 1 / 1.2, "Ac": 1.2}
	for seed := range uint64(5) {
		c := of(t, simulated(2*seed+2, 1, nil), simulated(2*seed+3, 1.5, changed))
		wrong := 0
		for _, r := range c.Rows {
			if r.Name != cost.Name || r.Side == "minimal" {
				continue
			}
			want := Unclear
			if factor, found := changed[r.Scenario]; found {
				want = Worse
				if factor < 1 {
					want = Better
				}
				if r.Verdict != want {
					t.Errorf("%s %s: %s, want %s (%+v)", r.Series, r.Name, r.Verdict, want, r.Relative)
				}
			} else if r.Verdict != want {
				wrong++
			}
		}
		if wrong > 2 {
			t.Errorf("%d of 57 unchanged rows are called better or worse", wrong)
		}
	}
	// If more is better, an increase is better.
	c := of(t, simulated(20, 1, nil), simulated(21, 1, map[string]float64{"Aa": 3}))
	for _, r := range c.Rows {
		if r.Scenario == "Aa" && r.Side == "Beeline" && r.Verdict != map[string]Verdict{cost.Name: Worse, rate.Name: Better}[r.Name] {
			t.Errorf("three times as much of %s is %s", r.Name, r.Verdict)
		}
	}
}

// Warnings name runs that should not be compared.
func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		what   string
		change func(*result.File)
		want   string
	}{
		{"another kernel", func(f *result.File) { f.Machine.Kernel = "6.12" }, "the kernel differs: 6.1 before, 6.12 now"},
		{"another machine", func(f *result.File) { f.Machine.CPU = "another CPU" }, "the CPU differs"},
		{"another hypervisor", func(f *result.File) { f.Machine.Hypervisor = "QEMU" }, "the kind of machine differs"},
		{"other settings", func(f *result.File) { f.Settings.Slice = 1 }, "the length of a slice in seconds differs"},
		{"other parts", func(f *result.File) { f.Settings.Parts = []string{"edge"} }, "--part differs"},
		{"noise", func(f *result.File) { f.Noise.Others = 0.2 }, "the new run was noisy: other processes used 20 %"},
		{"smoke", func(f *result.File) { f.Settings.Smoke = true }, "the new run is a smoke test"},
		{"a row more", func(f *result.File) {
			f.Add(result.Row{Series: result.Series{Part: "more", Scenario: "of", Side: "it"}, Metric: cost}, 1)
		}, "1 rows are only in the new run"},
	} {
		now := simulated(1, 1, nil)
		c.change(now)
		got := of(t, simulated(1, 1, nil), now)
		if len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], c.want) {
			t.Errorf("%s: the warnings are %q, want one with %q", c.what, got.Warnings, c.want)
		}
	}
}

// Both outputs have the verdicts; JSON can be read again, also without a ratio.
func TestOutputs(t *testing.T) {
	old, now := simulated(1, 1, nil), simulated(2, 1, map[string]float64{"Aa": 2})
	for _, f := range []*result.File{old, now} {
		f.Add(result.Row{Series: result.Series{Part: "edge", Scenario: "below zero", Side: "Beeline"}, Metric: cost}, -1, 2, 3, 4)
	}
	now.Noise.Others = 0.5
	c := of(t, old, now)
	var text, raw bytes.Buffer
	if err := c.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"worse\n", "no ratio", "  by minimal", "1 flow, ", "A run was noisy: rows"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("there is no %q in\n%s", want, &text)
		}
	}
	if err := c.WriteJSON(&raw); err != nil {
		t.Fatal(err)
	}
	var again Comparison
	if err := json.Unmarshal(raw.Bytes(), &again); err != nil || len(again.Rows) != len(c.Rows) || again.Worse != c.Worse {
		t.Errorf("%v; %d rows, %d worse", err, len(again.Rows), again.Worse)
	}
}

// Runs without common rows are refused.
func TestNothingInCommon(t *testing.T) {
	other := &result.File{Schema: result.Schema}
	other.Add(result.Row{Series: result.Series{Part: "hook", Scenario: "one", Side: "Beeline"}, Metric: cost}, 1)
	if c, err := Of(simulated(1, 1, nil), other); err == nil || !strings.Contains(err.Error(), "no row in common") {
		t.Errorf("%+v, %v", c, err)
	}
}
