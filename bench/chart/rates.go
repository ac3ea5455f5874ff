// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/stat"
)

// ratesCharts draws, for each figure, scenario and family: the ways side by side; each way over the number of
// Services, if there are several; or, instead of both, each way over another number, such as packets offered,
// if that varies.
func ratesCharts(f *result.File) (all []Chart) {
	type kind struct {
		scenario, family string
		metric           result.Metric
	}
	mine := slices.DeleteFunc(slices.Clone(f.Rows), func(r result.Row) bool { return r.Part != "rates" || r.Better == result.None })
	for i := range mine {
		mine[i] = withServices(mine[i])
	}
	for _, k := range each(mine, func(r result.Row) kind { return kind{r.Scenario, r.Family, r.Metric} }) {
		rows := slices.DeleteFunc(slices.Clone(mine), func(r result.Row) bool { return (kind{r.Scenario, r.Family, r.Metric}) != k })
		name, axis := fileName("rates", k.metric.Name, k.scenario, k.family), strings.TrimSuffix(fmt.Sprintf("%s: %s, %s", axisOf(k.metric), k.scenario, k.family), ", ")
		if other := varies(rows); other != "" {
			all = append(all, against(name, other, axis, rows, wayOf))
			continue
		}
		all = append(all, sidesChart(name, axis, rows, wayOf))
		if some := slices.DeleteFunc(rows, func(r result.Row) bool { return r.Parameters["services"] == 0 }); len(each(some, parameter("services"))) > 1 {
			all = append(all, against(name+"-services", "services", axis, some, sideOf))
		}
	}
	return all
}

var sideWithServices = regexp.MustCompile(`^(.*), ([0-9,]+) Services?$`)

// withServices moves the number of Services from the side's name to a parameter.
func withServices(r result.Row) result.Row {
	match := sideWithServices.FindStringSubmatch(r.Side)
	if match == nil || r.Parameters["services"] > 0 {
		return r
	}
	if n, err := strconv.Atoi(strings.ReplaceAll(match[2], ",", "")); err == nil {
		r.Side, r.Parameters = match[1], maps.Clone(r.Parameters)
		if r.Parameters == nil {
			r.Parameters = result.Parameters{}
		}
		r.Parameters["services"] = n
	}
	return r
}

func wayOf(r result.Row) string {
	if n := r.Parameters["services"]; n > 0 {
		return r.Side + ", " + count(n, "Services")
	}
	return r.Side
}

// varies names a number, other than Services, that differs between rows.
func varies(rows []result.Row) string {
	for _, name := range slices.Sorted(maps.Keys(rows[0].Parameters)) {
		if name != "services" && len(each(rows, parameter(name))) > 1 {
			return name
		}
	}
	return ""
}

// against draws a curve over a number for each name of rows.
func against(name, number, up string, rows []result.Row, nameOf func(result.Row) string) Chart {
	var curves []curve
	least, most := math.Inf(1), 0.0
	for _, way := range each(rows, nameOf) {
		c := curve{name: way}
		own := slices.DeleteFunc(slices.Clone(rows), func(r result.Row) bool { return nameOf(r) != way || r.Parameters[number] <= 0 }) // a logarithmic axis has no 0
		slices.SortStableFunc(own, func(a, b result.Row) int { return cmp.Compare(a.Parameters[number], b.Parameters[number]) })
		for _, r := range own {
			value := stat.MedianInterval(r.Samples)
			c.at, c.values = append(c.at, float64(r.Parameters[number])), append(c.values, value)
			least, most = min(least, value.Low), max(most, value.High)
		}
		if len(own) > 0 {
			curves = append(curves, c)
		}
	}
	return lineChart(name, capital(number), up, curves, far(least, most))
}
