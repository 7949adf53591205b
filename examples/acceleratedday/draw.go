package main

import (
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// draw writes backlog, size and latency of all days, one above the other.
func draw(path string, days []day) (err error) {
	panels := []struct {
		title, unit string
		log         bool
		value       func(sample) float64 // NaN: not known
	}{
		{"Records that the sweeper has to look at", "records", false, func(s sample) float64 { return orNaN(s.backlog, 1) }},
		{"Room that the store takes", "MiB", false, func(s sample) float64 { return orNaN(s.size, 1<<20) }},
		{"How long a call takes, 99th percentile", "ms", true, func(s sample) float64 { return s.p99.Seconds() * 1000 }},
	}
	plots := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		f := plot.New()
		f.Title.Text, f.Y.Label.Text, f.X.Label.Text = p.title, p.unit, "hour of the day"
		f.X.Min, f.X.Max = 0, 28 // the legend stands behind the day
		f.X.Tick.Marker = plot.ConstantTicks{{Value: 0, Label: "00"}, {Value: 6, Label: "06"}, {Value: 12, Label: "12"}, {Value: 18, Label: "18"}, {Value: 24, Label: "24"}}
		f.Y.Min = 0
		if p.log {
			f.Y.Scale, f.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
			f.Y.Min = 0.01
		}
		f.Legend.Top, f.Legend.Padding, f.Legend.ThumbnailWidth = true, vg.Points(3), vg.Points(24)
		f.Add(plotter.NewGrid())
		for n, d := range days {
			var points plotter.XYs
			for _, s := range d.samples {
				if y := p.value(s); !math.IsNaN(y) && (!p.log || y > 0) {
					points = append(points, plotter.XY{X: s.clock, Y: y})
				}
			}
			if len(points) == 0 {
				continue
			}
			line, err := plotter.NewLine(points)
			if err != nil {
				return err
			}
			line.Color, line.Dashes, line.Width = plotutil.Color(n), plotutil.Dashes(n), vg.Points(1.5)
			f.Add(line)
			f.Legend.Add(d.store, line)
		}
		plots[i] = []*plot.Plot{f}
	}
	canvas := vgsvg.New(9*vg.Inch, 10*vg.Inch)
	tiles := vgdraw.Tiles{Rows: len(panels), Cols: 1, PadY: vg.Points(14), PadTop: vg.Points(6), PadBottom: vg.Points(6), PadRight: vg.Points(10), PadLeft: vg.Points(6)}
	for i, row := range plot.Align(plots, tiles, vgdraw.New(canvas)) {
		plots[i][0].Draw(row[0])
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err = canvas.WriteTo(file); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

func orNaN(n int64, unit float64) float64 {
	if n < 0 {
		return math.NaN()
	}
	return float64(n) / unit
}
