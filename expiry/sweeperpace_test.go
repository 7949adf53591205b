package expiry

import (
	"testing"
	"time"
)

const ms = time.Millisecond

func samples(d time.Duration, n int) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = d
	}
	return all
}

func TestPace(t *testing.T) {
	t.Parallel()
	slow := func(p *pace, n int) {
		for range n {
			p.work(samples(30*ms, 3))
		}
	}
	for name, c := range map[string]struct {
		do   func(*pace)
		want func(*pace) bool
	}{
		"one slow call slows nothing down":      {func(p *pace) { p.work(samples(time.Minute, 1)) }, func(p *pace) bool { return p.share > 0.5 }},
		"a rise halves it":                      {func(p *pace) { slow(p, 1) }, func(p *pace) bool { return p.share == 0.25 }},
		"it does not stop":                      {func(p *pace) { slow(p, 100) }, func(p *pace) bool { return p.share == minShare }},
		"it recovers":                           {func(p *pace) { slow(p, 100); recovered(p) }, func(p *pace) bool { return p.share == 1 }},
		"work moves no baseline":                {func(p *pace) { slow(p, 1000) }, func(p *pace) bool { return p.baseline == 10*ms }},
		"down at once":                          {func(p *pace) { rest(p, 4*ms, 9) }, func(p *pace) bool { return p.baseline == 4*ms }},
		"one fast call is no baseline":          {func(p *pace) { rest(p, ms, 1) }, func(p *pace) bool { return p.baseline == 10*ms }},
		"up slowly":                             {func(p *pace) { rest(p, time.Hour, 5) }, func(p *pace) bool { return p.baseline < 12*ms }},
		"up in the end":                         {func(p *pace) { rest(p, 20*ms, 30) }, func(p *pace) bool { return p.baseline == 20*ms }},
		"unknown latency and a clock set back":  {func(p *pace) { rest(p, -time.Hour, 50); rest(p, 0, 50); p.work(samples(-time.Hour, 9)) }, func(p *pace) bool { return p.baseline == 10*ms && len(p.samples) == 0 }},
		"a clock set forward while a call runs": {func(p *pace) { p.work([]time.Duration{11 * ms, 2 * time.Hour, 11 * ms}) }, func(p *pace) bool { return p.share > 0.5 }},
		"two milliseconds more are noise":       {func(p *pace) { rest(p, ms/10, 9); p.work(samples(2*ms, 9)) }, func(p *pace) bool { return p.share > 0.5 }},
		"nothing to compare with":               {func(p *pace) { p.baseline = 0; slow(p, 3) }, func(p *pace) bool { return p.share > 0.5 }},
	} {
		p := &pace{share: 0.5, rise: 1.5}
		rest(p, 10*ms, 9)
		if c.do(p); !c.want(p) {
			t.Errorf("%s: share %v, baseline %v", name, p.share, p.baseline)
		}
	}
	p := &pace{share: minShare}
	if got := p.pause(10 * ms); got != 630*ms {
		t.Errorf("a batch of 10ms at 1/64 of the time is followed by %v", got)
	}
	if got := p.pause(time.Minute); got != maxPause {
		t.Errorf("a batch of a minute is followed by %v", got)
	}
}

func rest(p *pace, d time.Duration, n int) {
	for range n {
		p.rest(d)
	}
}

func recovered(p *pace) {
	for range 20 {
		p.work(samples(11*ms, 3))
	}
}
