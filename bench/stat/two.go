// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"math"
	"slices"
	"sync"
)

// A Shift is the factor between the values of two samples.
type Shift struct {
	Interval
	// P is the probability that two samples of the same distribution are at least as far apart, by the
	// two-sided Mann-Whitney test.
	P float64 `json:"p"`
}

// Clear reports whether the interval is one of 95 % and excludes 1.
func (s Shift) Clear() bool { return s.Confidence >= 0.95 && (s.Low > 1 || s.High < 1) }

// RatioShift compares two unpaired samples: the estimate of Hodges and Lehmann on the logarithms, the median of
// all quotients of one value by the other's, with the interval of the Mann-Whitney test. It assumes that one
// distribution is a multiple of the other, and nothing about its form. Like MedianInterval it gives 95 % or
// what the numbers of values allow; 4 by 4 are enough. If a value is not positive the result is NaN.
func RatioShift(values, by []float64) Shift {
	m, n := len(values), len(by)
	if m == 0 || n == 0 || !positive(values) || !positive(by) {
		return Shift{Interval{math.NaN(), math.NaN(), math.NaN(), 0}, 1}
	}
	quotients := make([]float64, 0, m*n)
	less := 0.0 // pairs in which the value is less, and half of those in which it is equal
	for _, v := range values {
		for _, w := range by {
			quotients = append(quotients, v/w)
			switch {
			case v < w:
				less++
			case v == w:
				less += 0.5
			}
		}
	}
	slices.Sort(quotients)
	// The k-th quotient from either end, while fewer than k on one side are rare.
	k, tails := 1, pairsBelow(m, n)
	for k < (m*n+1)/2 && 2*tails(k) <= 0.05 {
		k++
	}
	low, high := quotients[(m*n-1)/2], quotients[m*n/2]
	middle := low
	if low != high {
		middle = math.Sqrt(low * high)
	}
	return Shift{
		Interval{middle, quotients[k-1], quotients[m*n-k], max(0, 1-2*tails(k-1))},
		min(1, 2*tails(int(math.Ceil(min(less, float64(m*n)-less))))),
	}
}

func positive(values []float64) bool {
	return !slices.ContainsFunc(values, func(v float64) bool { return !(v > 0) || math.IsInf(v, 1) })
}

// exactMost is the number of pairs up to which the distribution is counted; beyond it is normal to three
// digits.
const exactMost = 3000

var countedPairs sync.Map // [2]int to []float64

// pairsBelow returns the probability that, of all pairs of m values and n others of the same distribution, the
// first is the greater one in k or fewer.
func pairsBelow(m, n int) func(k int) float64 {
	if m*n > exactMost {
		mean, deviation := float64(m*n)/2, math.Sqrt(float64(m)*float64(n)*float64(m+n+1)/12)
		return func(k int) float64 {
			return math.Erfc((mean-float64(k)-0.5)/deviation/math.Sqrt2) / 2
		}
	}
	known, found := countedPairs.Load([2]int{m, n})
	if !found {
		known = countPairs(m, n)
		countedPairs.Store([2]int{m, n}, known)
	}
	sums := known.([]float64)
	return func(k int) float64 { return sums[min(k, len(sums)-1)] }
}

// countPairs counts by whether the greatest of all values is one of the m, which is then the greater one in n
// pairs.
func countPairs(m, n int) []float64 {
	row := make([][]float64, n+1) // for one number of values, by the number of others
	for i := range m + 1 {
		for j := range n + 1 {
			next := make([]float64, i*j+1)
			if i == 0 || j == 0 {
				next[0] = 1
			} else {
				all := float64(i + j)
				for u := range next {
					if u >= j && u-j < len(row[j]) {
						next[u] += float64(i) / all * row[j][u-j] // row[j] is still that of i-1
					}
					if u < len(row[j-1]) {
						next[u] += float64(j) / all * row[j-1][u]
					}
				}
			}
			row[j] = next
		}
	}
	sums := row[n]
	for u := 1; u < len(sums); u++ {
		sums[u] += sums[u-1]
	}
	return sums
}

// Discoveries says which of many tests to believe, so that one in twenty of those is by chance (Benjamini and
// Hochberg 1995).
func Discoveries(p []float64) []bool {
	sorted := slices.Sorted(slices.Values(p))
	limit := -1.0
	for i, value := range sorted {
		if value <= 0.05*float64(i+1)/float64(len(p)) {
			limit = value
		}
	}
	believed := make([]bool, len(p))
	for i, value := range p {
		believed[i] = value <= limit
	}
	return believed
}
