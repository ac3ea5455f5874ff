// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"beeline.io/beeline/bench/stat"
)

// A curve is one side over a number.
type curve struct {
	name   string
	at     []float64 // ascending
	values []stat.Interval
	line   draw.LineStyle
	mark   draw.GlyphStyle
}

var (
	marks  = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{}, draw.RingGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}}
	dashes = [][]vg.Length{nil, {4, 2}, {1, 2}, {6, 2, 1, 2}}
)

// lineChart draws curves over a number, on a logarithmic axis.
func lineChart(name, across, up string, curves []curve, logarithmic bool) Chart {
	c := Chart{Name: name, plot: newPlot(true), across: across, up: up, height: 6 * vg.Centimeter}
	c.plot.Y.Tick.Marker = ticks{logarithmic}
	left, right, least, most := math.Inf(1), 0.0, math.Inf(1), 0.0
	for i := range curves {
		v := &curves[i]
		colour := shades[len(shades)-1-i%4] // without white and the two lightest
		v.line = draw.LineStyle{Color: colour, Width: 1.2, Dashes: dashes[(i+i/4)%len(dashes)]}
		v.mark = draw.GlyphStyle{Color: colour, Radius: 2.5, Shape: marks[i%len(marks)]}
		c.legend = append(c.legend, entry{text: v.name, line: &v.line, mark: &v.mark})
		for j, value := range v.values {
			left, right, most = min(left, v.at[j]), max(right, v.at[j]), max(most, value.High)
			if value.Low > 0 {
				least = min(least, value.Low)
			}
		}
	}
	c.plot.X.Min, c.plot.X.Max = left/1.3, right*1.3
	c.plot.Y.Min, c.plot.Y.Max = 0, most*1.05
	if most <= 0 {
		c.plot.Y.Max = 1
	}
	if logarithmic {
		c.plot.Y.Scale, c.plot.Y.Min, c.plot.Y.Max = plot.LogScale{}, least/1.3, most*1.3
	}
	c.plot.Add(levels{}, lines(curves))
	return c
}

// lines implements plot.Plotter.
type lines []curve

// Plot draws the curves, each with its intervals.
func (all lines) Plot(area draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&area)
	y := func(value float64) vg.Length { return toY(min(max(value, p.Y.Min), p.Y.Max)) }
	for _, v := range all {
		var points []vg.Point
		for j, value := range v.values {
			points = append(points, vg.Point{X: toX(v.at[j]), Y: y(value.Median)})
		}
		area.StrokeLines(v.line, points)
		for j, value := range v.values {
			whisker(area, y(value.Low), y(value.High), points[j].X, 2, false, false)
			area.DrawGlyph(v.mark, points[j])
		}
	}
}

// levels is grid for the other axis.
type levels struct{}

// Plot implements plot.Plotter.
func (levels) Plot(area draw.Canvas, p *plot.Plot) {
	_, toY := p.Transforms(&area)
	for _, tick := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		if tick.Label != "" && tick.Value >= p.Y.Min && tick.Value <= p.Y.Max {
			y := toY(tick.Value)
			area.StrokeLine2(draw.LineStyle{Color: color.Gray{0xdd}, Width: 0.4}, area.Min.X, y, area.Max.X, y)
		}
	}
}
