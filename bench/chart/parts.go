// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"regexp"
	"slices"
	"strings"

	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

// rowsOf are a part's rows with a metric.
func rowsOf(f *result.File, part, metric string, which func(result.Row) bool) (rows []result.Row) {
	for _, r := range f.Rows {
		if r.Part == part && r.Name == metric && which(r) {
			rows = append(rows, r)
		}
	}
	return rows
}

// each returns the different values of rows in order.
func each[T comparable](rows []result.Row, of func(result.Row) T) (all []T) {
	for _, r := range rows {
		if value := of(r); !slices.Contains(all, value) {
			all = append(all, value)
		}
	}
	return all
}

func sideOf(r result.Row) string     { return r.Side }
func scenarioOf(r result.Row) string { return r.Scenario }

func parameter(name string) func(result.Row) int {
	return func(r result.Row) int { return r.Parameters[name] }
}

// count is a number of things in words: one without the plural's s.
func count(n int, plural string) string {
	if n == 1 {
		return "1 " + strings.TrimSuffix(plural, "s")
	}
	return number(float64(n)) + " " + plural
}

// axisOf is the title of an axis for a metric.
func axisOf(m result.Metric) string {
	unit := m.Unit
	switch unit {
	case "us":
		unit = "\u00b5s"
	case "1/s":
		return capital(strings.TrimSuffix(m.Name, " per second")) + " per second"
	case "1":
		return capital(m.Name)
	}
	return fmt.Sprintf("%s (%s)", capital(m.Name), unit)
}

func capital(s string) string {
	if s == "" || s[0] == 'p' && len(s) > 1 && s[1] >= '0' && s[1] <= '9' {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

var noLetters = regexp.MustCompile(`[^a-z0-9]+`)

// fileName makes a file's name from words.
func fileName(words ...string) string {
	return strings.Trim(noLetters.ReplaceAllString(strings.ToLower(strings.Join(words, "-")), "-"), "-")
}

// edgeCharts draws one chart for each hook and family: the yardstick, and a bar for each number of flows.
func edgeCharts(f *result.File) (all []Chart) {
	const metric = "time per packet"
	for _, hook := range each(rowsOf(f, "edge", metric, func(result.Row) bool { return true }), func(r result.Row) string { return r.Hook }) {
		for _, family := range []string{"IPv4", "IPv6"} {
			rows := rowsOf(f, "edge", metric, func(r result.Row) bool { return r.Hook == hook && r.Family == family && r.Side != "minimal" })
			if len(rows) == 0 {
				continue
			}
			flows := each(rows, parameter("flows"))
			slices.Sort(flows)
			kinds, fills := []string{"minimal balancer"}, append([]color.Color{color.White}, shadesOf(len(flows))...)
			for _, n := range flows {
				kinds = append(kinds, count(n, "flows"))
			}
			var groups []group
			for _, scenario := range each(rows, scenarioOf) {
				g := group{name: scenario}
				var minimal []float64
				own := slices.DeleteFunc(slices.Clone(rows), func(r result.Row) bool { return r.Scenario != scenario })
				slices.SortStableFunc(own, func(a, b result.Row) int { return cmp.Compare(a.Parameters["flows"], b.Parameters["flows"]) })
				for _, r := range own {
					minimal = append(minimal, f.Counterpart(r)...)
					g.bars = append(g.bars, bar{kind: count(r.Parameters["flows"], "flows"), value: stat.MedianInterval(r.Samples)})
				}
				g.bars = append([]bar{{kind: kinds[0], value: stat.MedianInterval(minimal)}}, g.bars...)
				groups = append(groups, g)
			}
			title := fmt.Sprintf("Time per packet at %s, %s (ns)", strings.Replace(hook, "xdp", "XDP", 1), family)
			all = append(all, barChart(fileName("edge", hook, family), title, kinds, fills, groups, true, ""))
		}
	}
	return all
}

// balancerCharts draws one chart for each figure, with a bar for each way.
func balancerCharts(f *result.File) (all []Chart) {
	for _, metric := range []string{"requests per second", "p99 latency", "CPU time per request"} {
		if rows := rowsOf(f, "balancer", metric, func(result.Row) bool { return true }); len(rows) > 0 {
			all = append(all, sidesChart(fileName("balancer", metric), axisOf(rows[0].Metric), rows, sideOf))
		}
	}
	return all
}

// meshCharts draws one chart for each figure and number of connections: a group for each proxy, alone and beside load.
func meshCharts(f *result.File) (all []Chart) {
	for _, metric := range []string{"requests per second", "p90 latency", "CPU time per request"} {
		rows := rowsOf(f, "mesh", metric, func(result.Row) bool { return true })
		for _, connections := range each(rows, parameter("connections")) {
			own := slices.DeleteFunc(slices.Clone(rows), func(r result.Row) bool { return r.Parameters["connections"] != connections })
			var groups []group
			for _, scenario := range each(own, scenarioOf) {
				g := group{name: scenario}
				for _, r := range own {
					if r.Scenario == scenario {
						g.bars = append(g.bars, bar{kind: r.Side, value: stat.MedianInterval(r.Samples)})
					}
				}
				groups = append(groups, g)
			}
			kinds := each(own, sideOf)
			title := fmt.Sprintf("%s with %s", axisOf(own[0].Metric), count(connections, "connections"))
			all = append(all, barChart(fileName("mesh", metric, fmt.Sprint(connections)), title, kinds, shadesOf(len(kinds)), groups, false, ""))
		}
	}
	return all
}

// instructionCharts draws one chart, with a bar for each way.
func instructionCharts(f *result.File) []Chart {
	rows := rowsOf(f, "instructions", "instructions per packet", func(result.Row) bool { return true })
	if len(rows) == 0 {
		return nil
	}
	return []Chart{sidesChart("instructions-per-packet", axisOf(rows[0].Metric)+", emulated", rows, sideOf)}
}

// sidesChart draws a bar for each row with a name.
func sidesChart(name, axis string, rows []result.Row, nameOf func(result.Row) string) Chart {
	var groups []group
	least, most := math.Inf(1), 0.0
	for _, r := range rows {
		value := stat.MedianInterval(r.Samples)
		groups = append(groups, group{name: nameOf(r), bars: []bar{{value: value}}})
		least, most = min(least, value.Low), max(most, value.High)
	}
	return barChart(name, axis, []string{""}, shadesOf(1), groups, far(least, most), "")
}

// far reports whether figures are so far apart that small ones are invisible next to great ones.
func far(least, most float64) bool { return least > 0 && most/least > 40 }
