package expiry

import (
	"slices"
	"time"
)

const (
	minShare    = 1.0 / 64 // a sweeper that stops for good never finishes
	maxPause    = 5 * time.Second
	leastPause  = 100 * time.Microsecond
	paceStep    = 1.0 / 16
	paceSamples = 9
	// fewSamples are too few to slow down for: any call can be slow once.
	fewSamples = 3
	// noise is a rise of latency that nobody acts upon.
	noise      = 2 * time.Millisecond
	probeEvery = 5 * time.Millisecond
)

// pace is how much of the time a round works: share, between minShare and 1. It is
// halved when the median of the last samples is above the bound, and grows by
// paceStep otherwise. Samples that are not positive are unknown, or come from a
// clock that was set back, and count for nothing.
type pace struct {
	share    float64
	rise     float64
	baseline time.Duration
	rests    []time.Duration
	samples  []time.Duration
	slowed   bool // by the last judgement
}

// known reports whether there is anything to compare with.
func (p *pace) known() bool { return p.baseline > 0 }

// rest takes a sample from a rest, when sweeping disturbs nobody. The baseline
// follows the median of the last ones: down at once, up by a sixteenth each, so that
// what a sweep leaves behind, such as a vacuum, is not soon taken for the store's own
// pace, while a store that has become slower by itself stops counting as disturbed.
func (p *pace) rest(d time.Duration) {
	if d <= 0 {
		return
	}
	p.rests = last(append(p.rests, d))
	m := middle(p.rests)
	if !p.known() || m < p.baseline {
		p.baseline = m
		return
	}
	p.baseline = min(m, p.baseline+p.baseline/16+1)
}

// work takes the samples of a batch.
func (p *pace) work(ds []time.Duration) {
	blind := true
	for _, d := range ds {
		if d > 0 {
			blind, p.samples = false, last(append(p.samples, d))
		}
	}
	switch few := len(p.samples) < fewSamples; {
	case few && p.slowed && !blind:
		return
	case !few && p.known():
		m := middle(p.samples)
		p.slowed = m > time.Duration(float64(p.baseline)*p.rise) && m > p.baseline+noise
		if p.slowed {
			p.share = max(p.share/2, minShare)
			p.samples = p.samples[:0] // the new pace is judged by what follows
			return
		}
	}
	p.share = min(p.share+paceStep, 1)
}

// pause is how long to wait after a batch that took so long.
func (p *pace) pause(took time.Duration) time.Duration {
	return min(time.Duration(float64(took)*(1/p.share-1)), maxPause)
}

func last(ds []time.Duration) []time.Duration { return ds[max(len(ds)-paceSamples, 0):] }

func middle(ds []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(ds))[len(ds)/2]
}
