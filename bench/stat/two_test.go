// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The numbers are those of any table of the Mann-Whitney test: how many pairs at most on one side are still
// rare at 5 %, two-sided.
func TestPairsBelow(t *testing.T) {
	for _, c := range []struct{ m, n, critical int }{{4, 4, 0}, {5, 5, 2}, {7, 7, 8}, {9, 9, 17}, {10, 8, 17}, {20, 20, 127}} {
		below := pairsBelow(c.m, c.n)
		if 2*below(c.critical) > 0.05 || 2*below(c.critical+1) <= 0.05 {
			t.Errorf("%d by %d: %d pairs or fewer have %.4f, one more %.4f", c.m, c.n, c.critical, 2*below(c.critical), 2*below(c.critical+1))
		}
		if all := below(c.m * c.n); math.Abs(all-1) > 1e-9 {
			t.Errorf("%d by %d: all numbers together have %v", c.m, c.n, all)
		}
	}
	if below := pairsBelow(3, 3); math.Abs(below(0)-1.0/20) > 1e-12 {
		t.Errorf("all of 3 below all of 3: %v, want 1/20", below(0))
	}
	// The exact and the normal distribution agree where one replaces the other.
	exact := countPairs(54, 54)
	for _, k := range []int{1100, 1200, 1458, 1600} {
		if near := pairsBelow(55, 55); math.Abs(exact[k]-near(k+54)) > 0.02 {
			t.Errorf("%d of 54 by 54: %.4f counted, %.4f with one more of each", k, exact[k], near(k+54))
		}
	}
}

// 95 % of many intervals contain the true ratio, whatever the distribution and its spread, also with different
// numbers of values; 2,000 tries with 95 % each fall below 93 % less than once in 10^4 seeds, and the seed is
// fixed.
func TestRatioShiftHolds(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for name, draw := range map[string]func() float64{
		"lognormal":   func() float64 { return math.Exp(0.2 * random.NormFloat64()) },
		"exponential": func() float64 { return 1e-9 + random.ExpFloat64() },
		"two peaks":   func() float64 { return 1 + 2*float64(random.IntN(2)) + 0.01*random.Float64() },
	} {
		for _, sizes := range [][2]int{{4, 4}, {7, 7}, {9, 31}, {60, 60}} {
			const ratio = 1.3
			tries := 2000
			if sizes[0] == 60 { // each takes long
				tries = 400
			}
			held, believed := 0, 0
			for range tries {
				values, by := make([]float64, sizes[0]), make([]float64, sizes[1])
				for i := range values {
					values[i] = ratio * draw()
				}
				for i := range by {
					by[i] = draw()
				}
				s := RatioShift(values, by)
				if s.Low <= ratio && ratio <= s.High {
					held++
				}
				for i := range values {
					values[i] /= ratio
				}
				if RatioShift(values, by).P <= 0.05 {
					believed++
				}
			}
			if held < tries*93/100 || believed > tries*7/100 {
				t.Errorf("%s, %v: %d of %d intervals contain the ratio; %d times equal samples were taken for different", name, sizes, held, tries, believed)
			}
		}
	}
}

// A real difference is found, with its direction.
func TestRatioShiftFinds(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	values, by := make([]float64, 9), make([]float64, 9)
	for i := range values {
		values[i], by[i] = 1.2*math.Exp(0.02*random.NormFloat64()), math.Exp(0.02*random.NormFloat64())
	}
	if s := RatioShift(values, by); !s.Clear() || s.Low < 1.15 || s.High > 1.25 || s.P > 1e-3 {
		t.Errorf("a factor of 1.2 is found to be %+v", s)
	}
	if s := RatioShift(by, values); !s.Clear() || s.High > 1/1.15 {
		t.Errorf("a factor of 1 by 1.2 is found to be %+v", s)
	}
}

// Equal samples have the ratio 1, and do not differ; without a ratio there is none.
func TestRatioShiftOfTheSame(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for _, n := range []int{1, 2, 3, 8, 31, 80} {
		values := make([]float64, n)
		for i := range values {
			values[i] = random.ExpFloat64() + 0.1
		}
		if s := RatioShift(values, values); math.Abs(s.Median-1) > 1e-12 || s.Clear() || s.P < 0.5 {
			t.Errorf("%d values and the same: %+v", n, s)
		}
		same := slices.Repeat([]float64{4}, n)
		if s := RatioShift(same, same); s.Median != 1 || s.Low != 1 || s.High != 1 || s.Clear() {
			t.Errorf("%d equal values: %+v", n, s)
		}
	}
	if s := RatioShift([]float64{1, 2, 3}, []float64{4, 5, 6}); s.Clear() || s.Confidence > 0.95 {
		t.Errorf("three values are not enough for %+v", s)
	}
	if s := RatioShift([]float64{1, -1, 1, 1}, []float64{1, 1, 1, 1}); !math.IsNaN(s.Median) || s.Clear() || s.P != 1 {
		t.Errorf("a value below zero: %+v", s)
	}
}

// Of tests that find nothing hardly any is believed, and of those that find something nearly all.
func TestDiscoveries(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	runs := 0
	for range 1000 {
		chance := make([]float64, 200)
		for i := range chance {
			chance[i] = random.Float64()
		}
		if slices.Contains(Discoveries(chance), true) {
			runs++
		}
	}
	if runs > 75 { // 5 % of the runs; 7.5 % is more than three deviations from that
		t.Errorf("in %d of 1000 runs without a difference a test was believed", runs)
	}
	if got := Discoveries([]float64{0.001, 0.9, 0.012, 0.04}); !slices.Equal(got, []bool{true, false, true, false}) {
		t.Errorf("believed %v", got)
	}
	if got := Discoveries(nil); len(got) != 0 {
		t.Errorf("without tests %v is believed", got)
	}
}
