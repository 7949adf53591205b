package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
	"unicode/utf8"
)

// canvas is an SVG drawing that knows where its texts are. Colours and fonts come from
// the classes of the page's style sheet, so that a drawing follows the reader's theme.
type canvas struct {
	b     strings.Builder
	w     float64
	texts []box
}

// box is the room of one text, estimated.
type box struct {
	x0, y0, x1, y1 float64
	text           string
}

// Sizes of text, in the units of a drawing.
const (
	em    = 13.0
	small = 11.5 // of the class small
	line  = 16.0
)

// width estimates the width of a text, from above: readers have different fonts.
func width(text, class string) float64 {
	perRune, size := 0.56, em
	if strings.Contains(class, "strong") {
		perRune = 0.61
	}
	if strings.Contains(class, "small") {
		size = small
	}
	return float64(utf8.RuneCountInString(text)) * size * perRune
}

// fit shortens a text to a width.
func fit(text string, room float64, class string) string {
	if width(text, class) <= room {
		return text
	}
	runes := []rune(text)
	for len(runes) > 1 && width(string(runes)+"…", class) > room {
		runes = runes[:len(runes)-1]
	}
	return strings.TrimRight(string(runes), " ,") + "…"
}

func n(x float64) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		x = 0
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.1f", x), "0"), ".")
}

func (c *canvas) line(x0, y0, x1, y1 float64, class string) {
	fmt.Fprintf(&c.b, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`, class, n(x0), n(y0), n(x1), n(y1))
}

func (c *canvas) rect(x, y, w, h float64, class string) {
	fmt.Fprintf(&c.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s" rx="3"/>`, class, n(x), n(y), n(max(w, 0)), n(max(h, 0)))
}

// Anchors of a text.
const (
	start  = "start"
	middle = "middle"
	end    = "end"
)

// text writes text with its baseline at y.
func (c *canvas) text(x, y float64, anchor, class, text string) {
	if text == "" {
		return
	}
	w := width(text, class)
	b := box{x, y - 0.8*em, x + w, y + 0.25*em, text}
	switch anchor {
	case middle:
		b.x0, b.x1 = x-w/2, x+w/2
	case end:
		b.x0, b.x1 = x-w, x
	}
	c.texts = append(c.texts, b)
	fmt.Fprintf(&c.b, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`, class, n(x), n(y), anchor, html.EscapeString(text))
}

// group begins a group with a name that screen readers say and mice show.
func (c *canvas) group(class, title string) {
	fmt.Fprintf(&c.b, `<g class="%s"><title>%s</title>`, class, html.EscapeString(title))
}

func (c *canvas) endGroup() { c.b.WriteString("</g>") }

// marker draws one of a few shapes that can be told apart without colour.
func (c *canvas) marker(x, y float64, shape int) {
	const r = 4.5
	switch shape % 4 {
	case 0:
		fmt.Fprintf(&c.b, `<circle class="dot" cx="%s" cy="%s" r="%s"/>`, n(x), n(y), n(r))
	case 1:
		fmt.Fprintf(&c.b, `<rect class="dot" x="%s" y="%s" width="%s" height="%s"/>`, n(x-r+.5), n(y-r+.5), n(2*r-1), n(2*r-1))
	case 2:
		fmt.Fprintf(&c.b, `<path class="dot" d="M%s %sl%s %sh%sz"/>`, n(x), n(y-r-.5), n(r+.5), n(2*r), n(-2*r-1))
	case 3:
		fmt.Fprintf(&c.b, `<path class="dot" d="M%s %sl%s %sl%s %sl%s %sz"/>`, n(x), n(y-r-1), n(r+1), n(r+1), n(-r-1), n(r+1), n(-r-1), n(-r-1))
	}
}

// cross marks what is broken.
func (c *canvas) cross(x, y float64) {
	const r = 4.5
	fmt.Fprintf(&c.b, `<path class="cross" d="M%s %sl%s %sM%s %sl%s %s"/>`, n(x-r), n(y-r), n(2*r), n(2*r), n(x-r), n(y+r), n(2*r), n(-2*r))
}

func (c *canvas) path(points [][2]float64, class string) {
	if len(points) < 2 {
		return
	}
	for i, p := range points {
		op := "L"
		if i == 0 {
			op = fmt.Sprintf(`<path class="%s" d="M`, class)
		}
		fmt.Fprintf(&c.b, "%s%s %s", op, n(p[0]), n(p[1]))
	}
	c.b.WriteString(`"/>`)
}

// svg returns the drawing, of the given height. id must be unique on the page.
func (c *canvas) svg(id, class, title, desc string, height float64) template.HTML {
	return template.HTML(fmt.Sprintf(
		`<svg class="plot %s" viewBox="0 0 %s %s" role="img" aria-labelledby="%[4]s-t %[4]s-d" xmlns="http://www.w3.org/2000/svg"><title id="%[4]s-t">%[5]s</title><desc id="%[4]s-d">%[6]s</desc>%[7]s</svg>`,
		class, n(c.w), n(height), id, html.EscapeString(title), html.EscapeString(desc), c.b.String()))
}

// logScale maps positive numbers to a stretch of a drawing.
type logScale struct{ lo, hi, from, to float64 } // lo and hi are decimal logarithms

// newLogScale covers all positive numbers of xs, to whole decades when wide is set.
func newLogScale(xs []float64, from, to float64, decades bool) logScale {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, x := range xs {
		if x > 0 && !math.IsInf(x, 0) {
			lo, hi = min(lo, math.Log10(x)), max(hi, math.Log10(x))
		}
	}
	if lo > hi {
		lo, hi = 0, 1
	}
	if decades {
		lo, hi = math.Floor(lo), math.Ceil(hi)
	} else {
		lo, hi = lo-.08, hi+.08
	}
	if hi-lo < 0.3 {
		lo, hi = lo-.15, hi+.15
	}
	return logScale{lo, hi, from, to}
}

func (s logScale) at(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 0) {
		return s.from
	}
	share := (math.Log10(x) - s.lo) / (s.hi - s.lo)
	return s.from + min(max(share, 0), 1)*(s.to-s.from)
}

// ticks are round numbers within the scale, no nearer to each other than gap; minor ones
// have no room for a label.
func (s logScale) ticks(gap float64) (major, minor []float64) {
	perDecade := math.Abs(s.to-s.from) / (s.hi - s.lo)
	var steps []float64
	switch {
	case perDecade*math.Log10(2) >= gap:
		steps = []float64{1, 2, 5}
	case perDecade*math.Log10(3) >= gap:
		steps = []float64{1, 3}
	default:
		steps = []float64{1}
	}
	every := 1
	for perDecade*float64(every) < gap {
		every++
	}
	const slack = 1e-9
	for d := int(math.Floor(s.lo)); d <= int(math.Ceil(s.hi)); d++ {
		for _, k := range steps {
			x := k * math.Pow(10, float64(d))
			if l := math.Log10(x); l < s.lo-slack || l > s.hi+slack {
				continue
			}
			if every > 1 && d%every != 0 {
				minor = append(minor, x)
				continue
			}
			major = append(major, x)
		}
	}
	return major, minor
}
