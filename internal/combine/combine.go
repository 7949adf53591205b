package combine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Combiner runs concurrent calls together; see the package comment. It is made by [New]
// and safe for concurrent use. It has nothing to close: when the last Do has returned, a
// goroutine of its own may still be running a batch whose callers have all left, no more.
type Combiner[In, Out any] struct {
	o   Options[In]
	run func(context.Context, []*Item[In, Out])

	items sync.Pool // of *Item[In, Out]

	// length is the length of queue, for the leader who waits for it to grow. It is
	// written under mu.
	length atomic.Int64

	mu     sync.Mutex
	queue  line[In, Out]
	inside int // callers in Do
	away   int // callers the last batch has released and who are not back yet

	// running counts the streams in use, leaders those of them whose goroutine has not
	// taken its batch yet. Whenever mu is free, a queue that is not empty has a leader, or
	// all streams are in use: so nobody is forgotten. Up to one goroutine leads at once
	// from a standing start, so that they do not divide the queue among them.
	running, leaders int

	lastTook time.Duration // what the last batch took
}

// New makes a Combiner. run carries out a batch and answers every item of it with
// [Item.Answer]; see the package comment for what its context means and what happens to
// items it does not answer. It is called from up to Options.Streams goroutines at once,
// with one item at least.
func New[In, Out any](o Options[In], run func(ctx context.Context, items []*Item[In, Out])) *Combiner[In, Out] {
	return &Combiner[In, Out]{o: o.withDefaults(), run: run}
}

// Do has in carried out, alone at once when a stream is free, otherwise together with the
// calls that queue meanwhile, in the order of arrival. It returns run's answer. When ctx ends
// first, it returns an [Error] that says whether in was sent; a call that goes direct waits
// for run, which has ctx, instead.
func (c *Combiner[In, Out]) Do(ctx context.Context, in In) (Out, error) {
	if err := ctx.Err(); err != nil {
		var none Out
		return none, &Error{Err: err}
	}
	it := c.item(in)
	if c.o.Weigh != nil {
		it.weight = c.o.Weigh(in)
	}
	c.mu.Lock()
	c.inside++
	c.away = max(c.away-1, 0)
	// With a stream free and no leader the queue is empty: see running. Past a leader nobody
	// goes direct: it would overtake the queue, or be missed by the batch that waits for it.
	if c.running < c.streams() && c.leaders == 0 {
		c.running++
		c.mu.Unlock()
		return c.direct(ctx, it)
	}
	it.ctx, it.state = ctx, queued
	c.queue.push(it)
	c.length.Add(1)
	c.mu.Unlock()
	return c.await(ctx, it)
}

// streams is how many streams may be in use now.
func (c *Combiner[In, Out]) streams() int {
	if c.o.Crowd > 0 && c.inside+c.away >= c.o.Crowd {
		return c.o.CrowdStreams
	}
	return c.o.Streams
}

// direct runs it alone on the caller's goroutine. The stream is given back in a deferred
// call: run may panic or leave by Goexit.
func (c *Combiner[In, Out]) direct(ctx context.Context, it *Item[In, Out]) (Out, error) {
	defer c.leave()
	it.self[0] = it
	c.run(ctx, it.self[:])
	out, err := it.result()
	c.recycle(it)
	return out, err
}

// leave gives back the stream of a direct call. If others have queued meanwhile, a
// goroutine leads them: the caller has its answer and is not kept.
func (c *Combiner[In, Out]) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inside--
	c.running--
	c.appoint(1)
}

// appoint starts a goroutine for the queue if it has none and a stream is free. It is
// called, under mu, after every change that may have made a stream free or raised their
// number. released is how many callers have just been answered.
func (c *Combiner[In, Out]) appoint(released int) {
	if c.queue.head == nil || c.leaders > 0 || c.running >= c.streams() {
		return
	}
	c.running++
	c.leaders++
	go c.lead(released + int(c.length.Load()))
}

// await waits for the answer to a queued item.
func (c *Combiner[In, Out]) await(ctx context.Context, it *Item[In, Out]) (Out, error) {
	select {
	case <-it.ready:
	case <-ctx.Done():
		if e := c.abandon(it, ctx.Err()); e != nil {
			var none Out
			return none, e
		}
		<-it.ready // the batch has ended: its answer is better than none
	}
	if it.gone != nil {
		it.gone()
	}
	out, err := it.result()
	c.recycle(it)
	return out, err
}

// abandon takes the caller of it out. It returns nil if the answer is there.
func (c *Combiner[In, Out]) abandon(it *Item[In, Out], cause error) *Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch it.state {
	case queued:
		c.queue.remove(it)
		c.length.Add(-1)
		c.inside--
		c.appoint(0) // fewer callers may mean more streams
		c.recycle(it)
		return &Error{Err: cause}
	case sent:
		// From here on the item is the batch's alone.
		it.state = left
		c.inside--
		it.batch.leave()
		c.appoint(0)
		return &Error{Sent: true, Err: cause}
	default:
		return nil
	}
}

func (c *Combiner[In, Out]) item(in In) *Item[In, Out] {
	it, _ := c.items.Get().(*Item[In, Out])
	if it == nil {
		it = &Item[In, Out]{ready: make(chan struct{}, 1)}
	}
	it.In = in
	return it
}

// recycle puts back an item that nobody else can reach. An item whose caller left, or
// whose run panicked, is not put back: run may still have it.
func (c *Combiner[In, Out]) recycle(it *Item[In, Out]) {
	*it = Item[In, Out]{ready: it.ready}
	c.items.Put(it)
}
