package strategy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goidem/idem/internal/crdbshim"
	"github.com/goidem/idem/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m, func() error { return goleak.Find() }) }

// urls gives the servers that a strategy needs, or skips the test.
func urls(t *testing.T, info Info) map[Server]string {
	t.Helper()
	all := make(map[Server]string)
	for _, server := range info.Needs {
		switch server {
		case Postgres:
			all[server] = testdb.Postgres(t).AdminURL()
		case Redis:
			all[server] = testdb.Redis(t).URL()
		case Cockroach:
			if all[server] = os.Getenv("IDEM_TEST_COCKROACH_URL"); all[server] == "" {
				all[server] = crdbshim.Start(t, testdb.Postgres(t).Database(t), crdbshim.Options{}).URL()
			}
		}
	}
	return all
}

// expected is what a strategy answers to an equal retry and to another payload, and
// whether it remembers the key when it is opened again.
type expected struct {
	retry, other Outcome
	reopened     Outcome
}

var promises = map[string]expected{
	"none":         {Executed, Executed, Executed},
	"bolt-check":   {Replayed, Replayed, Replayed},
	"pg-check":     {Replayed, Replayed, Replayed},
	"redis-lock":   {Dropped, Dropped, Dropped},
	"lru-window":   {Dropped, Dropped, Executed},
	"redis-raw":    {Executed, Executed, Executed},
	"redis-window": {Dropped, Dropped, Dropped},
	"memory-lease": {Replayed, Mismatch, Executed},
	"bolt-batch":   {Executed, Executed, Executed},
	"bolt-lease":   {Replayed, Mismatch, Replayed},
	"redis-lease":  {Replayed, Mismatch, Replayed},
	"pg-two":       {Executed, Executed, Executed},
	"pg-lease":     {Replayed, Mismatch, Replayed},
	"crdb-lease":   {Replayed, Mismatch, Replayed},
	"fsync":        {Executed, Executed, Executed},
	"bolt-tx":      {Replayed, Mismatch, Replayed},
	"pg-five":      {Executed, Executed, Executed},
	"pg-unique":    {Dropped, Dropped, Dropped},
	"pg-tx":        {Replayed, Mismatch, Replayed},
	"pg-tx-queued": {Replayed, Mismatch, Replayed},
	"crdb-tx":      {Replayed, Mismatch, Replayed},
}

// each runs a test with every strategy, in a place of its own.
func each(t *testing.T, test func(t *testing.T, s Strategy, env Env)) {
	for _, s := range All() {
		t.Run(s.Info().Name, func(t *testing.T) {
			t.Parallel()
			env := Env{
				Dir: t.TempDir(), URLs: urls(t, s.Info()), Conns: 4, Effects: NewMemoryLedger(),
				Place: strings.ToLower(t.Name()[4:8]) + "_" + strings.ReplaceAll(s.Info().Name, "-", "_"),
			}
			t.Cleanup(func() {
				if err := Erase(context.Background(), env); err != nil {
					t.Error(err)
				}
			})
			test(t, s, env)
		})
	}
}

func open(t *testing.T, s Strategy, env Env) Runner {
	t.Helper()
	r, err := s.Open(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func do(t *testing.T, r Runner, op Op, want Outcome) {
	t.Helper()
	if got, err := r.Do(t.Context(), op); err != nil || got != want {
		t.Errorf("Do(%q, %q) = %q, %v; want %q", op.Key, op.Payload, got, err, want)
	}
}

func TestKeepsItsPromise(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s Strategy, env Env) {
		want, ok := promises[s.Info().Name]
		if !ok {
			t.Fatal("no promise is written down")
		}
		r := open(t, s, env)
		var points []Point
		op := Op{Key: "a 'key'\n", Payload: []byte("pay"), Result: 100, Work: time.Microsecond, Caller: "c1"}
		op.Pause = func(_ context.Context, at Point) error { points = append(points, at); return nil }
		do(t, r, op, Executed)
		if !slices.Equal(points, []Point{AfterReserve, AfterEffect, AfterComplete}) {
			t.Errorf("the points of an operation: %q", points)
		}
		op.Pause = nil
		do(t, r, op, want.retry)
		other := op
		other.Payload = []byte("pay more")
		do(t, r, other, want.other)
		for i := range 20 {
			do(t, r, Op{Key: fmt.Sprint("key", i), Result: 10, Caller: "c2"}, Executed)
		}

		effects := map[string]int{op.Key: 1}
		for _, o := range []Outcome{want.retry, want.other} {
			if o == Executed {
				effects[op.Key]++
			}
		}
		for i := range 20 {
			effects[fmt.Sprint("key", i)] = 1
		}
		check := func(r Runner) {
			t.Helper()
			if got, err := r.Effects().Counts(t.Context()); err != nil || !maps.Equal(got, effects) {
				t.Errorf("the effects are %v, %v; want %v", got, err, effects)
			}
		}
		check(r)
		usage(t, s, r)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}

		r = open(t, s, env)
		do(t, r, op, want.reopened)
		if want.reopened == Executed {
			effects[op.Key]++
		}
		check(r)
		if err := r.Effects().Apply(t.Context(), op.Key, "beside"); err != nil {
			t.Fatal(err)
		}
		effects[op.Key]++
		check(r)

		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if err := Erase(t.Context(), env); err != nil {
			t.Fatal(err)
		}
		r = open(t, s, env)
		defer r.Close()
		do(t, r, other, Executed)
	})
}

// usage holds what a runner says it has used after 21 keys against what must be.
func usage(t *testing.T, s Strategy, r Runner) {
	t.Helper()
	u, err := r.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", u)
	name := s.Info().Name
	switch {
	case name == "none" && u != Usage{}:
		t.Errorf("nothing costs %+v", u)
	case name == "fsync" && u.Records != 23:
		t.Errorf("%d records, want a line for each call", u.Records)
	case name != "none" && name != "fsync" && u.Records != 21:
		t.Errorf("%d records, want 21", u.Records)
	}
	if server := len(s.Info().Needs) > 0; server != (r.Wire() > 21*30) {
		t.Errorf("%d bytes on the wire, with a server: %v", r.Wire(), server)
	}
	// A lease on memory dies with it; bbolt, PostgreSQL and the log flush at least once a
	// new key, as these came one after the other.
	flushed := strings.HasPrefix(name, "bolt") || strings.HasPrefix(name, "pg") || name == "fsync"
	if n, err := r.Flushes(t.Context()); err != nil || flushed && n < 21 {
		t.Errorf("%d flushes for 21 keys, %v", n, err)
	}
	if flushed && u.StoredBytes < 21*10 {
		t.Errorf("%d bytes stored", u.StoredBytes)
	}
}

// TestStorm has many callers with one key at once. Who promises must keep it; who checks
// before acting must be seen to fail.
func TestStorm(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, s Strategy, env Env) {
		env.Conns = 8
		const callers = 8
		r := open(t, s, env)
		defer r.Close()
		fails := s.Info().Family == Floor || strings.HasSuffix(s.Info().Name, "-check") || s.Info().Name == "none"
		// Who fails only if two meet, meets: the first goes no further than its look before
		// another has looked.
		var pause func(context.Context, Point) error
		if fails && s.Info().Name != "pg-five" { // whose row makes the second wait, and then run
			pause = meeting(2)
		}
		outcomes := make(chan Outcome, callers)
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				op := Op{Key: "hot", Payload: []byte("pay"), Work: 50 * time.Millisecond, Caller: fmt.Sprint(i), Pause: pause}
				o, err := r.Do(t.Context(), op)
				if err != nil {
					t.Error(err)
				}
				outcomes <- o
			})
		}
		all.Wait()
		close(outcomes)
		counted := make(map[Outcome]int)
		for o := range outcomes {
			counted[o]++
		}
		effects, err := r.Effects().Counts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if effects["hot"] != counted[Executed] {
			t.Errorf("%d effects of %v", effects["hot"], counted)
		}
		if many := effects["hot"] > 1; many != fails || effects["hot"] == 0 {
			t.Errorf("%d effects of one key, of %v", effects["hot"], counted)
		}
	})
}

// meeting returns a Pause that lets nobody past AfterReserve before n are there.
func meeting(n int64) func(context.Context, Point) error {
	var there atomic.Int64
	met := make(chan struct{})
	return func(ctx context.Context, at Point) error {
		if at != AfterReserve {
			return nil
		}
		if there.Add(1) == n {
			close(met)
		}
		select {
		case <-met:
			return nil
		case <-time.After(time.Minute):
			return errors.New("nobody else came")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestFailedOperation fails before its effect and is tried again: whoever has settled
// nothing must let the retry run.
func TestFailedOperation(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	each(t, func(t *testing.T, s Strategy, env Env) {
		r := open(t, s, env)
		defer r.Close()
		op := Op{Key: "k", Payload: []byte("pay"), Pause: func(_ context.Context, at Point) error { return boom }}
		if o, err := r.Do(t.Context(), op); !errors.Is(err, boom) {
			t.Errorf("a failed operation: %q, %v", o, err)
		}
		want := Executed
		if name := s.Info().Name; name == "redis-lock" || name == "redis-window" {
			want = Dropped // the claim stands: that is their weakness
		}
		op.Pause = nil
		do(t, r, op, want)
	})
}

func TestTransactionTakesTheEffectBack(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	each(t, func(t *testing.T, s Strategy, env Env) {
		if s.Info().Family != Transactional {
			t.Skip("record and effect are two writes")
		}
		r := open(t, s, env)
		defer r.Close()
		op := Op{Key: "k", Payload: []byte("pay"), Pause: func(_ context.Context, at Point) error {
			if at == AfterEffect {
				return boom
			}
			return nil
		}}
		if o, err := r.Do(t.Context(), op); !errors.Is(err, boom) {
			t.Errorf("a failed operation: %q, %v", o, err)
		}
		op.Pause = nil
		do(t, r, op, Executed)
		if n, err := r.Effects().Counts(t.Context()); err != nil || n["k"] != 1 {
			t.Errorf("%d effects, %v; want 1", n["k"], err)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	good := Env{Dir: t.TempDir(), Place: "p", Effects: NewMemoryLedger()}
	for _, s := range All() {
		if len(s.Info().Needs) > 0 {
			if _, err := s.Open(t.Context(), good); !errors.Is(err, ErrNoServer) {
				t.Errorf("%s without a server: %v, want %v", s.Info().Name, err, ErrNoServer)
			}
		}
		secret := good
		secret.URLs = map[Server]string{Postgres: "postgres://u:hunter2@[", Redis: "redis://u:hunter2@[", Cockroach: "postgres://u:hunter2@["}
		if len(s.Info().Needs) > 0 {
			if _, err := s.Open(t.Context(), secret); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s with a URL that is none: %v", s.Info().Name, err)
			}
		}
		for _, place := range []string{"", "../up", "a\"b", strings.Repeat("x", 33)} {
			bad := good
			bad.Place = place
			if _, err := s.Open(t.Context(), bad); err == nil || errors.Is(err, ErrNoServer) {
				t.Errorf("%s in the place %q: %v", s.Info().Name, place, err)
			}
		}
	}
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for _, s := range All() {
		i := s.Info()
		if names[i.Name] || i.Name == "" || i.Title == "" || i.Survives == "" || i.Cost == "" {
			t.Errorf("%q is there twice, or has a gap: %+v", i.Name, i)
		}
		names[i.Name] = true
		if found, err := Lookup(i.Name); err != nil || found.Info().Name != i.Name {
			t.Errorf("Lookup(%q) = %v, %v", i.Name, found, err)
		}
		if i.Floor != "" {
			if f, err := Lookup(i.Floor); err != nil || f.Info().Family != Floor && f.Info().Name != "none" {
				t.Errorf("the floor of %s: %v", i.Name, err)
			}
		}
	}
	if _, err := Lookup("pg-magic"); err == nil || !strings.Contains(err.Error(), "pg-tx-queued") {
		t.Errorf("an unknown name: %v, want those that there are", err)
	}
}

func TestFileLedger(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	key := "a \"key\"\nwith a line"
	var all sync.WaitGroup
	for range 4 { // as many processes: each has the file open for itself
		all.Go(func() {
			l, err := OpenFileLedger(path, true)
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			for range 50 {
				if err := errors.Join(l.Apply(t.Context(), key, "c 1"), l.Apply(t.Context(), "other", "")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	l, err := OpenFileLedger(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.f.WriteString(`"torn" "c`); err != nil {
		t.Fatal(err)
	}
	want := map[string]int{key: 200, "other": 200}
	if got, err := l.Counts(t.Context()); err != nil || !maps.Equal(got, want) {
		t.Errorf("it counts %v, %v; want %v", got, err, want)
	}
	if _, err := l.f.WriteString("\n:(\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Counts(t.Context()); err == nil {
		t.Error("a line that is no effect is passed over")
	}
}
