package combine

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fate is what the model saw of one call.
type fate struct {
	runs     int // how often run was given it
	out      int
	err      error
	returned bool // by Do, with out and err
	broken   bool // Do panicked or left by Goexit
	done     bool
}

// world is a random schedule of callers over a server that is slow, breaks and forgets,
// in a bubble where time is exact.
type world struct {
	t    *testing.T
	c    *Combiner[int, int]
	rand *rand.Rand

	mu      sync.Mutex
	fates   []fate
	arrived []int // the order in which calls entered Do; each at an instant of its own
	running int   // runs under way
	inside  int
}

// FuzzSchedule checks on random schedules that every call is given to run exactly once,
// or never if Do says so; that no stream is used twice or lost; that nobody is queued
// while a stream is free; that batches keep the order of arrival and their bounds; and
// that every caller is answered with its own answer.
func FuzzSchedule(f *testing.F) {
	seeds := 60
	if n, err := strconv.Atoi(os.Getenv("IDEM_COMBINE_SEEDS")); err == nil {
		seeds = n
	}
	for seed := range seeds {
		f.Add(uint64(seed))
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
	})
}

func simulate(t *testing.T, seed uint64) {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 1))}
	o := Options[int]{Streams: 1 + w.rand.IntN(4), Max: 1 + w.rand.IntN(6)}
	if w.rand.IntN(2) == 0 {
		o.Crowd, o.CrowdStreams = 1+w.rand.IntN(8), 1+w.rand.IntN(3)
	}
	if w.rand.IntN(2) == 0 {
		o.Weigh, o.MaxWeight = func(in int) int { return in % 5 }, w.rand.IntN(12)
	}
	if w.rand.IntN(2) == 0 {
		o.WaitShare = 0.125
	}
	w.c = New(o, w.run)

	callers, rounds := 1+w.rand.IntN(12), 1+w.rand.IntN(20)
	w.fates = make([]fate, callers*rounds)
	leave, pause := w.rand.IntN(3) == 0, 1+w.rand.IntN(2000)
	for caller := range callers {
		plan := rand.New(rand.NewPCG(seed, uint64(caller)+2))
		go func() {
			for round := range rounds {
				// Callers arrive at instants of their own: odd in the lowest digits.
				step := time.Duration(plan.IntN(pause))*time.Microsecond + time.Duration(caller+1)*time.Nanosecond
				time.Sleep(step)
				ctx, cancel := context.WithCancel(t.Context())
				if leave && plan.IntN(3) > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(plan.IntN(1500))*time.Microsecond)
				}
				w.call(ctx, caller*rounds+round)
				cancel()
			}
		}()
	}
	looks := rand.New(rand.NewPCG(seed, 0))
	for !w.settled() {
		time.Sleep(time.Duration(1+looks.IntN(300)) * time.Microsecond)
		synctest.Wait()
		w.invariant()
	}
	wantIdle(t, w.c)
	w.verdict()
	if t.Failed() {
		t.Logf("seed %d, options %+v, %d callers, %d rounds", seed, o, callers, rounds)
	}
}

// call is one Do, on a goroutine that a panic or Goexit may end.
func (w *world) call(ctx context.Context, id int) {
	ended := make(chan struct{})
	go func() {
		f := fate{broken: true}
		defer func() {
			_ = recover()
			w.mu.Lock()
			w.inside--
			f.runs, f.done = w.fates[id].runs, true
			w.fates[id] = f
			w.mu.Unlock()
			close(ended)
		}()
		w.mu.Lock()
		w.inside++
		w.arrived = append(w.arrived, id)
		w.mu.Unlock()
		f.out, f.err = w.c.Do(ctx, id)
		f.broken, f.returned = false, true
	}()
	<-ended
}

func (w *world) run(ctx context.Context, items []*Item[int, int]) {
	w.mu.Lock()
	w.running++
	if limit := w.c.o.Streams; w.running > limit {
		w.t.Errorf("%d runs at once, want at most %d", w.running, limit)
	}
	if len(items) == 0 || len(items) > w.c.o.Max {
		w.t.Errorf("a batch of %d, want 1 to %d", len(items), w.c.o.Max)
	}
	weight, place := 0, -1
	for _, it := range items {
		w.fates[it.In].runs++
		weight += it.In % 5
		if next := slices.Index(w.arrived, it.In); next < place {
			w.t.Errorf("call %d is behind one that came after it", it.In)
		} else {
			place = next
		}
	}
	if w.c.o.Weigh != nil && len(items) > 1 && weight > w.c.o.MaxWeight {
		w.t.Errorf("a batch of %d weighs %d, want at most %d", len(items), weight, w.c.o.MaxWeight)
	}
	took, how := time.Duration(w.rand.IntN(800))*time.Microsecond, w.rand.IntN(40)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.running--
		w.mu.Unlock()
	}()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		if len(items) > 1 {
			time.Sleep(time.Nanosecond) // in the bubble: until everybody else is blocked
			w.mu.Lock()
			for _, it := range items {
				if f := w.fates[it.In]; !f.done {
					w.t.Errorf("the batch was stopped while call %d waits for it", it.In)
				}
			}
			w.mu.Unlock()
		}
	}
	for _, it := range items {
		if how == 2 && it.In%2 == 0 {
			continue
		}
		it.Answer(3*it.In, nil)
	}
	switch how {
	case 0:
		panic("the server's driver is broken")
	case 1:
		runtime.Goexit()
	}
}

func (w *world) settled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.fates, func(f fate) bool { return !f.done }) && w.running == 0
}

// invariant holds whenever every goroutine is blocked: a leader that gathers never is.
func (w *world) invariant() {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	length := 0
	for it := c.queue.head; it != nil; it = it.next {
		length++
	}
	if c.running != w.running || c.inside != w.inside || int(c.length.Load()) != length || c.leaders != 0 {
		w.t.Errorf("counted %d streams, %d callers, %d queued, %d leaders; there are %d, %d, %d, 0",
			c.running, c.inside, c.length.Load(), c.leaders, w.running, w.inside, length)
	}
	if length > 0 && c.running < c.streams() {
		w.t.Errorf("%d are queued and only %d of %d streams in use", length, c.running, c.streams())
	}
}

// verdict compares what Do said with what was done.
func (w *world) verdict() {
	for id, f := range w.fates {
		var e *Error
		switch {
		case f.broken, f.returned && f.err == nil && f.out == 3*id:
			if f.runs != 1 {
				w.t.Errorf("call %d ran %d times, want once", id, f.runs)
			}
		case errors.As(f.err, &e) && e.Sent == (f.runs == 1) && f.runs <= 1:
		default:
			w.t.Errorf("call %d ran %d times, and Do returned %d, %v", id, f.runs, f.out, f.err)
		}
	}
}

// TestStress runs on the real scheduler, for the race detector and for hand-overs that
// only happen in parallel.
func TestStress(t *testing.T) {
	for _, o := range []Options[int]{
		{Streams: 1, WaitShare: 0.125},
		{Streams: 8, Crowd: 16, CrowdStreams: 2, WaitShare: 0.125},
		{Streams: 3, Max: 5},
	} {
		var mu sync.Mutex
		runs := map[int]int{}
		running := 0
		c := New(o, func(ctx context.Context, items []*Item[int, int]) {
			mu.Lock()
			if running++; running > o.Streams {
				t.Errorf("%d runs at once, want at most %d", running, o.Streams)
			}
			for _, it := range items {
				runs[it.In]++
			}
			mu.Unlock()
			for range len(items) % 7 {
				runtime.Gosched()
			}
			for _, it := range items {
				it.Answer(3*it.In, nil)
			}
			mu.Lock()
			running--
			mu.Unlock()
		})
		var wg sync.WaitGroup
		const callers, rounds = 40, 400
		fates := make([]fate, callers*rounds)
		for caller := range callers {
			wg.Go(func() {
				for round := range rounds {
					id := caller*rounds + round
					ctx, cancel := context.WithCancel(t.Context())
					if id%3 == 0 {
						go cancel()
					}
					fates[id].out, fates[id].err = c.Do(ctx, id)
					cancel()
				}
			})
		}
		wg.Wait()
		deadline := time.Now().Add(time.Minute)
		for busy := true; busy && time.Now().Before(deadline); runtime.Gosched() {
			c.mu.Lock()
			busy = c.running > 0
			c.mu.Unlock()
		}
		wantIdle(t, c)
		for id, f := range fates {
			e := &Error{}
			ok := f.err == nil && f.out == 3*id && runs[id] == 1
			if errors.As(f.err, &e) {
				ok = id%3 == 0 && errors.Is(e, context.Canceled) && e.Sent == (runs[id] == 1) && runs[id] <= 1
			}
			if !ok {
				t.Errorf("call %d ran %d times, and Do returned %d, %v", id, runs[id], f.out, f.err)
			}
		}
	}
}
