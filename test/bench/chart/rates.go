// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"beeline.io/beeline/test/bench/result"
	"beeline.io/beeline/test/bench/stat"
)

// ratesCharts are, of each figure, scenario and family, the ways side by side with the fewest
// Services, and each way against the number of Services where there are several.
func ratesCharts(f *result.File) (all []Chart) {
	type kind struct {
		scenario, family string
		metric           result.Metric
	}
	mine := slices.DeleteFunc(slices.Clone(f.Rows), func(r result.Row) bool { return r.Part != "rates" || r.Better == result.None })
	for _, k := range each(mine, func(r result.Row) kind { return kind{r.Scenario, r.Family, r.Metric} }) {
		rows := slices.DeleteFunc(slices.Clone(mine), func(r result.Row) bool { return (kind{r.Scenario, r.Family, r.Metric}) != k })
		sizes := each(rows, parameter("services"))
		slices.Sort(sizes)
		axis := strings.TrimSuffix(fmt.Sprintf("%s: %s, %s", axisOf(k.metric), k.scenario, k.family), ", ")
		fewest := slices.DeleteFunc(slices.Clone(rows), func(r result.Row) bool { return r.Parameters["services"] != sizes[0] })
		name := fileName("rates", k.metric.Name, k.scenario, k.family)
		if sizes[0] > 0 {
			all = append(all, sidesChart(name, axis+", "+count(sizes[0], "Services"), fewest))
		} else {
			all = append(all, sidesChart(name, axis, fewest))
		}
		if len(sizes) > 1 {
			all = append(all, againstServices(name+"-services", axis, rows))
		}
	}
	return all
}

func againstServices(name, up string, rows []result.Row) Chart {
	var curves []curve
	least, most := math.Inf(1), 0.0
	for _, side := range each(rows, sideOf) {
		c := curve{name: side}
		own := slices.DeleteFunc(slices.Clone(rows), func(r result.Row) bool { return r.Side != side || r.Parameters["services"] == 0 })
		slices.SortStableFunc(own, func(a, b result.Row) int { return cmp.Compare(a.Parameters["services"], b.Parameters["services"]) })
		for _, r := range own {
			value := stat.MedianInterval(r.Samples)
			c.at, c.values = append(c.at, float64(r.Parameters["services"])), append(c.values, value)
			least, most = min(least, value.Low), max(most, value.High)
		}
		if len(own) > 0 {
			curves = append(curves, c)
		}
	}
	return lineChart(name, "Services", up, curves, far(least, most))
}
