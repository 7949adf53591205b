package combine

import "context"

// Item is one call in a batch. It belongs to run until run returns; run must not keep it.
type Item[In, Out any] struct {
	// In is what Do was given.
	In In

	out      Out
	err      error
	answered bool
	weight   int

	// The three below are guarded by the combiner's mutex once the item is queued.
	state      state
	next, prev *Item[In, Out]
	batch      *batch

	ctx   context.Context
	ready chan struct{} // one token, once state is answered
	gone  func()        // raises run's panic or Goexit on the waiting caller
	self  [1]*Item[In, Out]
}

type state uint8

const (
	queued state = iota
	sent         // in a batch
	left         // in a batch, and its caller has gone: nobody may reuse the item
	over         // its batch has ended; the token in ready follows
)

// Answer sets what Do returns for this item once run has returned. The last answer counts.
// Do returns err as it is.
func (it *Item[In, Out]) Answer(out Out, err error) {
	it.out, it.err, it.answered = out, err, true
}

// result is what Do returns for an item whose run has returned.
func (it *Item[In, Out]) result() (Out, error) {
	if !it.answered {
		var none Out
		return none, &Error{Sent: true, Err: ErrNoAnswer}
	}
	return it.out, it.err
}

// line is a FIFO queue of items in which any item can be taken out.
type line[In, Out any] struct {
	head, tail *Item[In, Out]
}

func (l *line[In, Out]) push(it *Item[In, Out]) {
	it.prev, it.next = l.tail, nil
	if l.tail == nil {
		l.head = it
	} else {
		l.tail.next = it
	}
	l.tail = it
}

func (l *line[In, Out]) remove(it *Item[In, Out]) {
	if it.prev == nil {
		l.head = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.tail = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.next, it.prev = nil, nil
}
