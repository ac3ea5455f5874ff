// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"beeline.io/beeline/bench/stat"
)

// A bar is horizontal: its name is left of it, and may be long.
type bar struct {
	kind  string // in the legend
	value stat.Interval
	also  float64 // a second mark, for example p99; 0: none
}

// A group is the bars of one case.
type group struct {
	name string
	bars []bar
}

const (
	barHeight = 7 * vg.Length(1)
	margin    = 24 * vg.Length(1) // of the axis
	gap       = 0.8               // between groups, in bars
)

// barChart draws groups from the top down. Kinds are shaded in order; `also` explains the marks in the legend.
func barChart(name, axis string, kinds []string, fills []color.Color, groups []group, logarithmic bool, also string) Chart {
	c := Chart{Name: name, plot: newPlot(logarithmic), across: axis}
	fillOf := map[string]color.Color{}
	for i, kind := range kinds {
		fillOf[kind] = fills[i]
		if len(kinds) > 1 {
			c.legend = append(c.legend, entry{text: kind, fill: fills[i]})
		}
	}
	if also != "" {
		c.legend = append(c.legend, entry{text: also, mark: &alsoMark})
	}
	all := &bars{fills: fillOf}
	c.bars = all
	least, most, y := math.Inf(1), 0.0, 0.0
	var names []plot.Tick
	for _, g := range groups {
		g.bars = slices.DeleteFunc(slices.Clone(g.bars), func(b bar) bool { return math.IsNaN(b.value.Median) })
		names = append(names, plot.Tick{Value: -(y + float64(len(g.bars))/2), Label: g.name})
		for _, b := range g.bars {
			all.bars, all.at = append(all.bars, b), append(all.at, -(y+0.5))
			if b.value.Median > 0 {
				least = min(least, b.value.Median)
			}
			most = max(most, b.value.High)
			if b.also > 0 {
				most = max(most, b.also)
			}
			y++
		}
		y += gap
	}
	c.plot.X.Min, c.plot.X.Max = 0, most*1.03
	if most <= 0 {
		c.plot.X.Max = 1
	}
	if logarithmic && math.IsInf(least, 1) { // nothing is positive
		c.plot.X.Scale, c.plot.X.Tick.Marker = plot.LinearScale{}, ticks{}
	} else if logarithmic {
		// Start at the round number below.
		decade := math.Pow(10, math.Floor(math.Log10(least)))
		for _, digit := range []float64{1, 2, 5} {
			if digit*decade <= least*0.8 {
				c.plot.X.Min = digit * decade
			}
		}
		if c.plot.X.Min == 0 {
			c.plot.X.Min = decade / 2
		}
	}
	c.plot.Y.Min, c.plot.Y.Max = -y+gap/2, gap/2
	c.plot.Y.Tick.Marker, c.plot.Y.Tick.Length = plot.ConstantTicks(names), 0
	c.plot.Y.Tick.Label.Font = font.From(sans, fontSize)
	c.plot.Add(grid{}, all)
	c.height = barHeight*vg.Length(y) + margin
	return c
}

// dotChart draws a dot for each bar on an axis around 1. There are two kinds.
func dotChart(name, axis string, kinds []string, groups []group) Chart {
	c := barChart(name, axis, kinds, make([]color.Color, len(kinds)), groups, false, "")
	low, high := 1.0, 1.0
	for _, g := range groups {
		for _, b := range g.bars {
			low, high = min(low, b.value.Low), max(high, b.value.High)
		}
	}
	c.plot.X.Min, c.plot.X.Max = low-(high-low)/20, high+(high-low)/20
	if low == high {
		c.plot.X.Min, c.plot.X.Max = 0.9, 1.1
	}
	c.bars.dots = map[string]draw.GlyphStyle{}
	for i, kind := range kinds {
		mark := draw.GlyphStyle{Color: black, Radius: 2, Shape: []draw.GlyphDrawer{draw.RingGlyph{}, draw.CircleGlyph{}}[i%2]}
		c.bars.dots[kind] = mark
		c.legend[i].mark = &mark
	}
	return c
}

var alsoMark = draw.GlyphStyle{Color: black, Radius: 2, Shape: draw.CrossGlyph{}}

// bars implements plot.Plotter.
type bars struct {
	fills map[string]color.Color
	dots  map[string]draw.GlyphStyle // instead of bars
	bars  []bar
	at    []float64
}

// Plot draws the bars, starting at the axis.
func (all *bars) Plot(area draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&area)
	x := func(value float64) vg.Length { return toX(min(max(value, p.X.Min), p.X.Max)) }
	if all.dots != nil {
		area.StrokeLine2(thin, x(1), area.Min.Y, x(1), area.Max.Y)
	}
	for i, b := range all.bars {
		middle, half := toY(all.at[i]), 0.42*(toY(0)-toY(-1))
		if mark, is := all.dots[b.kind]; is {
			whisker(area, x(b.value.Low), x(b.value.High), middle, half*0.6, true, false)
			area.DrawGlyph(mark, vg.Point{X: x(b.value.Median), Y: middle})
			continue
		}
		drawBox(area, vg.Rectangle{Min: vg.Point{X: x(p.X.Min), Y: middle - half}, Max: vg.Point{X: x(b.value.Median), Y: middle + half}}, all.fills[b.kind])
		whisker(area, x(b.value.Low), x(b.value.High), middle, half*0.6, true, dark(all.fills[b.kind]))
		if b.also > 0 {
			area.DrawGlyph(alsoMark, vg.Point{X: x(b.also), Y: middle})
		}
	}
}

// dark reports whether a black line would be invisible.
func dark(c color.Color) bool { return color.GrayModel.Convert(c).(color.Gray).Y < 0x80 }

// whisker draws an interval, with a light edge on dark areas.
func whisker(area draw.Canvas, low, high, at, half vg.Length, lying, edge bool) {
	if low == high {
		return
	}
	point := func(along, across vg.Length) vg.Point {
		if lying {
			return vg.Point{X: along, Y: across}
		}
		return vg.Point{X: across, Y: along}
	}
	lines := []draw.LineStyle{{Color: color.White, Width: 1.8}, {Color: black, Width: 0.7}}
	if !edge {
		lines = lines[1:]
	}
	for _, s := range lines {
		area.StrokeLines(s, []vg.Point{point(low, at), point(high, at)},
			[]vg.Point{point(low, at-half), point(low, at+half)}, []vg.Point{point(high, at-half), point(high, at+half)})
	}
}

// grid is a thin line at each number of the axis.
type grid struct{}

// Plot implements plot.Plotter.
func (grid) Plot(area draw.Canvas, p *plot.Plot) {
	toX, _ := p.Transforms(&area)
	for _, tick := range p.X.Tick.Marker.Ticks(p.X.Min, p.X.Max) {
		if tick.Label != "" && tick.Value >= p.X.Min && tick.Value <= p.X.Max {
			x := toX(tick.Value)
			area.StrokeLine2(draw.LineStyle{Color: color.Gray{0xdd}, Width: 0.4}, x, area.Min.Y, x, area.Max.Y)
		}
	}
}
