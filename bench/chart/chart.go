// SPDX-License-Identifier: Apache-2.0

// Package chart draws the results of the benchmark for a paper: as SVG and PNG, legible in grey. The same
// results give the same bytes.
package chart

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"beeline.io/beeline/bench/result"
)

// A Chart is one picture.
type Chart struct {
	Name   string // of the file, without its ending
	plot   *plot.Plot
	bars   *bars
	legend []entry // above the plot
	across string  // the title of the horizontal axis
	up     string  // the title of the vertical axis, above it
	height vg.Length
}

// An entry of a legend is a box filled with a colour, or the style of a line.
type entry struct {
	text string
	fill color.Color
	line *draw.LineStyle
	mark *draw.GlyphStyle
}

// Title says what the axis with the figures shows.
func (c Chart) Title() string {
	if c.up != "" {
		return c.up
	}
	return c.across
}

const (
	width       = 16 * vg.Centimeter // of a page's text
	fontSize    = 8 * vg.Length(1)   // points
	legendLine  = 12 * vg.Length(1)
	legendSpace = 6 * vg.Length(1)
	titleLine   = 14 * vg.Length(1)
	pixels      = 200 // in an inch
)

// All are the charts of a file. Whiskers are the 95 % intervals of the medians.
func All(results *result.File) (all []Chart) {
	for _, charts := range []func(*result.File) []Chart{edgeCharts, socketCharts, balancerCharts, meshCharts, ratesCharts, instructionCharts, controlCharts} {
		all = append(all, charts(results)...)
	}
	return all
}

// Write draws charts into a folder, which it creates, and returns the files' names. kinds are "svg" and "png".
func Write(folder string, charts []Chart, kinds ...string) (files []string, err error) {
	if len(charts) == 0 {
		return nil, errors.New("the results have no part with charts")
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	for _, c := range charts {
		for _, kind := range kinds {
			picture, err := c.draw(kind)
			if err != nil {
				return files, fmt.Errorf("chart %s: %w", c.Name, err)
			}
			path := filepath.Join(folder, c.Name+"."+kind)
			if err := os.WriteFile(path, picture, 0o644); err != nil {
				return files, err
			}
			files = append(files, path)
		}
	}
	return files, nil
}

func (c Chart) draw(kind string) ([]byte, error) {
	var canvas vg.CanvasWriterTo
	rows := c.legendRows()
	above := legendLine*vg.Length(len(rows)) + legendSpace
	if c.up != "" {
		above += titleLine
	}
	height := c.height + above + titleLine
	switch kind {
	case "svg":
		canvas = vgsvg.New(width, height)
	case "png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(pixels), vgimg.UseBackgroundColor(color.White))}
	default:
		return nil, fmt.Errorf("%q is no kind of picture: svg or png", kind)
	}
	area := draw.New(canvas)
	// Otherwise a dark page would show black on black.
	area.FillPolygon(color.White, []vg.Point{area.Min, {X: area.Max.X, Y: area.Min.Y}, area.Max, {X: area.Min.X, Y: area.Max.Y}})
	c.drawLegend(area, rows)
	inner := draw.Crop(area, besides, -3*besides, titleLine, -above)
	c.plot.Draw(inner)
	// The library would place titles in the plot as if its axes were linear.
	data, title := c.plot.DataCanvas(inner), style()
	title.Font.Size = fontSize + 1
	area.FillText(title, vg.Point{X: area.Min.X + besides, Y: inner.Max.Y + titleLine/2}, c.up)
	title.XAlign = draw.XCenter
	area.FillText(title, vg.Point{X: (data.Min.X + data.Max.X) / 2, Y: area.Min.Y + titleLine/2}, c.across)
	var b bytes.Buffer
	_, err := canvas.WriteTo(&b)
	// Not everybody has the font; these are about as wide.
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")), err
}

var black = color.Black

func style() text.Style {
	return text.Style{Color: black, Font: font.From(sans, fontSize), XAlign: draw.XLeft, YAlign: draw.YCenter, Handler: plot.DefaultTextHandler}
}

var sans = font.Font{Typeface: "Liberation", Variant: "Sans"}

const (
	swatch   = 14 * vg.Length(1)
	besides  = 4 * vg.Length(1)
	together = 14 * vg.Length(1)
)

// legendRows breaks the legend into lines.
func (c Chart) legendRows() (rows [][]entry) {
	used := vg.Length(0)
	for _, e := range c.legend {
		wide := swatch + besides + style().Width(e.text) + together
		if len(rows) == 0 || used+wide > width {
			rows, used = append(rows, nil), 0
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], e)
		used += wide
	}
	return rows
}

func (c Chart) drawLegend(area draw.Canvas, rows [][]entry) {
	y := area.Max.Y - legendLine/2 - 1
	for _, row := range rows {
		x := area.Min.X + besides
		for _, e := range row {
			e.draw(area, x, y)
			area.FillText(style(), vg.Point{X: x + swatch + besides, Y: y}, e.text)
			x += swatch + besides + style().Width(e.text) + together
		}
		y -= legendLine
	}
}

func (e entry) draw(area draw.Canvas, x, y vg.Length) {
	if e.fill != nil {
		drawBox(area, vg.Rectangle{Min: vg.Point{X: x, Y: y - 3}, Max: vg.Point{X: x + swatch, Y: y + 3}}, e.fill)
	}
	if e.line != nil {
		area.StrokeLine2(*e.line, x, y, x+swatch, y)
	}
	if e.mark != nil {
		area.DrawGlyph(*e.mark, vg.Point{X: x + swatch/2, Y: y})
	}
}

var thin = draw.LineStyle{Color: black, Width: 0.5}

// drawBox fills a box and draws its edge, so that white ones are visible, too.
func drawBox(area draw.Canvas, r vg.Rectangle, fill color.Color) {
	corners := []vg.Point{r.Min, {X: r.Max.X, Y: r.Min.Y}, r.Max, {X: r.Min.X, Y: r.Max.Y}}
	area.FillPolygon(fill, corners)
	area.StrokeLines(thin, append(slices.Clone(corners), r.Min))
}

// shades are from light to dark, as the eye and a grey printer see them.
var shades = []color.Color{
	color.White,
	color.RGBA{0xd3, 0xe3, 0xf1, 0xff}, color.RGBA{0x93, 0xbf, 0xdd, 0xff}, color.RGBA{0x47, 0x8f, 0xc3, 0xff},
	color.RGBA{0x1c, 0x5b, 0x97, 0xff}, color.RGBA{0x08, 0x2a, 0x57, 0xff}, color.Black,
}

// shadesOf returns so many shades that differ as much as possible, without white.
func shadesOf(n int) (some []color.Color) {
	colours := shades[1 : len(shades)-1]
	for i := range n {
		at := 0
		if n > 1 {
			at = i * (len(colours) - 1) / (n - 1)
		} else {
			at = 2
		}
		some = append(some, colours[at])
	}
	return some
}

// newPlot is an empty plot in the common style.
func newPlot(logarithmic bool) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Tick.Label.Font = font.From(sans, fontSize)
		a.LineStyle.Width, a.Tick.LineStyle.Width = 0.5, 0.5
		a.Padding = 0
	}
	p.X.Tick.Marker = ticks{logarithmic}
	if logarithmic {
		p.X.Scale = plot.LogScale{}
	}
	return p
}
