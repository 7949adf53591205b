package expiry

import (
	"slices"
	"time"
)

const (
	minShare    = 1.0 / 64 // a sweeper that stops for good never finishes
	maxPause    = 5 * time.Second
	paceStep    = 1.0 / 16
	paceSamples = 9
	// noise is a rise of latency that nobody acts upon.
	noise = 2 * time.Millisecond
)

// pace is how much of the time a round works: share, between minShare and 1. It is
// halved when the median of the last samples is above the bound, and grows by
// paceStep otherwise.
type pace struct {
	share    float64
	rise     float64
	baseline time.Duration
	samples  []time.Duration
}

// rest takes a sample from between rounds, when sweeping disturbs nobody.
func (p *pace) rest(d time.Duration) {
	if p.baseline == 0 || d < p.baseline {
		p.baseline = d
		return
	}
	p.baseline += (d - p.baseline) / 8
}

// work takes a sample from a round.
func (p *pace) work(d time.Duration) {
	if p.samples = append(p.samples, d); len(p.samples) > paceSamples {
		p.samples = p.samples[1:]
	}
	median := slices.Sorted(slices.Values(p.samples))[len(p.samples)/2]
	if median > time.Duration(float64(p.baseline)*p.rise) && median > p.baseline+noise {
		p.share = max(p.share/2, minShare)
		p.samples = p.samples[:0] // the new pace is judged by what follows
		return
	}
	p.share = min(p.share+paceStep, 1)
}

// pause is how long to wait after a batch that took so long.
func (p *pace) pause(took time.Duration) time.Duration {
	return min(time.Duration(float64(took)*(1/p.share-1)), maxPause)
}
