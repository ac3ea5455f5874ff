// SPDX-License-Identifier: Apache-2.0

// Package stat has the statistics that the benchmarks need. It assumes nothing about distributions: timings
// follow none of a textbook.
package stat

import (
	"fmt"
	"math"
	"slices"
)

// Median is the median of the values; NaN if there are none.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Quantile is the quantile q of the values, interpolated between neighbours.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

// Interval is a median and bounds of the true one.
type Interval struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	// Confidence that the true median is between Low and High: 0.95 or more, or what the number of values
	// allows.
	Confidence float64 `json:"confidence"`
}

// MedianInterval is the median with its confidence interval by the sign test: of n values the k-th smallest and
// the k-th largest enclose the true median unless fewer than k values are on one of its sides, which is a
// matter of tossing coins. 95 % takes at least six values.
func MedianInterval(values []float64) Interval {
	n := len(values)
	if n == 0 {
		return Interval{math.NaN(), math.NaN(), math.NaN(), 0}
	}
	sorted := slices.Sorted(slices.Values(values))
	k := 1
	for k+1 <= (n+1)/2 && coverage(n, k+1) >= 0.95 {
		k++
	}
	return Interval{Median(sorted), sorted[k-1], sorted[n-k], coverage(n, k)}
}

// coverage is 1 - 2 P(fewer than k heads in n tosses).
func coverage(n, k int) float64 {
	tail, choose := 0.0, 1.0
	for i := range k {
		tail += choose
		choose = choose * float64(n-i) / float64(i+1)
	}
	return max(0, 1-2*tail/math.Pow(2, float64(n)))
}

// Ratios divides value by value.
func Ratios(values, by []float64) []float64 {
	ratios := make([]float64, min(len(values), len(by)))
	for i := range ratios {
		ratios[i] = values[i] / by[i]
	}
	return ratios
}

// String formats a ratio's interval for people.
func (i Interval) String() string {
	mark := ""
	if i.Confidence < 0.95 {
		mark = "?"
	}
	return fmt.Sprintf("%.3f [%.3f, %.3f]%s", i.Median, i.Low, i.High, mark)
}
