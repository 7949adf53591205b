package report

import (
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"
)

// panel is the plot of throughput against callers for the strategies of one place.
type panel struct {
	Title string
	Plot  template.HTML
}

type curve struct {
	w      *row
	shape  int
	points [][2]float64 // in data: callers and throughput
}

// label is the class of the curve's name: what is naive is seen at once.
func (cu curve) label() string {
	if cu.w.Family == familyNaive {
		return "strong label"
	}
	return "label"
}

// callersPanels draws throughput against callers, a plot for each place: two dozen lines
// in one plot could not be told apart.
func (v *view) callersPanels() []panel {
	callers := v.curveCallers()
	if len(callers) == 0 {
		return nil
	}
	var panels []panel
	for i, place := range v.places() {
		var curves []curve
		shapes := make(map[string]int)
		for _, w := range v.rows {
			if w.place() != place {
				continue
			}
			cu := curve{w: w, shape: shapes[w.Family]}
			for _, n := range callers {
				if x := w.throughput(point{v.curve, n, 0}); x > 0 {
					cu.points = append(cu.points, [2]float64{float64(n), x})
				}
			}
			if len(cu.points) > 0 {
				curves = append(curves, cu)
				shapes[w.Family]++
			}
		}
		if len(curves) == 0 {
			continue
		}
		c, height := callersPlot(curves, callers)
		var desc strings.Builder
		fmt.Fprintf(&desc, "Operations a second at %s callers. ", joinInts(callers))
		for _, cu := range curves {
			fmt.Fprintf(&desc, "%s:", cu.w.Title)
			for _, p := range cu.points {
				fmt.Fprintf(&desc, " %s", rate(p[1]))
			}
			desc.WriteString(". ")
		}
		panels = append(panels, panel{place, c.svg("callers-"+strconv.Itoa(i), "panel", "Throughput against callers: "+place, desc.String(), height)})
	}
	return panels
}

func joinInts(ns []int) string {
	words := make([]string, len(ns))
	for i, n := range ns {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ", ")
}

func callersPlot(curves []curve, callers []int) (*canvas, float64) {
	c := &canvas{w: 430}
	const left, top = 46.0, 12.0
	names := 0.0
	for _, cu := range curves {
		names = max(names, width(cu.w.Name, cu.label()))
	}
	names = min(names, 150)
	right := c.w - names - 30
	height := max(240, float64(len(curves))*line+30)
	bottom := top + height
	var xs, ys []float64
	for _, n := range callers {
		xs = append(xs, float64(n))
	}
	for _, cu := range curves {
		for _, p := range cu.points {
			ys = append(ys, p[1])
		}
	}
	x := newLogScale(xs, left+8, right-6, false)
	y := newLogScale(ys, bottom, top, false)
	major, _ := y.ticks(26)
	for _, t := range major {
		c.line(left, y.at(t), right, y.at(t), "grid")
		c.text(left-6, y.at(t)+4.5, end, "small", tickRate(t))
	}
	lastEnd := 0.0
	for _, n := range callers {
		at := x.at(float64(n))
		c.line(at, top, at, bottom, "grid")
		if label := strconv.Itoa(n); at-width(label, "small")/2 > lastEnd+4 {
			c.text(at, bottom+17, middle, "small", label)
			lastEnd = at + width(label, "small")/2
		}
	}
	c.line(left, bottom, right, bottom, "axis")
	c.text((left+right)/2, bottom+35, middle, "small", "callers (log)")

	// Labels stand at the ends of their lines, moved apart where lines end close together.
	wish := make([]float64, len(curves))
	for i, cu := range curves {
		wish[i] = y.at(cu.points[len(cu.points)-1][1])
	}
	at := spread(wish, line, top+6, bottom-2)
	for i, cu := range curves {
		var about strings.Builder
		about.WriteString(cu.w.Title)
		for _, p := range cu.points {
			fmt.Fprintf(&about, "; %s callers: %s/s", n(p[0]), rate(p[1]))
		}
		c.group("lane "+cu.w.class()+" d"+strconv.Itoa(cu.shape%4), about.String())
		var path [][2]float64
		for _, p := range cu.points {
			path = append(path, [2]float64{x.at(p[0]), y.at(p[1])})
		}
		c.path(path, "curve")
		last := path[len(path)-1]
		c.path([][2]float64{{last[0] + 6, last[1]}, {right + 2, at[i]}, {right + 10, at[i]}}, "leader")
		for _, p := range path {
			c.marker(p[0], p[1], cu.shape)
		}
		c.text(right+14, at[i]+4.5, start, cu.label(), fit(cu.w.Name, c.w-right-14, cu.label()))
		c.endGroup()
	}
	return c, bottom + 44
}

// spread moves the wishes apart to at least gap, each as little as needed, within lo and
// hi where there is room. The order stays.
func spread(wish []float64, gap, lo, hi float64) []float64 {
	order := make([]int, len(wish))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case wish[a] < wish[b]:
			return -1
		case wish[a] > wish[b]:
			return 1
		}
		return 0
	})
	// Clusters of labels that touch are centred on the mean of their wishes.
	type cluster struct{ sum, n, first float64 }
	var clusters []cluster
	place := func(k cluster) float64 {
		first := k.sum/k.n - gap*(k.n-1)/2
		return max(min(first, hi-gap*(k.n-1)), lo)
	}
	for _, i := range order {
		k := cluster{sum: wish[i], n: 1}
		k.first = place(k)
		for len(clusters) > 0 {
			prev := clusters[len(clusters)-1]
			if prev.first+gap*prev.n <= k.first {
				break
			}
			k = cluster{sum: prev.sum + k.sum, n: prev.n + k.n}
			k.first = place(k)
			clusters = clusters[:len(clusters)-1]
		}
		clusters = append(clusters, k)
	}
	at := make([]float64, len(wish))
	next := 0
	for _, k := range clusters {
		for j := range int(k.n) {
			at[order[next]] = k.first + gap*float64(j)
			next++
		}
	}
	return at
}
