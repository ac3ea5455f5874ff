// SPDX-License-Identifier: Apache-2.0

package chart

import "beeline.io/beeline/bench/stat"

// A Way has a figure of each kind; one whose median is not a number is missing.
type Way struct {
	Name    string
	Figures []stat.Interval
}

// Ways draws a bar for each figure of each way, shaded by kind.
func Ways(name, axis string, kinds []string, ways []Way) Chart {
	var groups []group
	for _, w := range ways {
		g := group{name: w.Name}
		for i, value := range w.Figures {
			g.bars = append(g.bars, bar{kind: kinds[i], value: value})
		}
		groups = append(groups, g)
	}
	return barChart(name, axis, kinds, shadesOf(len(kinds)), groups, false, "")
}
