// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

// socketCharts draws, for each number of connections, latencies of each family and ratios of both.
func socketCharts(f *result.File) (all []Chart) {
	p50 := rowsOf(f, "sockets", "p50 latency", func(result.Row) bool { return true })
	sides := each(p50, sideOf)
	for _, connections := range each(p50, parameter("connections")) {
		for _, family := range each(p50, func(r result.Row) string { return r.Family }) {
			rows := slices.DeleteFunc(slices.Clone(p50), func(r result.Row) bool {
				return r.Parameters["connections"] != connections || r.Family != family
			})
			var groups []group
			for _, scenario := range each(rows, scenarioOf) {
				g := group{name: scenario}
				for _, r := range rows {
					if r.Scenario == scenario {
						p99 := f.Samples(r.Series, result.Metric{Name: "p99 latency", Unit: r.Unit, Better: r.Better})
						g.bars = append(g.bars, bar{kind: r.Side, value: stat.MedianInterval(r.Samples), also: stat.Median(p99)})
					}
				}
				groups = append(groups, g)
			}
			least, most := math.Inf(1), 0.0
			for _, g := range groups {
				for _, b := range g.bars {
					least, most = min(least, b.value.Median), max(most, b.also)
				}
			}
			title := fmt.Sprintf("Latency over %s with %s at a time, median and p99 (\u00b5s)", family, count(connections, "connections"))
			all = append(all, barChart(fileName("sockets", family, strconv.Itoa(connections)), title, sides, shadesOf(len(sides)), groups, far(least, most), "p99"))
		}
		all = append(all, ratioChart(f, connections, slices.DeleteFunc(slices.Clone(p50), func(r result.Row) bool { return r.Parameters["connections"] != connections })))
	}
	return all
}

// The ratios to draw: a side and the one it is divided by.
var ratios = []struct{ name, side, by string }{
	{"A/A: what the instrument cannot see", "direct, bare node (A/A)", "direct, bare node"},
	{"ClusterIP, by direct on the same node", "ClusterIP", "direct, Beeline node"},
}

// ratioChart draws dots at the ratios of medians within rounds.
func ratioChart(f *result.File, connections int, rows []result.Row) Chart {
	var groups []group
	for _, scenario := range each(rows, scenarioOf) {
		for _, family := range each(rows, func(r result.Row) string { return r.Family }) {
			g := group{name: scenario + ", " + family}
			for _, ratio := range ratios {
				for _, r := range rows {
					if r.Scenario == scenario && r.Family == family && r.Side == ratio.side {
						r.Against = ratio.by
						g.bars = append(g.bars, bar{kind: ratio.name, value: stat.MedianInterval(stat.Ratios(r.Samples, f.Counterpart(r)))})
					}
				}
			}
			groups = append(groups, g)
		}
	}
	return dotChart(fileName("sockets-ratio", strconv.Itoa(connections)), fmt.Sprintf("Ratio of median latencies, %s at a time", count(connections, "connections")),
		[]string{ratios[0].name, ratios[1].name}, groups)
}
