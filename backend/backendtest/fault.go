package backendtest

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

// When says at which point of a call a [Fault] strikes.
type When uint8

// The points at which a fault strikes.
const (
	// Before: the call is held up or fails and the store never sees it.
	Before When = iota
	// After: the store has applied the call; its answer is held up or lost.
	After
	// Late: the caller gets Err (or backend.ErrOutcomeUnknown) at once, and the
	// store sees the call only when Block is closed, as with a request that is
	// stuck on its way. See [Faulty.Flush].
	Late
	// Twice: the store sees the call two times and the caller gets the second
	// answer, as with a client library that sends again after a lost answer.
	Twice
)

// Fault is one thing that goes wrong. Its fields must not be changed once it has
// been added.
type Fault struct {
	// Method is the name of the method that it strikes, such as "Complete"; empty
	// strikes all of them except Guarantees.
	Method string
	When   When
	// Skip lets so many matching calls pass first.
	Skip int
	// Times is how many calls it strikes: 0 means one, below 0 means all.
	Times int
	// Match narrows it to some records; nil means all. List and Expire have the
	// zero ID.
	Match func(id backend.ID) bool
	// Err is what the caller gets; nil means that the call is held up only.
	Err error
	// Block holds the call up until it is closed or the caller's context ends:
	// before the call was applied that is the context's error, afterwards it also
	// matches backend.ErrOutcomeUnknown, as the contract asks.
	Block <-chan struct{}
	// Deaf makes Block ignore the caller's context, as a stuck driver does.
	Deaf bool
	// Hit, if not nil, is called whenever the fault strikes, before it blocks.
	Hit func(method string, id backend.ID)
}

// Faulty is a [backend.Backend] that makes calls to another one fail, hang,
// arrive late or arrive twice. Faults may be added and removed while calls run;
// it is safe for concurrent use.
type Faulty struct {
	b backend.Backend

	mu      sync.Mutex
	faults  []*armed
	calls   map[string]int
	applied map[string]int
	late    sync.WaitGroup
}

type armed struct {
	*Fault
	seen, hits int
}

var _ backend.Backend = (*Faulty)(nil)

// Wrap returns a Faulty around b. Where several faults match a call, the one that
// was added first strikes.
func Wrap(b backend.Backend, faults ...*Fault) *Faulty {
	f := &Faulty{b: b, calls: make(map[string]int), applied: make(map[string]int)}
	f.Add(faults...)
	return f
}

// Add arms more faults.
func (f *Faulty) Add(faults ...*Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range faults {
		f.faults = append(f.faults, &armed{Fault: fault})
	}
}

// Remove disarms the given faults. Calls that they hold up go on waiting for
// their Block.
func (f *Faulty) Remove(faults ...*Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = slices.DeleteFunc(f.faults, func(a *armed) bool { return slices.Contains(faults, a.Fault) })
}

// Heal disarms all faults.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Flush waits until every Late call has reached the store.
func (f *Faulty) Flush() { f.late.Wait() }

// Calls returns how often a method was called, whatever became of it.
func (f *Faulty) Calls(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

// Applied returns how many calls of a method have reached the store and come
// back, whatever the store's answer and whether the caller saw it or not.
func (f *Faulty) Applied(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied[method]
}

// ResetCounts sets the counters of all methods to zero.
func (f *Faulty) ResetCounts() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.calls)
	clear(f.applied)
}

// strike counts a call and returns the fault that hits it, or nil.
func (f *Faulty) strike(method string, id backend.ID) *Fault {
	f.mu.Lock()
	f.calls[method]++
	var hit *Fault
	for _, a := range f.faults {
		if a.Method != "" && a.Method != method || a.Match != nil && !a.Match(id) {
			continue
		}
		a.seen++
		if a.seen <= a.Skip || a.Times >= 0 && a.hits >= max(a.Times, 1) {
			continue
		}
		a.hits++
		hit = a.Fault
		break
	}
	f.mu.Unlock()
	if hit != nil && hit.Hit != nil {
		hit.Hit(method, id)
	}
	return hit
}

func (f *Faulty) count(method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied[method]++
}

// wait blocks as the fault says.
func (fault *Fault) wait(ctx context.Context) error {
	if fault.Block == nil {
		return nil
	}
	if fault.Deaf {
		<-fault.Block
		return nil
	}
	select {
	case <-fault.Block:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call runs one method through its fault.
func call[T any](ctx context.Context, f *Faulty, method string, id backend.ID, do func(context.Context) (T, error)) (T, error) {
	var none T
	apply := func(ctx context.Context) (T, error) {
		defer f.count(method)
		return do(ctx)
	}
	fault := f.strike(method, id)
	if fault == nil {
		return apply(ctx)
	}
	switch fault.When {
	case Late:
		f.late.Go(func() {
			if fault.Block != nil {
				<-fault.Block
			}
			_, _ = apply(context.WithoutCancel(ctx)) // nobody is there to read the answer
		})
		if fault.Err != nil {
			return none, fault.Err
		}
		return none, backend.ErrOutcomeUnknown
	case Twice:
		_, _ = apply(ctx) // this answer is the one that gets lost
		if err := fault.wait(ctx); err != nil {
			return none, fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, err)
		}
		v, err := apply(ctx)
		if fault.Err != nil {
			return none, fault.Err
		}
		return v, err
	case After:
		v, err := apply(ctx)
		if werr := fault.wait(ctx); werr != nil {
			return none, fmt.Errorf("%w: %w", backend.ErrOutcomeUnknown, werr)
		}
		if fault.Err != nil {
			return none, fault.Err
		}
		return v, err
	}
	if err := fault.wait(ctx); err != nil {
		return none, err
	}
	if fault.Err != nil {
		return none, fault.Err
	}
	return apply(ctx)
}

func callErr(ctx context.Context, f *Faulty, method string, id backend.ID, do func(context.Context) error) error {
	_, err := call(ctx, f, method, id, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

// Reserve implements backend.Backend.
func (f *Faulty) Reserve(ctx context.Context, r backend.ReserveRequest) (backend.Reservation, error) {
	return call(ctx, f, "Reserve", r.ID, func(ctx context.Context) (backend.Reservation, error) { return f.b.Reserve(ctx, r) })
}

// Complete implements backend.Backend.
func (f *Faulty) Complete(ctx context.Context, r backend.CompleteRequest) (backend.Record, error) {
	return call(ctx, f, "Complete", r.ID, func(ctx context.Context) (backend.Record, error) { return f.b.Complete(ctx, r) })
}

// Release implements backend.Backend.
func (f *Faulty) Release(ctx context.Context, ref backend.Ref) error {
	return callErr(ctx, f, "Release", ref.ID, func(ctx context.Context) error { return f.b.Release(ctx, ref) })
}

// Renew implements backend.Backend.
func (f *Faulty) Renew(ctx context.Context, ref backend.Ref, ttl time.Duration) error {
	return callErr(ctx, f, "Renew", ref.ID, func(ctx context.Context) error { return f.b.Renew(ctx, ref, ttl) })
}

// Get implements backend.Backend.
func (f *Faulty) Get(ctx context.Context, id backend.ID) (backend.Record, error) {
	return call(ctx, f, "Get", id, func(ctx context.Context) (backend.Record, error) { return f.b.Get(ctx, id) })
}

// List implements backend.Backend. A fault After strikes once the last record has
// been yielded; Late and Twice strike like Before.
func (f *Faulty) List(ctx context.Context, filter backend.Filter) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		fault := f.strike("List", backend.ID{})
		fail := func() error {
			if fault == nil {
				return nil
			}
			if err := fault.wait(ctx); err != nil {
				return err
			}
			return fault.Err
		}
		last := fault != nil && fault.When == After
		if !last {
			if err := fail(); err != nil {
				yield(backend.Record{}, err)
				return
			}
		}
		defer f.count("List")
		for rec, err := range f.b.List(ctx, filter) {
			if !yield(rec, err) || err != nil {
				return
			}
		}
		if last {
			if err := fail(); err != nil {
				yield(backend.Record{}, err)
			}
		}
	}
}

// Resolve implements backend.Backend.
func (f *Faulty) Resolve(ctx context.Context, r backend.ResolveRequest) (backend.Record, error) {
	return call(ctx, f, "Resolve", r.ID, func(ctx context.Context) (backend.Record, error) { return f.b.Resolve(ctx, r) })
}

// Forget implements backend.Backend.
func (f *Faulty) Forget(ctx context.Context, r backend.ForgetRequest) error {
	return callErr(ctx, f, "Forget", r.ID, func(ctx context.Context) error { return f.b.Forget(ctx, r) })
}

// Expire implements backend.Backend.
func (f *Faulty) Expire(ctx context.Context, r backend.ExpireRequest) (backend.ExpireResult, error) {
	return call(ctx, f, "Expire", backend.ID{}, func(ctx context.Context) (backend.ExpireResult, error) { return f.b.Expire(ctx, r) })
}

// Guarantees implements backend.Backend; no fault strikes it.
func (f *Faulty) Guarantees() backend.Guarantees { return f.b.Guarantees() }

// FaultyTx is [Faulty] for a transactional backend. Its further method names are
// "Transact", "Join" and "Finish".
type FaultyTx[Tx any] struct {
	*Faulty
	tx backend.Transactional[Tx]
}

var _ backend.Transactional[int] = (*FaultyTx[int])(nil)

// WrapTx is [Wrap] for a transactional backend.
func WrapTx[Tx any](b backend.Transactional[Tx], faults ...*Fault) *FaultyTx[Tx] {
	return &FaultyTx[Tx]{Faulty: Wrap(b, faults...), tx: b}
}

// Transact implements backend.Transactional.
func (f *FaultyTx[Tx]) Transact(ctx context.Context, r backend.ReserveRequest, work backend.Work[Tx]) (backend.Reservation, error) {
	return call(ctx, f.Faulty, "Transact", r.ID, func(ctx context.Context) (backend.Reservation, error) { return f.tx.Transact(ctx, r, work) })
}

// Join implements backend.Transactional.
func (f *FaultyTx[Tx]) Join(ctx context.Context, tx Tx, r backend.ReserveRequest, work backend.Work[Tx]) (backend.Reservation, error) {
	return call(ctx, f.Faulty, "Join", r.ID, func(ctx context.Context) (backend.Reservation, error) { return f.tx.Join(ctx, tx, r, work) })
}

// Finish implements backend.Transactional.
func (f *FaultyTx[Tx]) Finish(ctx context.Context, ref backend.Ref, work backend.Work[Tx]) (backend.Record, error) {
	return call(ctx, f.Faulty, "Finish", ref.ID, func(ctx context.Context) (backend.Record, error) { return f.tx.Finish(ctx, ref, work) })
}
