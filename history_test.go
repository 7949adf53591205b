package idem_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
	"github.com/goidem/idem/backend/memory"
)

// A hundred callers want the same two hundred things. Each is done once.
func TestOneRunPerKey(t *testing.T) {
	checkLeaks(t)
	const callers, keys = 100, 200
	s := newSetup(t, &idem.Options{Wait: time.Minute, Observer: nobody{}})
	var ran [keys]atomic.Int64
	var crowd sync.WaitGroup
	for c := range callers {
		crowd.Go(func() {
			store := s.store
			if c%3 == 0 {
				store = s.openOver(s.mem, &idem.Options{Wait: time.Minute, Observer: nobody{}}) // another process
			}
			for i := range keys {
				k := (i + c*7) % keys
				res, err := run(t.Context(), store, strconv.Itoa(k), does(s.ledger, strconv.Itoa(k), k))
				if err != nil || res.Value != k {
					t.Errorf("key %d: %+v, %v", k, res, err)
				}
				if !res.Replayed {
					ran[k].Add(1)
				}
			}
		})
	}
	crowd.Wait()
	for k := range ran {
		if n := ran[k].Load(); n != 1 {
			t.Errorf("key %d was run by %d calls", k, n)
		}
		s.ledger.want(t, strconv.Itoa(k), 1)
	}
}

// nobody observes nothing.
type nobody struct{}

func (nobody) Start(ctx context.Context, _ idem.Scope) context.Context { return ctx }
func (nobody) Observe(context.Context, idem.Event)                     {}

// call is one Execute of a history, and its answer.
type callInput struct {
	key, value string
	mode       string // how it goes
}

type callOutput struct {
	kind  string // ran, replayed, failed, error, inFlight, lost, unknown, none
	value string
}

// onceModel says what one key may answer, in words of R3, R10, R11 and R15: once
// an outcome is stored, it is the answer to everybody, and nothing runs.
//
// The state is "" while nothing is stored, or the stored outcome.
func onceModel() porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, input, output any) []any {
			st, in, out := state.(string), input.(callInput), output.(callOutput)
			stays := func(ok bool) []any {
				if !ok {
					return nil
				}
				return []any{st}
			}
			becomes := func(ok bool, next string) []any {
				if !ok {
					return nil
				}
				return []any{next}
			}
			switch out.kind {
			case "ran":
				return becomes(st == "" && out.value == in.value, "value "+out.value)
			case "replayed":
				return stays(st == "value "+out.value)
			case "failed": // by this call, if the code is its own, or by an earlier one
				if out.value == in.value {
					return becomes(st == "", "code "+out.value)
				}
				return stays(st == "code "+out.value)
			case "error", "inFlight": // nothing was stored at the time
				return stays(st == "")
			case "unknown": // its outcome may be stored, now or later or never
				next := "value " + in.value
				if strings.HasPrefix(in.mode, "permanent") {
					next = "code " + in.value
				}
				if st == "" {
					return []any{st, next}
				}
				return []any{st}
			}
			return stays(out.kind == "lost" || out.kind == "none")
		},
	}
	m := nondeterministic.ToModel()
	m.Partition = func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			k := op.Input.(callInput).key
			byKey[k] = append(byKey[k], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	}
	m.DescribeOperation = func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) }
	return m
}

// The model is not one that accepts everything.
func TestHistoryModelCanFail(t *testing.T) {
	in := func(v string) callInput { return callInput{key: "k", value: v, mode: "ok"} }
	op := func(from, to int64, v, kind, got string) porcupine.Operation {
		return porcupine.Operation{Input: in(v), Output: callOutput{kind, got}, Call: from, Return: to}
	}
	for name, tt := range map[string]struct {
		history []porcupine.Operation
		ok      bool
	}{
		"sound":               {[]porcupine.Operation{op(1, 2, "a", "ran", "a"), op(3, 4, "b", "replayed", "a")}, true},
		"two ran":             {[]porcupine.Operation{op(1, 2, "a", "ran", "a"), op(3, 4, "b", "ran", "b")}, false},
		"two ran at once":     {[]porcupine.Operation{op(1, 4, "a", "ran", "a"), op(2, 3, "b", "ran", "b")}, false},
		"wrong value":         {[]porcupine.Operation{op(1, 2, "a", "ran", "a"), op(3, 4, "b", "replayed", "b")}, false},
		"replay before":       {[]porcupine.Operation{op(3, 4, "a", "ran", "a"), op(1, 2, "b", "replayed", "a")}, false},
		"in flight after":     {[]porcupine.Operation{op(1, 2, "a", "ran", "a"), op(3, 4, "b", "inFlight", "")}, false},
		"lost, then replayed": {[]porcupine.Operation{op(1, 2, "a", "lost", ""), op(3, 4, "b", "replayed", "a")}, false},
		"unknown, replayed":   {[]porcupine.Operation{op(1, math.MaxInt64, "a", "unknown", ""), op(3, 4, "b", "replayed", "a")}, true},
		"unknown, then ran":   {[]porcupine.Operation{op(1, math.MaxInt64, "a", "unknown", ""), op(3, 4, "b", "ran", "b")}, true},
	} {
		if got := porcupine.CheckOperations(onceModel(), tt.history); got != tt.ok {
			t.Errorf("%s: %v, want %v", name, got, tt.ok)
		}
	}
}

// Random histories of callers that crash, hang, fail and lose messages are what one
// careful caller after the other could have seen.
func TestHistories(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("IDEM_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	budget := 4 * time.Second
	if testing.Short() {
		budget = 500 * time.Millisecond
	}
	kinds := map[string]int{}
	rounds := 0
	for begun := time.Now(); time.Since(begun) < budget && !t.Failed(); rounds++ {
		history := oneHistory(t, seed+uint64(rounds))
		for _, op := range history {
			kinds[op.Output.(callOutput).kind]++
		}
		if res := porcupine.CheckOperationsTimeout(onceModel(), history, 20*time.Second); res != porcupine.Ok {
			t.Errorf("seed %d: %v", seed+uint64(rounds), res)
			for _, op := range history {
				t.Logf("%4d %20d %+v -> %+v", op.Call, op.Return, op.Input, op.Output)
			}
		}
	}
	t.Logf("%d histories from seed %d (IDEM_SEED=%d runs them again): %v", rounds, seed, seed, kinds)
	for _, kind := range []string{"ran", "replayed", "failed", "error", "inFlight", "lost", "unknown"} {
		if kinds[kind] == 0 && rounds > 20 {
			t.Errorf("no call ended as %q: the test has lost its teeth", kind)
		}
	}
}

// oneHistory runs one random round in a bubble and returns what happened.
func oneHistory(t *testing.T, seed uint64) (history []porcupine.Operation) {
	const clients, calls, keys = 5, 7, 3
	modes := []string{"ok", "ok", "error", "permanent", "hang", "hang short", "crash", "permanent crash", "answer lost", "late", "twice", "cancel", "slow reserve", "reserve lost", "release lost"}
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New(nil)
		var clock atomic.Int64 // orders calls and returns
		var mu sync.Mutex
		record := func(op porcupine.Operation) {
			mu.Lock()
			defer mu.Unlock()
			history = append(history, op)
		}
		var late []*backendtest.Faulty
		var group sync.WaitGroup
		for c := range clients {
			rnd := rand.New(rand.NewPCG(seed, uint64(c)))
			shared, err := idem.New(mem, &idem.Options{LeaseTTL: time.Second, Observer: nobody{}})
			if err != nil {
				t.Fatal(err)
			}
			group.Go(func() {
				for n := range calls {
					time.Sleep(upTo(rnd, 800*time.Millisecond))
					in := callInput{key: strconv.Itoa(rnd.IntN(keys)), value: fmt.Sprintf("%d-%d", c, n), mode: modes[rnd.IntN(len(modes))]}
					store := shared
					if in.mode != "ok" {
						faulty := backendtest.Wrap(mem, faultsOf(in.mode, rnd)...)
						mu.Lock()
						late = append(late, faulty)
						mu.Unlock()
						store, err = idem.New(faulty, &idem.Options{LeaseTTL: time.Second, Observer: nobody{}})
						if err != nil {
							t.Error(err)
							return
						}
					}
					var wait time.Duration
					if rnd.IntN(2) == 0 {
						wait = upTo(rnd, 3*time.Second)
					}
					work, hang := upTo(rnd, 300*time.Millisecond), upTo(rnd, 4*time.Second)
					ctx, cancel := context.WithCancel(t.Context())
					if in.mode == "cancel" {
						time.AfterFunc(upTo(rnd, 400*time.Millisecond), cancel)
					}
					op := porcupine.Operation{ClientId: c, Input: in, Call: clock.Add(1)}
					res, err := run(ctx, store, in.key, func(ctx context.Context) (string, error) {
						time.Sleep(work)
						switch {
						case in.mode == "hang":
							time.Sleep(hang) // and does not listen
						case in.mode == "hang short":
							select {
							case <-time.After(hang):
							case <-ctx.Done():
								return "", context.Cause(ctx)
							}
						case in.mode == "error" || in.mode == "release lost":
							return "", errBoom
						case strings.HasPrefix(in.mode, "permanent"):
							return "", idem.Permanent(in.value, nil)
						}
						return in.value, nil
					}, idem.Wait(wait))
					cancel()
					op.Return, op.Output = clock.Add(1), outputOf(res, err)
					if op.Output.(callOutput).kind == "unknown" {
						op.Return = math.MaxInt64 // whatever it sent may still arrive
					}
					if op.Output.(callOutput).kind == "" {
						t.Errorf("seed %d: %+v: unexpected answer %+v, %v", seed, in, res, err)
					}
					record(op)
				}
			})
		}
		group.Wait()
		for _, f := range late {
			f.Flush()
		}
		time.Sleep(time.Minute)
		store, err := idem.New(mem, nil)
		if err != nil {
			t.Fatal(err)
		}
		for k := range keys {
			in := callInput{key: strconv.Itoa(k), value: "last", mode: "ok"}
			op := porcupine.Operation{ClientId: clients, Input: in, Call: clock.Add(1)}
			res, err := run(t.Context(), store, in.key, func(context.Context) (string, error) { return in.value, nil })
			op.Return, op.Output = clock.Add(1), outputOf(res, err)
			if kind := op.Output.(callOutput).kind; kind != "ran" && kind != "replayed" && kind != "failed" {
				t.Errorf("seed %d: key %d is stuck: %+v, %v", seed, k, res, err)
			}
			record(op)
		}
	})
	return history
}

// upTo returns a random duration below d.
func upTo(rnd *rand.Rand, d time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(d))) }

// faultsOf makes a store misbehave as the mode says.
func faultsOf(mode string, rnd *rand.Rand) []*backendtest.Fault {
	dead := func(method string) *backendtest.Fault {
		return &backendtest.Fault{Method: method, Times: -1, Err: errors.New("down")}
	}
	unknown := fmt.Errorf("%w: cut", backend.ErrOutcomeUnknown)
	switch mode {
	case "hang", "hang short":
		return []*backendtest.Fault{dead("Renew")}
	case "crash", "permanent crash":
		return []*backendtest.Fault{dead("Renew"), dead("Complete"), dead("Release")}
	case "answer lost":
		return []*backendtest.Fault{dead("Renew"), {Method: "Complete", When: backendtest.After, Times: -1, Err: unknown}}
	case "late":
		arrive := make(chan struct{})
		time.AfterFunc(upTo(rnd, 5*time.Second), func() { close(arrive) })
		return []*backendtest.Fault{dead("Renew"), {Method: "Complete", When: backendtest.Late, Times: 1 + rnd.IntN(30), Block: arrive}}
	case "twice":
		return []*backendtest.Fault{{When: backendtest.Twice, Times: -1}}
	case "slow reserve":
		answer := make(chan struct{})
		time.AfterFunc(upTo(rnd, 2*time.Second), func() { close(answer) })
		return []*backendtest.Fault{{Method: "Reserve", When: backendtest.After, Block: answer}}
	case "reserve lost":
		arrive := make(chan struct{})
		time.AfterFunc(upTo(rnd, 2*time.Second), func() { close(arrive) })
		return []*backendtest.Fault{{Method: "Reserve", When: backendtest.Late, Block: arrive}}
	case "release lost":
		return []*backendtest.Fault{{Method: "Release", When: backendtest.After, Times: -1, Err: unknown}}
	}
	return nil
}

// outputOf names an answer; kind "" is one that must not be.
func outputOf(res idem.Result[string], err error) callOutput {
	var failed *idem.FailedError
	switch {
	case err == nil && res.Replayed:
		return callOutput{"replayed", res.Value}
	case err == nil:
		return callOutput{"ran", res.Value}
	case errors.As(err, &failed):
		return callOutput{"failed", failed.Code}
	case err == errBoom:
		return callOutput{"error", ""}
	case errors.Is(err, idem.ErrOutcomeUnknown):
		return callOutput{"unknown", ""}
	case errors.Is(err, idem.ErrLeaseLost):
		return callOutput{"lost", ""}
	case errors.Is(err, idem.ErrInFlight):
		return callOutput{"inFlight", ""}
	case errors.Is(err, idem.ErrUnavailable):
		return callOutput{"none", ""}
	}
	return callOutput{}
}
