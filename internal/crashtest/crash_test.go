package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goidem/idem"
	"github.com/goidem/idem/bolt"
	"github.com/goidem/idem/internal/testdb"
)

// The worker is this test binary, started again with its orders in the
// environment.
const (
	envDir   = "IDEM_CRASH_DIR"
	envMode  = "IDEM_CRASH_MODE"
	envPoint = "IDEM_CRASH_POINT"
	envAfter = "IDEM_CRASH_AFTER"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(envDir); dir != "" {
		after, _ := strconv.ParseInt(os.Getenv(envAfter), 10, 64)
		w := world{dir: dir, mode: mode(os.Getenv(envMode))}
		if err := w.work(point(os.Getenv(envPoint)), after); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if orders := os.Getenv(envOrders); orders != "" {
		if err := obey(orders); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testdb.Main(m, func() error {
		// go-redis tries a killed server again each second, and sees only then that its pool is closed.
		return goleak.Find(goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
	})
}

// start runs a worker in a process of its own and reports how it ended.
func (w world) start(t *testing.T, at point, after int64) (killed bool) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envDir+"="+w.dir, envMode+"="+string(w.mode), envPoint+"="+string(at), envAfter+"="+strconv.FormatInt(after, 10))
	out := &tail{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if at == anywhere {
		known := w.ackBytes()
		go func() {
			// Not before this worker has acknowledged something: a kill during start-up
			// would show nothing.
			for end := time.Now().Add(5 * time.Second); w.ackBytes() == known && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Duration(after) * time.Millisecond)
			cmd.Process.Kill()
		}()
	}
	err = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		if ws.Signal() != syscall.SIGKILL {
			t.Fatalf("worker (%s, %s) ended by %v: %s", w.mode, at, ws.Signal(), out)
		}
		return true
	}
	if err != nil {
		t.Fatalf("worker (%s, %s): %v: %s", w.mode, at, err, out)
	}
	return false
}

// ackBytes is how much the workers of this world have acknowledged so far.
func (w world) ackBytes() int64 {
	info, err := os.Stat(w.acks())
	if err != nil {
		return 0
	}
	return info.Size()
}

// tail keeps the end of what a worker wrote.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if over := len(t.b) - 4096; over > 0 {
		t.b = t.b[over:]
	}
	return len(p), nil
}

func (t *tail) String() string { return string(t.b) }

// TestCrash kills workers at each point, in each mode. After every kill it asks:
// is each acknowledged key replayed, with its own result, without running again?
// At the end a worker that nobody kills finishes the rest, and effects are counted
// in a ledger outside the store.
//
// The default is a short run; IDEM_CRASH_ROUNDS=200 (make crash) is the proof.
func TestCrash(t *testing.T) {
	rounds := 16 // each mode at each point
	if v := os.Getenv("IDEM_CRASH_ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			t.Fatalf("IDEM_CRASH_ROUNDS=%q: it must be a positive number", v)
		}
		rounds = n
	}
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("IDEM_TEST_SEED"); v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("seed %d (IDEM_TEST_SEED)", seed)
	modes := []mode{rerun, hold, perCall, inTx}
	points := []point{afterReserve, afterEffect, afterComplete, anywhere}
	var (
		mu    sync.Mutex
		total tally
		wg    sync.WaitGroup
		slots = make(chan struct{}, 4) // rounds wait for leases and disks more than they compute
	)
	for n := range rounds {
		w := world{mode: modes[n%len(modes)]}
		at := points[n/len(modes)%len(points)]
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			t.Run(fmt.Sprintf("%03d/%s/%s", n, w.mode, at), func(t *testing.T) {
				w.dir = t.TempDir()
				var one tally
				w.round(t, at, rand.New(rand.NewPCG(seed, uint64(n))), &one)
				mu.Lock()
				defer mu.Unlock()
				total.add(one)
			})
		})
	}
	wg.Wait()
	t.Logf("%d rounds: %d kills that fired, %d keys acknowledged before a kill, %d lost, %d of them run again, %d keys with two effects (all of them unacknowledged, Rerun)",
		rounds, total.kills, total.acked, total.lost, total.again, total.twice)
	if total.kills == 0 {
		t.Error("no kill fired: the experiment did not bite")
	}
}

type tally struct{ kills, acked, lost, again, twice int }

func (t *tally) add(o tally) {
	t.kills, t.acked, t.lost, t.again, t.twice = t.kills+o.kills, t.acked+o.acked, t.lost+o.lost, t.again+o.again, t.twice+o.twice
}

// round kills one world's worker three times and then lets one finish.
func (w world) round(t *testing.T, at point, rnd *rand.Rand, total *tally) {
	crashed := make(map[string]bool)
	for range 3 {
		after := 1 + rnd.Int64N(int64(workers*w.mode.keysEach())/3)
		if at == anywhere {
			after = rnd.Int64N(100) // milliseconds
		}
		if w.start(t, at, after) {
			total.kills++
		}
		acked, err := counts(w.acks())
		if err != nil {
			t.Fatal(err)
		}
		before, err := w.effectCounts()
		if err != nil {
			t.Fatal(err)
		}
		total.acked += len(acked)
		w.checkAcked(t, acked, total)
		after2, err := w.effectCounts()
		if err != nil {
			t.Fatal(err)
		}
		for key := range acked {
			if after2[key] != before[key] {
				total.again++
				t.Errorf("acknowledged key %s ran again: %d effects, %d before", key, after2[key], before[key])
			}
		}
		for key := range before {
			if acked[key] == 0 {
				crashed[key] = true // its effect happened and nobody was told
			}
		}
	}
	w.start(t, nowhere, 0)

	effects, err := w.effectCounts()
	if err != nil {
		t.Fatal(err)
	}
	acked, err := counts(w.acks())
	if err != nil {
		t.Fatal(err)
	}
	for n := range workers {
		for i := range w.mode.keysEach() {
			key := fmt.Sprintf("key-%d-%d", n, i)
			count := effects[key]
			switch {
			case w.mode == inTx && count != 1:
				t.Errorf("%s: %d effects; in one transaction it is one, always", key, count)
			case w.mode == hold && count > 1:
				t.Errorf("%s: %d effects under Hold", key, count)
			case w.mode == hold && count == 0 && acked[key] > 0:
				t.Errorf("%s: acknowledged without an effect", key)
			case w.mode != hold && count == 0:
				t.Errorf("%s: never ran", key)
			case count > 1 && !crashed[key]:
				t.Errorf("%s: %d effects, and no crash explains the second", key, count)
			case count > 1:
				total.twice++
			}
		}
	}
}

// checkAcked opens the store as the next process would and asks for every
// acknowledged key.
func (w world) checkAcked(t *testing.T, acked map[string]int, total *tally) {
	if _, err := os.Stat(w.store()); len(acked) == 0 && os.IsNotExist(err) {
		return // killed before there was a store
	}
	file, err := bolt.Open(w.store(), &bolt.Options{PerCall: w.mode == perCall, MustExist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	store, err := idem.New(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for key := range acked {
		res, err := idem.Execute(ctx, store, scope, idem.Key(key), idem.NoFingerprint(), func(context.Context) (string, error) {
			total.again++
			return "", fmt.Errorf("acknowledged key %s ran again", key)
		})
		if err != nil || !res.Replayed || res.Value != value(key) {
			total.lost++
			t.Errorf("acknowledged key %s: %+v, %v", key, res, err)
		}
	}
	if err := file.Check(ctx); err != nil {
		t.Errorf("the file does not check: %v", err)
	}
}
