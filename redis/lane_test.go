package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// setCall is a call that sets a key.
func setCall(ctx context.Context, key string) *call {
	return &call{key: key, cmds: []redis.Cmder{redis.NewStatusCmd(ctx, "set", key, "v")}, acked: true}
}

// TestBatchAnswersEachCall: in one pipeline a refused command, a script that the server
// does not know and a missing key are matters of their own callers.
func TestBatchAnswersEachCall(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t)
	client := newClient(t, srv.Addr())
	srv.Do(t, "LPUSH", "list", "x")
	ctx := t.Context()
	ok, wrong, missing := setCall(ctx, "a"), setCall(ctx, "b"), setCall(ctx, "c")
	wrong.cmds = []redis.Cmder{redis.NewStringCmd(ctx, "get", "list"), redis.NewIntCmd(ctx, "pexpiretime", "list")}
	wrong.timed = true
	missing.cmds = []redis.Cmder{redis.NewStringCmd(ctx, "get", "nothing")}
	script := setCall(ctx, "d")
	script.cmds = []redis.Cmder{redis.NewCmd(ctx, "evalsha", strings.Repeat("0", 40), 1, "d")}
	last := setCall(ctx, "e")
	if err := newLane(client, nil).carry(ctx, ok, wrong, missing, script, last); err != nil {
		t.Fatal(err)
	}
	if ok.cmds[0].Err() != nil || last.cmds[0].Err() != nil || srv.Do(t, "GET", "e") != "v" {
		t.Errorf("beside failures: %v, %v; want success", ok.cmds[0].Err(), last.cmds[0].Err())
	}
	if !redis.HasErrorPrefix(wrong.cmds[0].Err(), "WRONGTYPE") || wrong.cmds[1].Err() != nil || wrong.now.IsZero() {
		t.Errorf("a list: %v, %v at %v; want WRONGTYPE, and the rest of the call answered", wrong.cmds[0].Err(), wrong.cmds[1].Err(), wrong.now)
	}
	if missing.cmds[0].Err() != redis.Nil || !redis.HasErrorPrefix(script.cmds[0].Err(), "NOSCRIPT") {
		t.Errorf("a missing key: %v, an unknown script: %v", missing.cmds[0].Err(), script.cmds[0].Err())
	}
}

// TestCaseC40_ScriptsForgottenInBatches: a crowd completes its attempts while the server keeps
// forgetting the scripts.
func TestCaseC40_ScriptsForgottenInBatches(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t)
	s := newStore(t, newClient(t, srv.Addr()), "")
	stop := make(chan struct{})
	var flusher, callers sync.WaitGroup
	flusher.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				flushScripts(t, s)
			}
		}
	})
	for i := range 64 {
		callers.Go(func() {
			for k := range 10 {
				r := request(fmt.Sprint(i, "-", k))
				if res, err := s.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
					t.Errorf("Reserve: %v, %v", res.Outcome, err)
				}
				if k%2 == 0 { // by the long script
					s.kept.take(&r.Ref)
				}
				if _, err := s.Complete(t.Context(), completion(r.Ref, "done")); err != nil {
					t.Errorf("Complete: %v", err)
				}
			}
		})
	}
	callers.Wait()
	close(stop)
	flusher.Wait()
	if stats := srv.Do(t, "INFO", "commandstats"); !strings.Contains(stats, "cmdstat_eval:") {
		t.Error("no script was sent in full: the test has shown nothing")
	}
}

// counted counts the callers who have come in.
type counted struct {
	runner
	inside *atomic.Int64
}

func (c counted) do(ctx context.Context, call *call) error {
	c.inside.Add(1)
	return c.runner.do(ctx, call)
}

// TestCancelledCallerLeavesAlone: while a server hangs, callers of a crowd who give up
// return, what they queued is not sent later, and the others get their answers.
func TestCancelledCallerLeavesAlone(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testdb.Redis(t).Addr())
	client := redis.NewClient(&redis.Options{Addr: p.addr(), ContextTimeoutEnabled: true, ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, newPrefix())
	var inside atomic.Int64
	s.run = counted{s.run, &inside}
	p.hang()
	const n = 40
	type answer struct {
		res backend.Reservation
		err error
	}
	var answers [n]answer
	var left, stayed sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	requests := make([]backend.ReserveRequest, n)
	for i := range n {
		requests[i] = request(fmt.Sprint("k", i))
		who, own := &stayed, t.Context()
		if i%2 == 1 {
			who, own = &left, ctx
		}
		who.Go(func() { answers[i].res, answers[i].err = s.Reserve(own, requests[i]) })
	}
	for end := time.Now().Add(30 * time.Second); inside.Load() < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d callers are inside", inside.Load(), n)
		}
	}
	began := time.Now()
	cancel()
	left.Wait()
	// The server still hangs: nobody but the callers' own contexts can have ended this.
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("callers who gave up stayed for %v", took)
	}
	p.heal()
	stayed.Wait()
	unsent := 0
	for i, a := range answers {
		switch {
		case i%2 == 0:
			if a.err != nil || a.res.Outcome != backend.Acquired {
				t.Errorf("caller %d, who stayed, was answered %v, %v", i, a.res.Outcome, a.err)
			}
		case !errors.Is(a.err, context.Canceled):
			t.Errorf("caller %d, who left, was answered %v", i, a.err)
		case !errors.Is(a.err, backend.ErrOutcomeUnknown):
			unsent++
			if _, err := s.Get(t.Context(), requests[i].ID); !errors.Is(err, backend.ErrNotFound) {
				t.Errorf("caller %d was told that nothing was sent, and there is a record: %v", i, err)
			}
		}
	}
	if unsent == 0 {
		t.Error("nobody left the queue: the test has shown little")
	}
}

// TestOnlyTheUnansweredIsSentAgain: a server answers a part of a pipeline and stops. What
// it has answered stays answered.
func TestOnlyTheUnansweredIsSentAgain(t *testing.T) {
	t.Parallel()
	var seen sync.Map // of key to *atomic.Int64
	release := make(chan struct{})
	var once sync.Once
	free := func() { once.Do(func() { close(release) }) }
	client := fakeRedis(t, map[string]func([]string) string{
		"time": fixed("*2\r\n$1\r\n1\r\n$1\r\n0\r\n"),
		"set": func(args []string) string {
			n, _ := seen.LoadOrStore(args[1], new(atomic.Int64))
			if n.(*atomic.Int64).Add(1) == 1 && args[1] == "slow" {
				<-release
			}
			return "+OK\r\n"
		},
	})
	t.Cleanup(free) // before the server is waited for
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := []*call{setCall(ctx, "a"), setCall(ctx, "slow"), setCall(ctx, "b")}
	if err := newLane(client, nil).carry(ctx, calls...); err != nil {
		t.Fatal(err)
	}
	for _, c := range calls {
		if err := c.cmds[0].Err(); err != nil {
			t.Errorf("%s: %v", c.key, err)
		}
	}
	count := func(key string) int64 { n, _ := seen.Load(key); return n.(*atomic.Int64).Load() }
	if count("a") != 1 || count("slow") != 2 || count("b") != 1 {
		t.Errorf("sent %d, %d and %d times; want 1, 2 and 1", count("a"), count("slow"), count("b"))
	}
}

// TestBatchSharesOneWait: the writes of a batch are acknowledged by one WAIT, and a read
// does not wait at all.
func TestBatchSharesOneWait(t *testing.T) {
	t.Parallel()
	primary := testdb.StartRedis(t)
	replica := testdb.StartReplica(t, primary)
	client := newClient(t, primary.Addr())
	waits := func() string {
		for line := range strings.Lines(primary.Do(t, "INFO", "commandstats")) {
			if rest, ok := strings.CutPrefix(line, "cmdstat_wait:calls="); ok {
				n, _, _ := strings.Cut(rest, ",")
				return n
			}
		}
		return "0"
	}
	carry := func(l *lane) (calls []*call) {
		for i := range 20 {
			calls = append(calls, setCall(t.Context(), fmt.Sprint("k", i)))
		}
		if err := l.carry(t.Context(), calls...); err != nil {
			t.Fatal(err)
		}
		return calls
	}
	for _, c := range carry(newLane(client, mustAcks(t, client, 1, false, 0))) {
		if c.short != nil || c.cmds[0].Err() != nil {
			t.Errorf("%s: %v, %v; want it acknowledged", c.key, c.short, c.cmds[0].Err())
		}
	}
	if got := waits(); got != "1" || replica.Do(t, "GET", "k19") != "v" {
		t.Errorf("20 writes made %s waits; want 1", got)
	}
	few := newLane(client, mustAcks(t, client, 2, false, 50*time.Millisecond))
	for _, c := range carry(few) {
		if !errors.Is(c.short, backend.ErrOutcomeUnknown) || c.cmds[0].Err() != nil {
			t.Errorf("%s: %v, %v; want too few acknowledgements", c.key, c.short, c.cmds[0].Err())
		}
	}
	read := &call{key: "k1", cmds: []redis.Cmder{redis.NewStringCmd(t.Context(), "get", "k1")}}
	if err := few.do(t.Context(), read); err != nil || read.short != nil || waits() != "2" {
		t.Errorf("a read: %v, %v after %s waits; want none of its own", err, read.short, waits())
	}
	// A crowd goes together: far fewer waits than writes.
	s, err := New(t.Context(), client, &Options{AckReplicas: 1, Prefix: newPrefix()})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	const callers, rounds = 64, 10
	for i := range callers {
		wg.Go(func() {
			for k := range rounds {
				r := request(fmt.Sprint(i, "-", k))
				if res, err := s.Reserve(t.Context(), r); err != nil || res.Outcome != backend.Acquired {
					t.Errorf("Reserve: %v, %v", res.Outcome, err)
				}
			}
		})
	}
	wg.Wait()
	var n int
	if _, err := fmt.Sscan(waits(), &n); err != nil || n > callers*rounds/2 {
		t.Errorf("%d writes of %d callers made %d waits, %v; want them shared", callers*rounds, callers, n, err)
	}
}
