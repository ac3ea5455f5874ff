// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
)

// ticks are round numbers, written as people write them.
type ticks struct{ logarithmic bool }

// Ticks implements plot.Ticker.
func (t ticks) Ticks(low, high float64) (all []plot.Tick) {
	if !t.logarithmic {
		step := math.Pow(10, math.Floor(math.Log10(high-low)))
		for _, part := range []float64{0.5, 0.4, 0.5} { // 5, 2, 1
			if (high-low)/step < 4 {
				step *= part
			}
		}
		for i := math.Ceil(low / step); i*step <= high; i++ {
			all = append(all, plot.Tick{Value: i * step, Label: number(i * step)})
		}
		return all
	}
	// With few decades there is room for more numbers.
	between := high/low < 2000
	for decade := math.Floor(math.Log10(low)); decade <= math.Log10(high); decade++ {
		for digit := 1.0; digit < 10; digit++ {
			value := digit * math.Pow(10, decade)
			if value < low*0.999 || value > high*1.001 {
				continue
			}
			tick := plot.Tick{Value: value}
			if digit == 1 || between && (digit == 2 || digit == 5) {
				tick.Label = number(value)
			}
			all = append(all, tick)
		}
	}
	return all
}

// number writes a number with commas between thousands.
func number(x float64) string {
	if x == 0 {
		return "0"
	}
	digits := strconv.FormatFloat(math.Abs(x), 'f', -1, 64)
	if math.Abs(x) < 1 || x != math.Trunc(x) {
		digits = strconv.FormatFloat(math.Abs(x), 'g', 6, 64)
	}
	whole, rest, _ := strings.Cut(digits, ".")
	for at := len(whole) - 3; at > 0; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	if rest != "" {
		whole += "." + rest
	}
	if x < 0 {
		whole = "-" + whole
	}
	return whole
}
