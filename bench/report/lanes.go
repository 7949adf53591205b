package report

import (
	"math"
	"slices"
)

// lane is one strategy in a dot plot: a name, a mark on the scale, and words beside it.
type lane struct {
	name, title   string // for little and for much room
	class         string
	right1        string
	right2        string
	short         string // instead of both, where there is little room
	about         string
	low, x, high  float64 // the mark and its range; x <= 0: there is none
	tail          float64 // the end of a thin line beyond high
	tick          float64 // a grey mark, for comparison
	crossed, mute bool
}

// band is lanes with something in common.
type band struct {
	mark, heading, class string
	lanes                []lane
}

// dotPlot draws lanes in bands over one logarithmic scale. Each lane has its own height,
// so that no two labels can meet. narrow is for telephones: the name stands above the
// mark instead of beside it.
func dotPlot(bands []band, format func(float64) string, axis string, narrow bool) (c *canvas, height float64) {
	c = &canvas{w: 1000}
	from, to := 304.0, 600.0
	laneHeight, dot := 25.0, 0.0
	if narrow {
		c.w = 380
		from, to = 14, 366
		laneHeight, dot = 42, 12
	}
	var xs []float64
	for _, b := range bands {
		for _, l := range b.lanes {
			xs = append(xs, l.low, l.x, l.high, l.tail, l.tick)
		}
	}
	scale := newLogScale(xs, from, to, true)
	bottom := 4.0
	for _, b := range bands {
		bottom += 32 + laneHeight*float64(len(b.lanes)) + 8
	}
	gap := 46.0
	major, minor := scale.ticks(gap)

	y := 4.0
	for _, b := range bands {
		h := 32 + laneHeight*float64(len(b.lanes))
		c.rect(1, y, c.w-2, h+2, "band "+b.class)
		for _, x := range slices.Concat(minor, major) {
			c.line(scale.at(x), y+28, scale.at(x), y+h+2, "grid") // below the heading
		}
		y += h + 8
	}
	y = 4
	for _, b := range bands {
		heading := b.heading
		if b.mark != "" {
			heading = b.mark + "  " + heading
		}
		c.text(12, y+20, start, "strong "+b.class, fit(heading, c.w-24, "strong"))
		y += 32
		for _, l := range b.lanes {
			c.lane(l, scale, y, laneHeight, dot, narrow)
			y += laneHeight
		}
		y += 8
	}
	lastEnd := math.Inf(-1)
	for _, x := range major {
		at, half := scale.at(x), width(format(x), "small")/2
		at = min(max(at, half+2), c.w-half-2)
		if at-half > lastEnd+4 {
			c.text(at, bottom+10, middle, "small", format(x))
			lastEnd = at + half
		}
	}
	c.text((from+to)/2, bottom+29, middle, "small", axis)
	return c, bottom + 38
}

func (c *canvas) lane(l lane, scale logScale, y, height, dot float64, narrow bool) {
	class := "lane " + l.class
	if l.mute {
		class += " faded"
	}
	if l.crossed {
		class += " crossed"
	}
	c.group(class, l.about)
	defer c.endGroup()
	base := y + 16
	mid := y + height/2 - 1
	if narrow {
		mid = y + height/2 + dot
		room := c.w - 24 - width(l.short, "small") - 10
		c.text(12, base, start, "strong label", fit(l.name, room, "strong"))
		c.text(c.w-12, base, end, "small value", l.short)
	} else {
		label := "label"
		if l.class == "f-"+familyNaive { // seen at once
			label = "strong label"
		}
		title := l.title
		if width(title, label) > scale.from-26 { // cut off, two could look alike
			title = l.name
		}
		c.text(scale.from-14, base, end, label, fit(title, scale.from-26, label))
		c.text(scale.to+14, base, start, "small value", fit(l.right1, 156, "small"))
		c.text(c.w-12, base, end, "small result", fit(l.right2, 212, "small"))
	}
	c.line(scale.from, mid, scale.to, mid, "rail")
	if l.tick > 0 {
		c.line(scale.at(l.tick), mid-7, scale.at(l.tick), mid+7, "floor")
	}
	if !(l.x > 0) {
		return
	}
	if l.tail > 0 {
		c.line(scale.at(l.high), mid, scale.at(l.tail), mid, "tail")
		c.line(scale.at(l.tail), mid-4, scale.at(l.tail), mid+4, "tail")
	}
	if l.low > 0 && l.high > 0 {
		c.line(scale.at(l.low), mid, scale.at(l.high), mid, "range")
	}
	if l.crossed {
		c.cross(scale.at(l.x), mid)
	} else {
		c.marker(scale.at(l.x), mid, 0)
	}
}
