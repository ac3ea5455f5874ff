// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"math"
	"slices"

	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

// mostKinds is how many shades the eye can distinguish.
const mostKinds = 5

// controlCharts draws one chart per unit: times, and memory. A bar is a side with a number of Services; if
// these are too many to distinguish by shade, each figure has its own chart.
func controlCharts(f *result.File) (all []Chart) {
	mine := slices.DeleteFunc(slices.Clone(f.Rows), func(r result.Row) bool { return r.Part != "control" || r.Better == result.None })
	kindOf := func(r result.Row) string {
		if n := r.Parameters["services"]; n > 0 {
			return r.Side + ", " + count(n, "Services")
		}
		return r.Side
	}
	type figure struct{ scenario, metric string }
	figureOf := func(r result.Row) figure { return figure{r.Scenario, r.Name} }
	title := func(f figure) string {
		if f.metric == "time" {
			return f.scenario
		}
		return f.scenario + ", " + f.metric
	}
	for _, unit := range each(mine, func(r result.Row) string { return r.Unit }) {
		rows := slices.DeleteFunc(slices.Clone(mine), func(r result.Row) bool { return r.Unit != unit })
		kinds := each(rows, kindOf)
		what := map[string]string{"ms": "Time", "s": "Time", "MiB": "Memory", "1": "Number"}[unit]
		if what == "" {
			what = "Figure"
		}
		name, axis := fileName("control", what, map[string]string{"s": "s"}[unit]), what+" ("+unit+")"
		var groups []group
		least, most := math.Inf(1), 0.0
		for _, figure := range each(rows, figureOf) {
			g := group{name: title(figure)}
			own := slices.DeleteFunc(slices.Clone(rows), func(r result.Row) bool { return figureOf(r) != figure })
			for _, r := range own {
				value := stat.MedianInterval(r.Samples)
				g.bars = append(g.bars, bar{kind: kindOf(r), value: value})
				least, most = min(least, value.Low), max(most, value.High)
			}
			groups = append(groups, g)
			if len(kinds) > mostKinds {
				all = append(all, sidesChart(fileName(name, figure.scenario, figure.metric), capital(title(figure))+" ("+unit+")", own, kindOf))
			}
		}
		if len(kinds) > mostKinds {
			continue
		}
		if len(kinds) == 1 {
			axis += ", " + kinds[0]
		}
		all = append(all, barChart(name, axis, kinds, shadesOf(len(kinds)), groups, far(least, most), ""))
	}
	return all
}
