package idem

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// ItemResult is the answer for one item of [ExecuteAll]: what [Execute] would
// have returned for it.
type ItemResult[T any] struct {
	Result[T]
	Err error
}

// ExecuteAll runs fn once for each item that has not been done before, several at
// a time ([Parallel]), and returns one answer per item, in the order of items. It
// may be called again with the same items after a crash: what was done is
// replayed.
//
// identify names the intent of an item. Items with the same key are twins: the
// first of them runs, the others share its outcome, or get
// ErrFingerprintMismatch if their fingerprints differ. A key is reserved when its
// item is about to run and no sooner; when ctx ends, items that were not started
// get its error and leave nothing behind. One item's failure is that item's
// answer.
//
// A panic of fn or identify stops new items, waits for those that run, and goes on
// up in the caller's goroutine; Goexit likewise.
func ExecuteAll[E, T any](ctx context.Context, s *Store, scope Scope, items []E,
	identify func(E) (Key, Fingerprint), fn func(context.Context, E) (T, error), opts ...AllOption) []ItemResult[T] {

	results := make([]ItemResult[T], len(items))
	refuse := func(err error) []ItemResult[T] {
		for i := range results {
			results[i].Err = err
		}
		return results
	}
	if s == nil || identify == nil || fn == nil {
		return refuse(fmt.Errorf("%w: ExecuteAll needs a store and two functions", ErrInvalidOption))
	}
	o := callOptions{parallel: runtime.GOMAXPROCS(0)}
	each := make([]CallOption, 0, len(opts))
	for _, opt := range opts {
		opt.applyAll(&o)
		if per, ok := opt.(CallOption); ok {
			each = append(each, per)
		}
	}
	if o.parallel < 1 {
		return refuse(fmt.Errorf("%w: %d items in parallel; it must be at least 1", ErrInvalidOption, o.parallel))
	}

	firsts, twins := groupTwins(items, identify)
	var next atomic.Int64
	var stopped atomic.Bool
	var crew crew
	for range min(o.parallel, len(firsts)) {
		crew.Go(func() {
			defer stopped.Store(true) // at the end of the list, or of a panic
			for !stopped.Load() {
				n := int(next.Add(1)) - 1
				if n >= len(firsts) {
					return
				}
				it := &firsts[n]
				r, err := Execute(ctx, s, scope, it.key, it.hash, func(ctx context.Context) (T, error) {
					returned := false
					defer func() {
						if !returned { // before the key is settled, which may take its time
							stopped.Store(true)
						}
					}()
					v, err := fn(ctx, items[it.index])
					returned = true
					return v, err
				}, each...)
				results[it.index] = ItemResult[T]{Result: r, Err: err}
			}
		})
	}
	crew.Wait()

	for _, twin := range twins {
		results[twin.index] = twinResult(results[twin.of], twin.same, scope, func() (Result[T], error) {
			return Execute(ctx, s, scope, twin.key, twin.hash, func(ctx context.Context) (T, error) { return fn(ctx, items[twin.index]) }, each...)
		})
	}
	return results
}

// twinResult is the answer for an item whose key an earlier item has. execute asks
// the store for the twin itself: that reads a value of its own for a twin whose
// first succeeded, and runs a twin whose first was refused because the key belongs
// to another request, perhaps the twin's.
func twinResult[T any](first ItemResult[T], same bool, scope Scope, execute func() (Result[T], error)) ItemResult[T] {
	var failed *FailedError
	switch {
	case same && first.Err == nil:
		if r, err := execute(); err == nil && r.Replayed {
			return ItemResult[T]{Result: r}
		}
		first.Replayed = true
		return first
	case same:
		first.Replayed = first.Replayed || errors.As(first.Err, &failed)
		return first
	case errors.Is(first.Err, ErrFingerprintMismatch):
		r, err := execute()
		return ItemResult[T]{Result: r, Err: err}
	}
	return ItemResult[T]{Err: &callError{sentinel: ErrFingerprintMismatch, scope: scope, reason: "an earlier item of the same batch has this key and another fingerprint"}}
}

// batchItem is an item that is executed: the first with its key.
type batchItem struct {
	index int
	key   Key
	hash  Fingerprint
}

// twinItem is an item whose key an earlier one has.
type twinItem struct {
	index, of int
	same      bool // same fingerprint
	key       Key
	hash      Fingerprint
}

func groupTwins[E any](items []E, identify func(E) (Key, Fingerprint)) (firsts []batchItem, twins []twinItem) {
	seen := make(map[Key]int, len(items)) // key -> index in firsts
	for i, item := range items {
		key, hash := identify(item)
		if n, ok := seen[key]; ok && hash.Err() == nil {
			f := &firsts[n]
			twins = append(twins, twinItem{index: i, of: f.index, key: key, hash: hash, same: f.hash.sum == hash.sum && f.hash.off == hash.off})
			continue
		}
		if hash.Err() == nil { // an item that is refused is nobody's twin
			seen[key] = len(firsts)
		}
		firsts = append(firsts, batchItem{index: i, key: key, hash: hash})
	}
	return firsts, twins
}

// crew runs functions in goroutines and hands the first panic, or Goexit, of any
// of them to the goroutine that waits.
type crew struct {
	wg     sync.WaitGroup
	once   sync.Once
	failed bool
	value  any // of the panic; nil for Goexit
	exit   bool
}

func (c *crew) Go(f func()) {
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		returned := false
		defer func() {
			if returned {
				return
			}
			r := recover()
			c.once.Do(func() { c.failed, c.value, c.exit = true, r, r == nil })
		}()
		f()
		returned = true
	}()
}

// Wait returns when all have ended; it panics with the value of the first panic.
func (c *crew) Wait() {
	c.wg.Wait()
	switch {
	case !c.failed:
	case c.exit:
		runtime.Goexit()
	default:
		panic(c.value)
	}
}
