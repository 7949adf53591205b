package combine

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// server is a run function that takes as long as each batch is told to.
type server struct {
	took time.Duration

	mu      sync.Mutex // runs overlap; tests read when all are blocked
	batches [][]int
	ctxs    []context.Context
}

func (s *server) run(ctx context.Context, items []*Item[int, int]) {
	var ins []int
	for _, it := range items {
		ins = append(ins, it.In)
		it.Answer(10*it.In, nil)
	}
	s.mu.Lock()
	s.batches = append(s.batches, ins)
	s.ctxs = append(s.ctxs, ctx)
	s.mu.Unlock()
	time.Sleep(s.took)
}

// sent lists the batches so far.
func (s *server) sent() [][]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.batches)
}

// context is the one that a batch was run under.
func (s *server) context(batch int) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctxs[batch]
}

// call is a Do on a goroutine of its own.
type call struct {
	out  int
	err  error
	done bool
	at   time.Duration // when it returned, since the start of the call
}

func start(ctx context.Context, c *Combiner[int, int], in int) *call {
	r := &call{}
	go func() {
		began := time.Now()
		defer func() { r.at, r.done = time.Since(began), true }()
		r.out, r.err = c.Do(ctx, in)
	}()
	synctest.Wait()
	return r
}

func (r *call) want(t *testing.T, out int) {
	t.Helper()
	if !r.done || r.out != out || r.err != nil {
		t.Errorf("Do: done %v, answer %d, error %v; want %d", r.done, r.out, r.err, out)
	}
}

func (r *call) wantError(t *testing.T, sent bool, cause error) {
	t.Helper()
	var e *Error
	if !r.done || !errors.As(r.err, &e) || e.Sent != sent || !errors.Is(r.err, cause) {
		t.Errorf("Do: done %v, error %v; want Sent %v and %v", r.done, r.err, sent, cause)
	}
}

// streamsInUse reads what it says.
func streamsInUse(c *Combiner[int, int]) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running
}

func wantBatches(t *testing.T, s *server, want ...[]int) {
	t.Helper()
	if !slices.EqualFunc(s.sent(), want, slices.Equal[[]int]) {
		t.Errorf("batches %v, want %v", s.sent(), want)
	}
}

// wantIdle checks that nothing is left behind: no stream, no caller, no queue.
func wantIdle(t *testing.T, c *Combiner[int, int]) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != 0 || c.leaders != 0 || c.inside != 0 || c.queue.head != nil || c.queue.tail != nil || c.length.Load() != 0 {
		t.Errorf("left behind: running %d, leaders %d, inside %d, length %d", c.running, c.leaders, c.inside, c.length.Load())
	}
}

func TestDirectAndQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Second}
		c := New(Options[int]{Streams: 2, Max: 3}, s.run)
		var calls []*call
		for i := range 8 {
			calls = append(calls, start(t.Context(), c, i))
		}
		wantBatches(t, s, []int{0}, []int{1})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantBatches(t, s, []int{0}, []int{1}, []int{2, 3, 4}, []int{5, 6, 7})
		for i, r := range calls {
			r.want(t, 10*i)
			if want := map[bool]time.Duration{true: time.Second, false: 2 * time.Second}[i < 2]; r.at != want {
				t.Errorf("call %d returned after %v, want %v", i, r.at, want)
			}
		}
		wantIdle(t, c)
	})
}

func TestDirectKeepsContextAndGoroutine(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, 1))
	defer cancel()
	var got context.Context
	c := New(Options[int]{}, func(ctx context.Context, items []*Item[int, int]) {
		got = ctx
		items[0].Answer(0, errors.ErrUnsupported)
	})
	if _, err := c.Do(ctx, 1); err != errors.ErrUnsupported {
		t.Errorf("error %v, want the one of run, unchanged", err)
	}
	if got != ctx {
		t.Error("run was given another context than the caller's")
	}
	cancel()
	_, err := c.Do(ctx, 1)
	(&call{err: err, done: true}).wantError(t, false, context.Canceled)
	wantIdle(t, c)
}

func TestWeight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Second}
		c := New(Options[int]{Weigh: func(in int) int { return in }, MaxWeight: 10}, s.run)
		for _, in := range []int{1, 5, 5, 1, 99, 9} {
			start(t.Context(), c, in)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		wantBatches(t, s, []int{1}, []int{5, 5}, []int{1}, []int{99}, []int{9})
		wantIdle(t, c)
	})
}

func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Second}
		c := New(Options[int]{Streams: 4, Crowd: 5, CrowdStreams: 1}, s.run)
		for i := range 9 {
			start(t.Context(), c, i)
		}
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		// Four went direct. With nine inside, three of their streams were given up.
		wantBatches(t, s, []int{0}, []int{1}, []int{2}, []int{3}, []int{4, 5, 6, 7, 8})
		if n := streamsInUse(c); n != 1 {
			t.Errorf("%d streams in use, want 1", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		wantIdle(t, c)
		// Five were released a moment ago: still a crowd, while they come back.
		start(t.Context(), c, 9)
		start(t.Context(), c, 10)
		if len(s.sent()) != 6 {
			t.Errorf("%d batches under way or done, want 6: the house only looks empty", len(s.sent()))
		}
		c.mu.Lock()
		if c.away != 3 {
			t.Errorf("%d of 5 are away after 2 came back, want 3", c.away)
		}
		c.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		wantIdle(t, c)
	})
}

// TestCrowdLeaves has callers leave a crowd: the queue may now use more streams.
func TestCrowdLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Minute}
		c := New(Options[int]{Streams: 2, Crowd: 4, CrowdStreams: 1}, s.run)
		ctx, cancel := context.WithCancel(t.Context())
		start(t.Context(), c, 0)
		c.mu.Lock()
		c.away = 4 // so that the others queue
		c.mu.Unlock()
		waits := start(t.Context(), c, 1)
		start(ctx, c, 2)
		wantBatches(t, s, []int{0})
		c.mu.Lock()
		c.away = 1
		c.mu.Unlock()
		cancel()
		synctest.Wait()
		wantBatches(t, s, []int{0}, []int{1})
		time.Sleep(time.Minute)
		synctest.Wait()
		waits.want(t, 10)
		wantIdle(t, c)
	})
}

// TestCrowdLeavesBatch is the same for callers who leave a batch.
func TestCrowdLeavesBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Minute}
		c := New(Options[int]{Streams: 2, Crowd: 4, CrowdStreams: 1}, s.run)
		c.away = 10
		start(t.Context(), c, 0)
		ctx, cancel := context.WithCancel(t.Context())
		start(ctx, c, 1)
		start(t.Context(), c, 2)
		start(t.Context(), c, 3)
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		c.mu.Lock()
		c.away = 0
		c.mu.Unlock()
		start(t.Context(), c, 4)
		wantBatches(t, s, []int{0}, []int{1, 2, 3})
		cancel()
		synctest.Wait()
		wantBatches(t, s, []int{0}, []int{1, 2, 3}, []int{4})
		time.Sleep(time.Hour)
		synctest.Wait()
		wantIdle(t, c)
	})
}

// TestCrowdGathers has a crowd arrive while two batches are under way: one of the two
// gives up its stream.
func TestCrowdGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Second}
		c := New(Options[int]{Streams: 2, Max: 2, Crowd: 6, CrowdStreams: 1}, s.run)
		for i := range 5 {
			start(t.Context(), c, i)
		}
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		for i := range 5 {
			start(t.Context(), c, 5+i)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := streamsInUse(c); n != 1 || len(s.sent()) != 5 {
			t.Errorf("%d streams in use, batches %v; want 1 stream", n, s.sent())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		wantIdle(t, c)
	})
}

// TestOneLeader holds a leader back between its appointment and its batch: nobody
// overtakes the queue, nobody divides it, and what does not fit goes out at once.
func TestOneLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Second}
		c := New(Options[int]{Streams: 3, Max: 2}, s.run)
		c.running, c.leaders = 2, 1
		for i := range 3 {
			start(t.Context(), c, i)
		}
		c.mu.Lock()
		c.appoint(0)
		c.mu.Unlock()
		if c.running != 2 || c.leaders != 1 || c.length.Load() != 3 {
			t.Fatalf("%d streams, %d leaders, %d queued; want 2, 1, 3", c.running, c.leaders, c.length.Load())
		}
		if expected := c.finish(nil, 0); expected != 0 || c.running != 1 || c.leaders != 1 {
			t.Fatalf("a second leader: expects %d, %d streams, %d leaders", expected, c.running, c.leaders)
		}
		go c.lead(0)
		synctest.Wait()
		if n := streamsInUse(c); len(s.sent()) != 2 || n != 2 {
			t.Errorf("batches %v, %d streams: what did not fit waits", s.sent(), n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		wantIdle(t, c)
	})
}

func TestLeaveQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Second}
		c := New(Options[int]{}, s.run)
		start(t.Context(), c, 0)
		var calls []*call
		var cancels []context.CancelFunc
		for i := range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			calls, cancels = append(calls, start(ctx, c, i+1)), append(cancels, cancel)
		}
		for _, i := range []int{2, 0, 4} { // the middle, the head, the tail
			cancels[i]()
			synctest.Wait()
			calls[i].wantError(t, false, context.Canceled)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		wantBatches(t, s, []int{0}, []int{2, 4})
		calls[1].want(t, 20)
		calls[3].want(t, 40)
		wantIdle(t, c)
		cancels[1]()
		cancels[3]()
	})
}

func TestLeaveBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		s := &server{took: time.Minute}
		c := New(Options[int]{}, s.run)
		start(t.Context(), c, 0)
		first, cancelFirst := context.WithTimeout(context.WithValue(t.Context(), key{}, "first"), time.Hour)
		hasty, cancelHasty := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancelHasty()
		a, b, d := start(first, c, 1), start(hasty, c, 2), start(t.Context(), c, 3)
		time.Sleep(70 * time.Second) // the batch has begun
		synctest.Wait()
		wantBatches(t, s, []int{0}, []int{1, 2, 3})
		cancelFirst()
		synctest.Wait()
		a.wantError(t, true, context.Canceled)
		time.Sleep(25 * time.Second)
		synctest.Wait()
		b.wantError(t, true, context.DeadlineExceeded)
		ctx := s.context(1)
		if ctx.Err() != nil {
			t.Errorf("the batch's context ended with %v while a member waits", ctx.Err())
		}
		if ctx.Value(key{}) != "first" {
			t.Error("the batch's context lacks the values of its first member")
		}
		if at, ok := ctx.Deadline(); ok {
			t.Errorf("the batch has the deadline %v, one of its members has none", at)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		d.want(t, 30)
		wantIdle(t, c)
	})
}

// TestLeaveBatchEmpty has all members of a batch leave: nobody waits for it, so it is
// told to stop, and not before the last one has left.
func TestLeaveBatchEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batch context.Context
		stopped := time.Time{}
		c := New(Options[int]{}, func(ctx context.Context, items []*Item[int, int]) {
			if items[0].In == 0 {
				time.Sleep(time.Second)
				return
			}
			batch = ctx
			<-ctx.Done()
			stopped = time.Now()
			for _, it := range items {
				it.Answer(1, nil) // to callers who have gone
			}
		})
		began := time.Now()
		start(t.Context(), c, 0)
		short, cancel1 := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel1()
		long, cancel2 := context.WithTimeout(t.Context(), 9*time.Second)
		defer cancel2()
		a, b := start(long, c, 1), start(short, c, 2)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		a.wantError(t, true, context.DeadlineExceeded)
		b.wantError(t, true, context.DeadlineExceeded)
		if at, ok := batch.Deadline(); !ok || at.Sub(began) != 9*time.Second {
			t.Errorf("the batch's deadline is %v, %v; want 9s", at.Sub(began), ok)
		}
		if stopped.Sub(began) != 9*time.Second {
			t.Errorf("the batch was stopped after %v, want 9s", stopped.Sub(began))
		}
		wantIdle(t, c)
	})
}

// TestAnswerBeatsLeaving: a caller that learns of its context's end when the batch has
// ended takes the answer.
func TestAnswerBeatsLeaving(t *testing.T) {
	c := New(Options[int]{}, func(context.Context, []*Item[int, int]) {})
	it := c.item(1)
	it.state = over
	it.Answer(7, nil)
	it.ready <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 64 { // select takes either way
		it.state = over
		it.Answer(7, nil)
		if len(it.ready) == 0 {
			it.ready <- struct{}{}
		}
		if out, err := c.await(ctx, it); out != 7 || err != nil {
			t.Fatalf("await: %d, %v; want the answer", out, err)
		}
	}
}

func TestNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options[int]{}, func(_ context.Context, items []*Item[int, int]) {
			time.Sleep(time.Second)
			for _, it := range items {
				if it.In%2 == 1 {
					it.Answer(it.In, nil)
				}
			}
		})
		a, b, d := start(t.Context(), c, 0), start(t.Context(), c, 1), start(t.Context(), c, 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		a.wantError(t, true, ErrNoAnswer)
		b.want(t, 1)
		d.wantError(t, true, ErrNoAnswer)
		wantIdle(t, c)
	})
}

// TestRunBreaks lets run panic and leave by Goexit, alone and in a batch, and checks who
// learns of it and that the next batch runs.
func TestRunBreaks(t *testing.T) {
	boom := errors.New("boom")
	for name, how := range map[string]func(){"panic": func() { panic(boom) }, "goexit": runtime.Goexit} {
		for _, leaderLeaves := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " leader left", false: ""}[leaderLeaves], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := New(Options[int]{Max: 3}, func(_ context.Context, items []*Item[int, int]) {
						for _, it := range items {
							it.Answer(10*it.In, nil)
						}
						time.Sleep(time.Second)
						if in := items[0].In; in == 0 || in == 1 {
							how()
						}
					})
					type end struct {
						value any
						exit  bool
						err   error
						out   int
					}
					ends := make([]end, 6)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					for i := range ends {
						go func() {
							e := &ends[i]
							e.exit = true
							defer func() {
								if e.value = recover(); e.value != nil {
									e.exit = false
								}
							}()
							ctx := ctx
							if i != 1 {
								ctx = t.Context()
							}
							e.out, e.err = c.Do(ctx, i)
							e.exit = false
						}()
						synctest.Wait()
					}
					time.Sleep(1500 * time.Millisecond)
					if leaderLeaves {
						cancel()
					}
					time.Sleep(time.Minute)
					synctest.Wait()

					hit := []int{0, 1}
					if leaderLeaves {
						hit[1] = 2
						if e := new(Error); !errors.As(ends[1].err, &e) || !e.Sent {
							t.Errorf("who left got %+v", ends[1])
						}
					}
					for n, i := range hit {
						if name == "goexit" {
							if !ends[i].exit {
								t.Errorf("caller %d: %+v, want Goexit", i, ends[i])
							}
							continue
						}
						err, _ := ends[i].value.(error)
						var p *PanicError
						if !errors.Is(err, boom) || errors.As(err, &p) != (n > 0) {
							t.Errorf("caller %d: panic %v, want boom", i, ends[i].value)
						}
						if n > 0 && len(p.Stack) == 0 {
							t.Error("the panic lost its stack")
						}
					}
					for i := hit[1] + 1; i < 4; i++ {
						if e := new(Error); !errors.As(ends[i].err, &e) || !e.Sent || !errors.Is(e, ErrNoAnswer) {
							t.Errorf("neighbour %d got %+v, want ErrNoAnswer: run answered before it broke", i, ends[i])
						}
					}
					for i := 4; i < 6; i++ {
						if ends[i].out != 10*i || ends[i].err != nil {
							t.Errorf("caller %d of the next batch got %+v", i, ends[i])
						}
					}
					wantIdle(t, c)
				})
			})
		}
	}
}

// TestGather checks who is waited for, and that a wait ends when nobody comes. In the
// bubble the clock stands still, so that no limit of time can end it.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options[int]{WaitShare: 0.5}, func(context.Context, []*Item[int, int]) {})
		c.lastTook = time.Hour
		c.gather(1) // nobody to wait for
		c.gather(2) // never comes
		for i := range 200 {
			go func() {
				for range i {
					runtime.Gosched()
				}
				c.length.Add(1)
			}()
		}
		c.gather(200)
		// A busy machine may stop a thread, with the callers on it, for longer than a
		// leader's patience. Who went on at the first arrival would have one or two.
		if n := c.length.Load(); n < 20 {
			t.Errorf("went on with %d of 200 callers who were runnable", n)
		}
	})
	c := New(Options[int]{WaitShare: 0.5}, func(context.Context, []*Item[int, int]) {})
	c.gather(200) // nothing to take a share of
}
