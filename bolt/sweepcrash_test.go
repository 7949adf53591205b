package bolt

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// fastClock runs sixty times as fast as the machine's, from the same moment in all
// processes.
func fastClock(start time.Time) func() time.Time {
	return func() time.Time { return start.Add(60 * time.Since(start)) }
}

// childSweep writes records whose results, or they themselves, are soon over,
// sweeps beside that until it is killed, and logs what was acknowledged.
func childSweep() error {
	start, err := strconv.ParseInt(os.Getenv("IDEM_START"), 10, 64)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(os.Getenv("IDEM_LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	db, err := Open(os.Getenv("IDEM_FILE"), &Options{Now: fastClock(time.Unix(0, start))})
	if err != nil {
		return err
	}
	fmt.Println("open")
	ctx, failed := context.Background(), make(chan error, 16)
	var mu sync.Mutex
	for worker := range 8 {
		go func() {
			for i := 0; ; i++ {
				r := reserving(fmt.Sprintf("%s-%d-%d", os.Getenv("IDEM_ROUND"), worker, i))
				c := completeWith(r.Ref, []byte("body of "+r.ID.Key))
				c.ReplayFor, c.KnownFor = 3*time.Second, time.Hour
				switch i % 4 {
				case 1:
					c.KnownFor = 6 * time.Second
				case 2:
					c.ReplayFor = c.KnownFor
				}
				_, err := db.Reserve(ctx, r)
				var rec backend.Record
				if err == nil {
					rec, err = db.Complete(ctx, c)
				}
				if err == nil {
					mu.Lock()
					_, err = fmt.Fprintln(log, r.ID.Key, rec.Fence, rec.ReplayUntil.UnixNano(), rec.KnownUntil.UnixNano())
					mu.Unlock()
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	go func() {
		for {
			if _, err := db.Expire(ctx, backend.ExpireRequest{}); err != nil {
				failed <- err
				return
			}
		}
	}()
	return <-failed
}

// A process that is killed between any two commits of a sweep leaves a file in which
// everything is what it was acknowledged to be: results until the end of their
// replay window, keys until the end of theirs, and nothing that belongs to nobody.
func TestCaseC48_CrashBesideASweep(t *testing.T) {
	rounds := 4
	if n, err := strconv.Atoi(os.Getenv("IDEM_CRASH_ROUNDS")); err == nil {
		rounds = n
	}
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	dir, start := t.TempDir(), time.Now()
	path, logPath := filepath.Join(dir, "store.idem"), filepath.Join(dir, "acknowledged")
	clock := fastClock(time.Unix(0, start.UnixNano()))
	live, expired := 0, 0
	for round := range rounds {
		cmd := child(t, "sweep", "IDEM_FILE="+path, "IDEM_LOG="+logPath, fmt.Sprint("IDEM_START=", start.UnixNano()), fmt.Sprint("IDEM_ROUND=", round))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, _ := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
			_ = cmd.Wait()
			t.Fatalf("seed %d, round %d: the child did not start: %s", seed, round, stderrOf(cmd))
		}
		time.Sleep(time.Duration(100+rng.IntN(150)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text := stderrOf(cmd); text != "" {
			t.Fatalf("seed %d, round %d: the child failed: %s", seed, round, text)
		}
		at := clock() // stands still while we look
		db := openAt(t, path, &Options{Now: func() time.Time { return at }, PerCall: round%2 == 1})
		if err := db.Check(t.Context()); err != nil {
			t.Fatalf("seed %d, round %d: %v", seed, round, err)
		}
		log, err := os.ReadFile(logPath)
		if err != nil {
			t.Fatal(err)
		}
		records := all(t, db, backend.Filter{})
		for line := range strings.Lines(string(log)) {
			var key string
			var fence uint64
			var replayUntil, knownUntil int64
			if n, _ := fmt.Sscan(line, &key, &fence, &replayUntil, &knownUntil); n < 4 || !strings.HasSuffix(line, "\n") {
				break
			}
			rec, there := records[key]
			switch {
			case knownUntil <= at.UnixNano():
				if there {
					t.Errorf("seed %d, round %d: %s is known after its window", seed, round, key)
				}
				continue
			case rec.State != backend.Completed || rec.Fence != fence:
				t.Errorf("seed %d, round %d: %s was acknowledged and is %v", seed, round, key, rec.State)
			case replayUntil <= at.UnixNano():
				expired++
				if !rec.BodyExpired || rec.Body != nil {
					t.Errorf("seed %d, round %d: %s has a result after its replay window", seed, round, key)
				}
			default:
				live++
				if rec.BodyExpired || string(rec.Body) != "body of "+key {
					t.Errorf("seed %d, round %d: %s has %q before the end of its replay window", seed, round, key, rec.Body)
				}
			}
			if t.Failed() {
				return
			}
		}
		if round == rounds-1 { // the sweep that was cut off is finished by the next
			at = at.Add(2 * time.Hour)
			sweepAll(t, db)
			if s, err := db.Stats(t.Context()); err != nil || s.Records+s.Expired+s.Stale != 0 {
				t.Errorf("seed %d: after a sweep of all: %+v, %v", seed, s, err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if live == 0 || expired == 0 {
		t.Errorf("seed %d: %d results were live and %d expired; both must be looked at", seed, live, expired)
	}
}
