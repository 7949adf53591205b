package backendtest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

var errFault = errors.New("injected")

func faultRequest() backend.ReserveRequest {
	return backend.ReserveRequest{
		Ref: backend.Ref{ID: backend.ID{Operation: "op", Key: "k"}, Owner: [16]byte{1}}, TTL: time.Hour, KnownFor: time.Hour, OnAbandoned: backend.Rerun,
	}
}

func TestFaultBeforeAndAfter(t *testing.T) {
	for _, when := range []backendtest.When{backendtest.Before, backendtest.After} {
		s := newStore(newTestClock().Now)
		f := backendtest.Wrap(s, &backendtest.Fault{Method: "Reserve", When: when, Err: errFault})
		r := faultRequest()
		if res, err := f.Reserve(t.Context(), r); err != errFault || res.Outcome != 0 {
			t.Errorf("when %d: Reserve: %v, %v", when, res.Outcome, err)
		}
		_, err := f.Get(t.Context(), r.ID)
		if applied := err == nil; applied != (when == backendtest.After) || f.Applied("Reserve") != len(s.records) {
			t.Errorf("when %d: the store has seen the call: %v, counted %d", when, applied, f.Applied("Reserve"))
		}
		if res, err := f.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
			t.Errorf("when %d: the fault struck twice: %v, %v", when, res.Outcome, err)
		}
		if f.Calls("Reserve") != 2 || f.Calls("Get") != 1 || f.Calls("Complete") != 0 {
			t.Errorf("when %d: counted %d, %d, %d calls", when, f.Calls("Reserve"), f.Calls("Get"), f.Calls("Complete"))
		}
		f.ResetCounts()
		if f.Calls("Reserve") != 0 || f.Applied("Reserve") != 0 {
			t.Error("ResetCounts left something")
		}
	}
}

func TestFaultSkipTimesMatchHeal(t *testing.T) {
	f := backendtest.Wrap(newStore(newTestClock().Now))
	other := backend.ID{Operation: "op", Key: "other"}
	fault := &backendtest.Fault{Method: "Get", Skip: 1, Times: 2, Err: errFault, Match: func(id backend.ID) bool { return id.Key == "k" }}
	f.Add(fault)
	struck := func(id backend.ID) bool {
		_, err := f.Get(t.Context(), id)
		return err == errFault
	}
	id := faultRequest().ID
	got := []bool{struck(other), struck(id), struck(id), struck(other), struck(id), struck(id)}
	if want := []bool{false, false, true, false, true, false}; !slices.Equal(got, want) {
		t.Errorf("struck %v; want %v", got, want)
	}
	always := &backendtest.Fault{Times: -1, Err: errFault}
	f.Add(always)
	first, second := struck(id), struck(other)
	if !first || !second || !errors.Is(f.Release(t.Context(), faultRequest().Ref), errFault) {
		t.Error("a fault for all methods and calls did not strike")
	}
	f.Remove(always)
	if struck(id) {
		t.Error("a removed fault struck")
	}
	f.Add(always)
	f.Heal()
	if struck(id) {
		t.Error("a fault struck after Heal")
	}
}

func TestFaultBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, when := range []backendtest.When{backendtest.Before, backendtest.After} {
			block := make(chan struct{})
			hits := 0
			f := backendtest.Wrap(newStore(newTestClock().Now), &backendtest.Fault{Method: "Reserve", When: when, Times: 2, Block: block, Hit: func(string, backend.ID) { hits++ }})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := f.Reserve(ctx, faultRequest())
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrOutcomeUnknown) != (when == backendtest.After) {
				t.Errorf("when %d: a blocked call whose context ended: %v", when, err)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				if res, err := f.Reserve(t.Context(), faultRequest()); err != nil || res.Outcome != backend.Acquired {
					t.Errorf("when %d: a call that was blocked: %v, %v", when, res.Outcome, err)
				}
			})
			synctest.Wait()
			close(block)
			wg.Wait()
			if hits != 2 {
				t.Errorf("when %d: Hit was called %d times", when, hits)
			}
		}
		block := make(chan struct{})
		f := backendtest.Wrap(newStore(newTestClock().Now), &backendtest.Fault{Method: "Renew", Block: block, Deaf: true, Err: errFault})
		time.AfterFunc(time.Minute, func() { close(block) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := f.Renew(ctx, faultRequest().Ref, time.Hour); err != errFault || time.Since(began) != time.Minute {
			t.Errorf("a deaf call came back after %v with %v", time.Since(began), err)
		}
	})
}

func TestFaultLateAndTwice(t *testing.T) {
	s := newStore(newTestClock().Now)
	block := make(chan struct{})
	f := backendtest.Wrap(s, &backendtest.Fault{Method: "Reserve", When: backendtest.Late, Block: block})
	r := faultRequest()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := f.Reserve(ctx, r); !errors.Is(err, backend.ErrOutcomeUnknown) {
		t.Errorf("a late call: %v; want ErrOutcomeUnknown", err)
	}
	cancel() // the request is on its way; its caller is gone
	if _, err := f.Get(t.Context(), r.ID); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("a late call arrived early: %v", err)
	}
	close(block)
	f.Flush()
	if rec, err := f.Get(t.Context(), r.ID); err != nil || rec.Owner != r.Owner {
		t.Errorf("a late call did not arrive: %v", err)
	}
	f.Add(&backendtest.Fault{Method: "Complete", When: backendtest.Twice})
	rec, err := f.Complete(t.Context(), backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, ReplayFor: time.Hour, KnownFor: time.Hour})
	if err != nil || rec.State != backend.Completed || f.Applied("Complete") != 2 || f.Calls("Complete") != 1 {
		t.Errorf("a call that arrived twice: %v, %v; applied %d", rec.State, err, f.Applied("Complete"))
	}
}

func TestFaultList(t *testing.T) {
	for _, c := range []struct {
		when    backendtest.When
		records int
	}{{backendtest.Before, 0}, {backendtest.After, 1}} {
		f := backendtest.Wrap(newStore(newTestClock().Now), &backendtest.Fault{Method: "List", When: c.when, Err: errFault})
		if _, err := f.Reserve(t.Context(), faultRequest()); err != nil {
			t.Fatal(err)
		}
		records, last := 0, error(nil)
		for _, err := range f.List(t.Context(), backend.Filter{}) {
			if last = err; err == nil {
				records++
			}
		}
		if records != c.records || last != errFault {
			t.Errorf("when %d: %d records, then %v", c.when, records, last)
		}
	}
}

// The wrappers keep the contract of what they wrap.
func TestWrappedStoreConforms(t *testing.T) {
	backendtest.RunTx(t, func(testing.TB) *backendtest.TxHarness[*storeTx] {
		h := harness(nil)
		open := h.Open
		h.Open = func(t testing.TB) backend.Transactional[*storeTx] { return backendtest.WrapTx(open(t)) }
		return h
	})
}

// Every move may arrive twice without changing an answer (R3).
func TestEveryMoveTwiceConforms(t *testing.T) {
	backendtest.Run(t, func(testing.TB) *backendtest.Harness {
		clock := newTestClock()
		s := newStore(clock.Now)
		return &backendtest.Harness{
			Open: func(testing.TB) backend.Backend {
				var faults []*backendtest.Fault
				for _, m := range []string{"Reserve", "Complete", "Release", "Renew", "Resolve"} {
					faults = append(faults, &backendtest.Fault{Method: m, When: backendtest.Twice, Times: -1})
				}
				return backendtest.Wrap(s, faults...)
			},
			Advance:             clock.Advance,
			FenceOutlivesRecord: true,
		}
	})
}
