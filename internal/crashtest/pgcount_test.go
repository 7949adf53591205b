package crashtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// faultRow is one row of the fault matrix and what was counted in it.
type faultRow struct {
	name string

	mu        sync.Mutex
	rounds    int
	fired     int           // faults that are known to have happened
	calls     int           // answers that were looked at
	unknown   int           // answers that left the outcome open
	explained int           // second executions in lease mode that a lost lease or a kill explains
	duplicate int           // effects beyond what the mode promises
	lost      int           // acknowledged results that were not replayed as acknowledged
	lies      int           // definite errors of calls that had an effect
	stuck     int           // keys that nobody could settle in time
	worst     time.Duration // from a fault to the last of its keys settled
}

func (r *faultRow) add(f func(r *faultRow)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

// ground is the server that a row plays on, watched from outside.
type ground struct {
	admin *pgxpool.Pool // not through any fault; nil on Redis
	url   string        // of the database
	dir   string        // of the ledgers
	kind  pgKind
}

func newGround(t *testing.T, url string, kind pgKind) *ground {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url+"&pool_max_conns=2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	g := &ground{admin: pool, url: url, dir: t.TempDir(), kind: kind}
	if _, err := pool.Exec(t.Context(), createEffects); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *ground) ledgerPath(round string) string { return filepath.Join(g.dir, round+".effects") }
func (g *ground) ackPath(round string) string    { return filepath.Join(g.dir, round+".acks") }

// open returns a caller of the ground's kind, by default straight to its database.
func (g *ground) open(t *testing.T, url, round string) *caller {
	t.Helper()
	l, err := openLedger(g.ledgerPath(round))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := newCaller(ctx, g.kind, url, 4, faultLease, l)
	if err != nil {
		l.close()
		t.Fatal(err)
	}
	closePool := c.close
	c.close = func() { closePool(); c.effects.close() }
	return c
}

// effects returns the runs whose effects are there, by key, of one round.
func (g *ground) effects(ctx context.Context, round string) (map[string][]string, error) {
	if g.kind.external() {
		return pairs(g.ledgerPath(round))
	}
	rows, err := g.admin.Query(ctx, "SELECT key, run FROM effects WHERE key LIKE $1", round+"/%")
	if err != nil {
		return nil, err
	}
	found := make(map[string][]string)
	var key, run string
	_, err = pgx.ForEachRow(rows, []any{&key, &run}, func() error {
		found[key] = append(found[key], run)
		return nil
	})
	return found, err
}

// pairs reads a ledger of lines "key value".
func pairs(path string) (map[string][]string, error) {
	lines, err := counts(path)
	found := make(map[string][]string)
	for line, n := range lines {
		key, val, _ := strings.Cut(line, " ")
		for range n {
			found[key] = append(found[key], val)
		}
	}
	return found, err
}

// quiet waits until no transaction of the ground's database is open: a commit that was
// still in flight when its client had gone has then taken effect or not.
func (g *ground) quiet(t *testing.T) {
	t.Helper()
	if g.admin == nil {
		return // a store without transactions
	}
	const busy = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = 'client backend'"
	n := -1
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if err := g.admin.QueryRow(t.Context(), busy).Scan(&n); err == nil && n == 0 {
			return
		}
	}
	t.Errorf("%d transactions stay open", n)
}

// history is what the callers of one round were told.
type history struct {
	mu      sync.Mutex
	answers map[string][]answer // by key
	before  map[string]bool     // had an effect and no acknowledgement when a fault struck
}

func newHistory() *history {
	return &history{answers: make(map[string][]answer), before: make(map[string]bool)}
}

func (h *history) add(key string, a answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers[key] = append(h.answers[key], a)
}

// acked returns the values that were acknowledged for a key.
func (h *history) acked(key string) (values []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.answers[key] {
		if a.err == nil {
			values = append(values, a.value)
		}
	}
	return values
}

// settle calls until the key has a result, as every caller would, and tells how many
// calls were in vain.
func (h *history) settle(ctx context.Context, c *caller, key string) (ok bool) {
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		a := c.call(limited, key, faultWait)
		cancel()
		h.add(key, a)
		if a.err == nil {
			return true
		}
		time.Sleep(5 * time.Millisecond) // a caller's pause between two tries
	}
	return false
}

// settleAll settles keys from n goroutines; what could not be settled is stuck.
func (h *history) settleAll(t *testing.T, c *caller, keys []string, n int) (stuck []string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for k := i; k < len(keys); k += n {
				if !h.settle(ctx, c, keys[k]) {
					mu.Lock()
					stuck = append(stuck, keys[k])
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return stuck
}

// verdict judges a round whose keys are settled: fresh is a caller that has seen
// nothing of it. Every effect is counted, every acknowledged result asked for again.
func (g *ground) verdict(t *testing.T, r *faultRow, round string, keys []string, h *history, fresh *caller, stuck []string) {
	t.Helper()
	replays := make(map[string]answer)
	for _, key := range keys {
		if !slices.Contains(stuck, key) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			replays[key] = fresh.call(ctx, key, faultWait)
			cancel()
		}
	}
	// Only now: an effect of these calls counts, too.
	g.quiet(t)
	effects, err := g.effects(t.Context(), round)
	if err != nil {
		t.Fatal(err)
	}
	r.add(func(r *faultRow) { r.rounds++; r.stuck += len(stuck) })
	for _, key := range stuck {
		t.Errorf("%s is stuck: %v", key, h.last(key))
	}
	for _, key := range slices.Sorted(maps.Keys(effects)) {
		if !slices.Contains(keys, key) {
			t.Errorf("an effect of %s, which nobody asked for", key)
		}
	}
	for _, key := range keys {
		if replay, ok := replays[key]; ok {
			g.judge(t, r, key, h, effects[key], replay)
		}
	}
}

func (h *history) last(key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if all := h.answers[key]; len(all) > 0 {
		return all[len(all)-1].err
	}
	return nil
}

// judge judges one key with its effects and what a fresh caller was told.
func (g *ground) judge(t *testing.T, r *faultRow, key string, h *history, effects []string, replay answer) {
	t.Helper()
	acked := h.acked(key)
	report := ""
	for _, v := range acked {
		if replay.err != nil || !replay.replayed || replay.value != v {
			report = fmt.Sprintf("acknowledged as %q, and now it is %q (replayed %v), %v", v, replay.value, replay.replayed, replay.err)
		}
	}
	if g.kind != pgQueued && len(replay.runs) > 0 { // queued work runs before it is known whether it is needed
		report += "; a settled key ran again"
	}
	if report != "" {
		r.add(func(r *faultRow) { r.lost++ })
		t.Errorf("%s: %s", key, report)
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	lostLease := false
	for _, a := range h.answers[key] {
		unknown := a.err != nil && !a.definite()
		lostLease = lostLease || a.err != nil && len(a.runs) > 0
		r.add(func(r *faultRow) {
			r.calls++
			if unknown {
				r.unknown++
			}
		})
		if g.kind.external() || !a.definite() {
			continue // outside, an effect stays whatever the answer is
		}
		for _, run := range a.runs {
			if slices.Contains(effects, run) {
				r.add(func(r *faultRow) { r.lies++ })
				t.Errorf("%s: the call said %v, and its effect is there", key, a.err)
			}
		}
	}
	switch n := len(effects); {
	case n == 0:
		r.add(func(r *faultRow) { r.lost++ })
		t.Errorf("%s: acknowledged without an effect", key)
	case !slices.Contains(effects, replay.value):
		r.add(func(r *faultRow) { r.lost++ })
		t.Errorf("%s: its result is of the run %s, and its effects are of %v", key, replay.value, effects)
	case n == 1:
	case g.kind.external() && n == 2 && n <= replay.attempt && (h.before[key] || lostLease):
		r.add(func(r *faultRow) { r.explained++ }) // the documented bound
	default:
		r.add(func(r *faultRow) { r.duplicate += n - 1 })
		t.Errorf("%s: %d effects (attempt %d, known to be in doubt %v)", key, n, replay.attempt, h.before[key] || lostLease)
	}
}

// note takes into h what a process that is gone had acknowledged, and which effects
// it left without a word.
func (g *ground) note(t *testing.T, h *history, round string) {
	t.Helper()
	acks, err := pairs(g.ackPath(round))
	if err != nil {
		t.Fatal(err)
	}
	for key, values := range acks {
		for _, v := range values {
			h.add(key, answer{value: v})
		}
	}
	effects, err := g.effects(t.Context(), round)
	if err != nil {
		t.Fatal(err)
	}
	for key := range effects {
		if acks[key] == nil {
			h.before[key] = true
		}
	}
	os.Remove(g.ackPath(round))
}

// roundKeys names the keys of one round.
func roundKeys(round string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s/%d", round, i)
	}
	return keys
}
