// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"math"
	"testing"
)

// alpha is the probability that checkShares rejects correct counts.
const alpha = 1e-6

// checkShares is Pearson's chi-squared test of goodness of fit: it fails if counts are so far from the shares
// that chance produces them less often than alpha. Shares are relative to each other; expected counts below 5
// would make the approximation bad and are an error, too.
func checkShares(counts []int, shares []float64) error {
	n, whole := 0, 0.0
	for i := range counts {
		n += counts[i]
		whole += shares[i]
	}
	statistic := 0.0
	for i, count := range counts {
		expected := float64(n) * shares[i] / whole
		if expected < 5 {
			return fmt.Errorf("only %.1f expected at index %d of %d: take more samples", expected, i, len(counts))
		}
		statistic += (float64(count) - expected) * (float64(count) - expected) / expected
	}
	if p := chiSquaredTail(statistic, len(counts)-1); p < alpha {
		return fmt.Errorf("counts %v of %d for shares %v: chi-squared %.1f, which chance gives with p = %.1e, less than %.0e",
			counts, n, shares, statistic, p, alpha)
	}
	return nil
}

// chiSquaredTail is the probability that chi-squared with so many degrees of
// freedom exceeds x: Q(degrees/2, x/2), the regularized upper incomplete gamma
// function, by the recurrence Q(a+1, x) = Q(a, x) + x^a e^-x / Gamma(a+1) (DLMF
// 8.8.6) from Q(1/2, x) = erfc(sqrt x) or Q(1, x) = e^-x.
func chiSquaredTail(x float64, degrees int) float64 {
	x /= 2
	a, q := 1.0, math.Exp(-x)
	if degrees%2 == 1 {
		a, q = 0.5, math.Erfc(math.Sqrt(x))
	}
	for ; a < float64(degrees)/2; a++ {
		logGamma, _ := math.Lgamma(a + 1)
		if x > 0 {
			q += math.Exp(a*math.Log(x) - x - logGamma)
		}
	}
	return q
}

// Against the tables of critical values in every handbook.
func TestChiSquaredTail(t *testing.T) {
	for _, row := range []struct {
		degrees  int
		x, tail  float64
		accuracy float64
	}{
		{1, 3.841, 0.05, 1e-4}, {1, 6.635, 0.01, 1e-5}, {1, 10.828, 0.001, 1e-6}, {1, 23.928, 1e-6, 1e-9},
		{2, 5.991, 0.05, 1e-4}, {2, 13.816, 0.001, 1e-6}, {2, 27.631, 1e-6, 1e-9},
		{3, 7.815, 0.05, 1e-4}, {3, 16.266, 0.001, 1e-6}, {3, 30.665, 1e-6, 1e-9},
		{5, 20.515, 0.001, 1e-6}, {10, 18.307, 0.05, 1e-4}, {15, 37.697, 0.001, 1e-6}, {30, 43.773, 0.05, 1e-4},
		{1, 0, 1, 1e-9}, {4, 0, 1, 1e-9},
	} {
		if got := chiSquaredTail(row.x, row.degrees); math.Abs(got-row.tail) > row.accuracy {
			t.Errorf("%d degrees of freedom, %g: %g, want %g", row.degrees, row.x, got, row.tail)
		}
	}
}

// The check accepts counts as even as chance makes them, and rejects a bias of 60 to 40 in as many connections
// as the tests make.
func TestCheckShares(t *testing.T) {
	even, three := []float64{1, 1}, []float64{3, 1}
	for _, c := range []struct {
		counts []int
		shares []float64
		accept bool
	}{
		{[]int{1000, 1000}, even, true},
		{[]int{1045, 955}, even, true}, // two standard deviations
		{[]int{1200, 800}, even, false},
		{[]int{800, 1200}, even, false},
		{[]int{2000, 0}, even, false},
		{[]int{1500, 500}, three, true},
		{[]int{1500, 500}, even, false},
		{[]int{1000, 1000}, three, false},
		{[]int{510, 490, 520, 480}, []float64{1, 1, 1, 1}, true},
		{[]int{600, 400, 500, 500}, []float64{1, 1, 1, 1}, false},
		{[]int{3, 3}, even, false}, // too few
	} {
		if err := checkShares(c.counts, c.shares); (err == nil) != c.accept {
			t.Errorf("%v for shares %v: %v, want accepted: %v", c.counts, c.shares, err, c.accept)
		}
	}
}
