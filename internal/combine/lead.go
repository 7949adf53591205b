package combine

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// batch is what the callers of a batch share.
type batch struct {
	waiting int // members who have not left; guarded by the combiner's mutex
	cancel  context.CancelFunc
}

// leave notes that a member has left. The last one ends the batch's context.
func (b *batch) leave() {
	if b.waiting--; b.waiting == 0 {
		b.cancel()
	}
}

// batchContext is the context of a batch: it ends when the last member has left, and its
// deadline is the latest of the members', so that a client that only looks at the
// deadline sees it too.
type batchContext struct {
	context.Context
	deadline time.Time
}

// Deadline is the moment at which the last member leaves at the latest, if each has one.
func (b *batchContext) Deadline() (time.Time, bool) {
	return b.deadline, !b.deadline.IsZero()
}

// lead holds a stream and answers the queue, batch after batch, until it is empty.
// expected is the number of callers that may be queued in a moment.
func (c *Combiner[In, Out]) lead(expected int) {
	var items []*Item[In, Out]
	for {
		if c.o.WaitShare > 0 {
			c.gather(expected)
		}
		b, ctx, taken := c.take(items[:0])
		if b == nil {
			return
		}
		if expected = c.carryOut(ctx, b, taken); expected == 0 {
			return
		}
		items = taken
	}
}

// patience is how often gather looks without seeing anybody come until it gives up. The
// callers just released are runnable, so a few rounds of the scheduler bring them back if
// they come back at once. It also ends the wait where the clock stands still, as in a
// bubble of testing/synctest.
const patience = 256

// gather waits until expected callers are queued; see the package comment.
func (c *Combiner[In, Out]) gather(expected int) {
	expected = min(expected, c.o.Max)
	if expected <= 1 {
		return
	}
	c.mu.Lock()
	limit := min(time.Duration(float64(c.lastTook)*c.o.WaitShare), maxWait)
	c.mu.Unlock()
	start, seen := stopwatch(), int64(0)
	for idle := 0; idle < patience; idle++ {
		n := c.length.Load()
		if n >= int64(expected) || stopwatch().Sub(start) >= limit {
			return
		}
		if n > seen {
			seen, idle = n, 0
		}
		runtime.Gosched()
	}
}

// take makes a batch of the queue's head. If the queue is empty, it gives the stream back
// and returns nil.
func (c *Combiner[In, Out]) take(items []*Item[In, Out]) (*batch, context.Context, []*Item[In, Out]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaders--
	first := c.queue.head
	if first == nil {
		c.running--
		return nil, nil, nil
	}
	b, ctx := &batch{}, &batchContext{}
	ctx.Context, b.cancel = context.WithCancel(context.WithoutCancel(first.ctx))
	weight, bounded := 0, true
	for it := c.queue.head; it != nil && len(items) < c.o.Max; it = c.queue.head {
		weight += it.weight
		if c.o.Weigh != nil && weight > c.o.MaxWeight && len(items) > 0 {
			break
		}
		c.queue.remove(it)
		it.state, it.batch = sent, b
		items = append(items, it)
		d, ok := it.ctx.Deadline()
		if bounded = bounded && ok; bounded && d.After(ctx.deadline) {
			ctx.deadline = d
		}
	}
	if !bounded {
		ctx.deadline = time.Time{}
	}
	b.waiting = len(items)
	c.length.Add(int64(-len(items)))
	c.appoint(0) // for what did not fit
	return b, ctx, items
}

// carryOut runs one batch and answers it. It returns how many callers the next batch may
// expect; 0 means that the stream has been given back. The work after run is deferred,
// because run may panic, which ends here, or leave by Goexit, which ends this goroutine.
func (c *Combiner[In, Out]) carryOut(ctx context.Context, b *batch, items []*Item[In, Out]) (expected int) {
	defer b.cancel()
	returned := false
	start := stopwatch()
	defer func() {
		if returned {
			expected = c.finish(items, stopwatch().Sub(start))
			return
		}
		gone := runtime.Goexit
		if v := recover(); v != nil {
			p := &PanicError{Value: v, Stack: debug.Stack()}
			gone = func() { panic(p) }
		}
		c.fail(items, gone)
	}()
	c.run(ctx, items)
	returned = true
	return 0
}

// finish answers a batch that run has returned from, and keeps the stream if the queue
// needs it or the callers may be waited for.
func (c *Combiner[In, Out]) finish(items []*Item[In, Out], took time.Duration) (expected int) {
	c.mu.Lock()
	c.lastTook = took
	released := c.end(items)
	c.away = released
	expected = released + int(c.length.Load())
	more := c.queue.head != nil || c.o.WaitShare > 0 && expected > 1
	if c.running > c.streams() || c.leaders > 0 || !more {
		// Too many streams for a crowd, another leads already, or nobody is there.
		c.running--
		c.appoint(released)
		expected = 0
	} else {
		c.leaders++
	}
	c.mu.Unlock()
	tell(items)
	return expected
}

// fail answers a batch whose run did not return. The stream goes to another goroutine,
// since this one may be ending. gone goes to one caller.
func (c *Combiner[In, Out]) fail(items []*Item[In, Out], gone func()) {
	c.mu.Lock()
	c.end(items)
	c.running--
	c.appoint(0)
	c.mu.Unlock()
	for _, it := range items {
		// A run that answers before it commits may have answered wrongly.
		it.answered = false
		if it.state == over && gone != nil {
			it.gone, gone = gone, nil
		}
	}
	tell(items)
}

// end closes the batch to leavers and returns how many are still waiting. After it the
// states of its items do not change. It is called under mu.
func (c *Combiner[In, Out]) end(items []*Item[In, Out]) (waiting int) {
	for _, it := range items {
		if it.state == sent {
			it.state = over
			waiting++
		}
	}
	c.inside -= waiting
	return waiting
}

// tell wakes the callers of a batch that has ended. After its token an item belongs to
// its caller.
func tell[In, Out any](items []*Item[In, Out]) {
	for i, it := range items {
		items[i] = nil
		if it.state == over {
			it.ready <- struct{}{}
		}
	}
}
