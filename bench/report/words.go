package report

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// unknown stands where a figure could not be known.
const unknown = "–"

// rate is a number a second, short.
func rate(x float64) string {
	switch {
	case !(x >= 0) || math.IsInf(x, 0):
		return unknown
	case x >= 999_500:
		return fmt.Sprintf("%.2fM", x/1e6)
	case x >= 99_950:
		return fmt.Sprintf("%.0fk", x/1e3)
	case x >= 9_995:
		return fmt.Sprintf("%.1fk", x/1e3)
	case x >= 999.5:
		return fmt.Sprintf("%.2fk", x/1e3)
	case x >= 10:
		return fmt.Sprintf("%.0f", x)
	case x == 0:
		return "0"
	}
	return fmt.Sprintf("%.1f", x)
}

// tickRate is a rate at a mark of a scale, which is a round number.
func tickRate(x float64) string {
	switch {
	case x >= 1e9:
		return fmt.Sprintf("%.3gG", x/1e9)
	case x >= 1e6:
		return fmt.Sprintf("%.3gM", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%.3gk", x/1e3)
	}
	return fmt.Sprintf("%.3g", x)
}

// tickLatency is a latency, in microseconds, at a mark of a scale.
func tickLatency(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.3g s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.3g ms", us/1e3)
	case us >= 1:
		return fmt.Sprintf("%.3g µs", us)
	}
	return fmt.Sprintf("%.3g ns", us*1e3)
}

// latency is a duration with two or three digits.
func latency(d time.Duration) string {
	x, unit := float64(d), "ns"
	switch {
	case d < 0:
		return unknown
	case d == 0:
		return "0"
	case d >= 999_500*time.Microsecond:
		x, unit = d.Seconds(), "s"
	case d >= 999_500*time.Nanosecond:
		x, unit = x/1e6, "ms"
	case d >= 1000:
		x, unit = x/1e3, "µs"
	}
	digits := 0
	if x < 9.95 && unit != "ns" {
		digits = 1
	}
	return strconv.FormatFloat(x, 'f', digits, 64) + " " + unit
}

// ratio is how many times b is in a.
func ratio(a, b float64) string {
	q := a / b
	switch {
	case !(a > 0) || !(b > 0) || math.IsInf(q, 0):
		return unknown
	case q >= 9.95:
		return fmt.Sprintf("%.0f×", q)
	case q >= 0.0995:
		return fmt.Sprintf("%.2f×", q)
	case q >= 0.001:
		return fmt.Sprintf("%.3f×", q)
	}
	return "<0.001×"
}

// amount is a figure an operation, of whatever unit.
func amount(x float64) string {
	switch {
	case !(x >= 0) || math.IsInf(x, 0):
		return unknown
	case x == 0:
		return "0"
	case x >= 99.5:
		return fmt.Sprintf("%.0f", x)
	case x >= 9.95:
		return fmt.Sprintf("%.1f", x)
	case x >= 0.01:
		return fmt.Sprintf("%.2f", x)
	}
	return "<0.01"
}

// size is a number of bytes.
func size(n int64) string {
	switch {
	case n < 0:
		return unknown
	case n >= 1<<30:
		return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d B", n)
}

// share is a part of one, in percent.
func share(x float64) string {
	switch {
	case !(x >= 0) || x > 1:
		return unknown
	case x == 0:
		return "0 %"
	case x >= 0.1:
		return fmt.Sprintf("%.0f %%", x*100)
	}
	return fmt.Sprintf("%.2g %%", x*100)
}

// plural is a count with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
