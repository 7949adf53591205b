package crashtest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/internal/testdb"
)

// stop runs one key whose operation says that its effect is done and then waits. What
// the call returned goes into the ledger of acknowledgements.
func (o pgOrders) stop(ctx context.Context, c *caller, acks *ledger) error {
	c.at = func(here point, _ string) {
		if here == afterEffect && touch(o.Entered) == nil {
			await(ctx, o.Go)
		}
	}
	a := c.call(ctx, o.Keys[0], 0)
	switch {
	case a.err == nil:
		return acks.add("value " + a.value)
	case errors.Is(a.err, idem.ErrLeaseLost):
		return acks.add("lost -")
	}
	return acks.add("error " + oneLine(a.err))
}

// stopped freezes a process inside its operation for longer than its lease. In lease
// mode another takes over, and who comes back late is told so; in a transaction nobody
// can, and the duplicate is told to come back.
func stopped(t *testing.T, r *faultRow, kind pgKind, rounds int) {
	g := newGround(t, testdb.Postgres(t).Database(t), kind)
	g.open(t, g.url, "migrate").close()
	for n := range rounds {
		round := fmt.Sprintf("%03d-stop", n)
		key := roundKeys(round, 1)[0]
		o := pgOrders{Task: "stop", Lease: faultLease, Kind: kind, URL: g.url, Effects: g.ledgerPath(round), Acks: g.ackPath(round), Keys: []string{key},
			Conns: 4, Entered: filepath.Join(g.dir, round+".entered"), Go: filepath.Join(g.dir, round+".go")}
		cmd, out := spawn(t, o)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := await(ctx, o.Entered); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		struck := time.Now()
		r.add(func(r *faultRow) { r.fired++ })
		h := newHistory()
		c := g.open(t, g.url, round)
		wait := faultWait
		if !kind.external() {
			wait = faultLease // longer than a lease and yet in vain: a transaction has none
		}
		during := c.call(ctx, key, wait)
		h.add(key, during)
		h.before[key] = true
		if kind.external() {
			if during.err != nil || during.replayed || during.attempt != 2 {
				t.Errorf("%s: taking over gave %+v", round, during)
			}
		} else if !errors.Is(during.err, idem.ErrInFlight) || len(during.runs) > 0 {
			t.Errorf("%s: beside an open transaction: %+v; want ErrInFlight", round, during)
		}
		if err := touch(o.Go); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%s: %v: %s", round, err, out)
		}
		said, err := pairs(o.Acks)
		if err != nil {
			t.Fatal(err)
		}
		if kind.external() != (said["lost"] != nil) || kind.external() == (said["value"] != nil) {
			t.Errorf("%s: who was frozen was told %v", round, said)
		}
		for _, v := range said["value"] {
			h.add(key, answer{value: v})
		}
		stuck := h.settleAll(t, c, []string{key}, 1)
		took := time.Since(struck)
		r.add(func(r *faultRow) { r.worst = max(r.worst, took) })
		fresh := g.open(t, g.url, round)
		g.verdict(t, r, round, []string{key}, h, fresh, stuck)
		fresh.close()
		c.close()
		cancel()
	}
}

// slow lets an operation take longer than its lease while its process is well: the
// lease is renewed, a duplicate waits, and the operation runs once.
func slow(t *testing.T, r *faultRow, rounds int) {
	g := newGround(t, testdb.Postgres(t).Database(t), pgLease)
	for n := range rounds {
		round := fmt.Sprintf("%03d-slow", n)
		key := roundKeys(round, 1)[0]
		h := newHistory()
		holder, other := g.open(t, g.url, round), g.open(t, g.url, round)
		entered := make(chan struct{})
		holder.at = func(here point, _ string) {
			if here == afterEffect {
				close(entered)
				time.Sleep(faultLease * 3 / 2) // the operation takes so long
			}
		}
		over := make(chan struct{})
		began := time.Now()
		go func() {
			defer close(over)
			h.add(key, holder.call(t.Context(), key, 0))
		}()
		<-entered
		r.add(func(r *faultRow) { r.fired++ })
		stuck := h.settleAll(t, other, []string{key}, 1)
		<-over
		took := time.Since(began)
		r.add(func(r *faultRow) { r.worst = max(r.worst, took) })
		fresh := g.open(t, g.url, round)
		g.verdict(t, r, round, []string{key}, h, fresh, stuck)
		for _, c := range []*caller{fresh, other, holder} {
			c.close()
		}
	}
}
