// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestMedianAndQuantile(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	for q, want := range map[float64]float64{0: 1, 0.25: 2, 0.5: 3, 0.9: 4.6, 1: 5} {
		if got := Quantile(values, q); math.Abs(got-want) > 1e-9 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if got := Median([]float64{1, 2}); got != 1.5 {
		t.Errorf("median of 1 and 2 is %v", got)
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("there is no median of nothing")
	}
}

// The ranks are those of any table of the sign test.
func TestMedianIntervalRanks(t *testing.T) {
	for _, c := range []struct {
		n          int
		low, high  float64
		confidence float64
	}{
		{1, 1, 1, 0}, {5, 1, 5, 0.9375}, {6, 1, 6, 0.96875}, {9, 2, 8, 0.9609}, {11, 2, 10, 0.9883}, {21, 6, 16, 0.9734},
	} {
		values := make([]float64, c.n)
		for i := range values {
			values[i] = float64(c.n - i)
		}
		got := MedianInterval(values)
		if got.Low != c.low || got.High != c.high || math.Abs(got.Confidence-c.confidence) > 1e-3 {
			t.Errorf("of 1..%d: %v with confidence %.4f, want [%v, %v] with %.4f", c.n, got, got.Confidence, c.low, c.high, c.confidence)
		}
	}
}

// At least 95 % of many intervals contain the true median, here 0; 1,000 tries with 98.8 % each fall below 95 %
// less than once in 10^15 runs.
func TestMedianIntervalHolds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	held := 0
	for range 1000 {
		values := make([]float64, 11)
		for i := range values {
			values[i] = random.NormFloat64()
		}
		if i := MedianInterval(values); i.Low <= 0 && 0 <= i.High {
			held++
		}
	}
	if held < 950 {
		t.Errorf("%d of 1000 intervals contain the true median", held)
	}
}
