package backendtest

import (
	"runtime"
	"testing"
	"time"
)

// tries is how often a check is played on a machine that keeps holding it up.
const tries = 3

// try is one run of a check. A store whose clock runs by itself makes the suite
// depend on the machine: where that stands still for a second between two steps,
// a window of a second is over and a right store looks wrong. A check that found
// a fault after such a hold-up has found nothing, so it is played again on a
// fresh store. A wrong store fails every time.
type try struct {
	last  bool          // what it finds stands
	began time.Time     // by the machine's clock
	let   time.Duration // how long the check itself let pass
	void  string        // what it found after a hold-up; empty when it counts
}

// late returns how much longer the try has taken than it let pass.
func (p *try) late() time.Duration { return wallClock().Sub(p.began) - p.let }

// heldUp reports whether windows and leases may have run out that the check did
// not let run out: none that it relies on is shorter than a unit. A check that
// has let no time pass works with those that do not run out.
func (k *kit) heldUp() bool {
	return k.h.MaxAdvance > 0 && k.try.let > 0 && k.try.late() >= k.unit
}

// play runs a check on h until what it finds counts, each time on a fresh store.
func play[H any](t *testing.T, h H, really bool, fresh func(t testing.TB) H, run func(h H, p *try)) {
	if !really {
		run(h, &try{last: true})
		return
	}
	for n := 1; ; n++ {
		p := &try{last: n == tries, began: wallClock()}
		ended := make(chan struct{})
		// A void try ends where a failure would, by ending its goroutine.
		go func() {
			defer close(ended)
			run(h, p)
		}()
		<-ended
		if p.void == "" {
			return
		}
		t.Logf("HELD UP for %v, so this counts for nothing and is played again: %s", p.late().Round(time.Millisecond), p.void)
		h = fresh(t)
	}
}

// giveUp ends a try that was held up. The parent of a nested part ends after it.
func (k *kit) giveUp(found string) {
	k.try.void = found
	if k.nested {
		k.t.SkipNow()
	}
	runtime.Goexit()
}
