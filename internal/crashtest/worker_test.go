package crashtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem"
	"github.com/goidem/idem/bolt"
)

// mode is how the worker uses idem.
type mode string

const (
	rerun   mode = "rerun"   // lease, exclusive file, Rerun
	hold    mode = "hold"    // lease, exclusive file, Hold
	perCall mode = "perCall" // lease, shared file, Rerun
	inTx    mode = "tx"      // effect and record in one bolt transaction
)

// point is where the worker is killed.
type point string

const (
	afterReserve  point = "afterReserve"  // fn has begun, no effect yet
	afterEffect   point = "afterEffect"   // the effect is durable, the record is not complete
	afterComplete point = "afterComplete" // Execute has returned, nobody was told
	anywhere      point = "anywhere"      // from outside, at a random moment
	nowhere       point = "nowhere"       // the survivor that cleans up
)

const (
	workerLease = 300 * time.Millisecond
	sharedLease = time.Second // eight goroutines and a lock wait of theirs
	workers     = 8
)

// keysEach is how many keys each goroutine of a worker executes: fewer where each
// of them opens the file several times.
func (m mode) keysEach() int {
	if m == perCall {
		return 10
	}
	return 40
}

var scope = idem.Scope{Operation: "crash.test"}

// world is one folder: the store, and the two ledgers outside it.
type world struct {
	dir  string
	mode mode
}

func (w world) store() string   { return filepath.Join(w.dir, "store.db") }
func (w world) effects() string { return filepath.Join(w.dir, "effects.log") }
func (w world) acks() string    { return filepath.Join(w.dir, "acks.log") }

// value is what the operation returns for a key.
func value(key string) string { return "receipt for " + key }

var effectsBucket = []byte("effects")

// work executes every key of the world once, until it is killed at its point. A
// key counts as acknowledged once its result is in the ack ledger.
func (w world) work(at point, after int64) error {
	effects, err := openLedger(w.effects())
	if err != nil {
		return err
	}
	defer effects.close()
	acks, err := openLedger(w.acks())
	if err != nil {
		return err
	}
	defer acks.close()
	file, err := bolt.Open(w.store(), &bolt.Options{PerCall: w.mode == perCall})
	if err != nil {
		return err
	}
	defer file.Close()
	o := &idem.Options{LeaseTTL: workerLease}
	switch w.mode {
	case hold:
		o.OnAbandoned = idem.Hold
	case perCall:
		o.LeaseTTL = sharedLease
	}
	store, err := idem.New(file, o)
	if err != nil {
		return err
	}
	var txs *idem.TxStore[*bbolt.Tx]
	if w.mode == inTx {
		if txs, err = idem.NewTx(file, o); err != nil {
			return err
		}
	}

	var passed atomic.Int64
	die := func(here point) {
		if here == at && passed.Add(1) == after {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way; nothing more may happen here
		}
	}
	ctx := context.Background()
	one := func(key string) error {
		var res idem.Result[string]
		var err error
		if w.mode == inTx {
			res, err = idem.ExecuteTx(ctx, txs, scope, idem.Key(key), idem.NoFingerprint(), func(_ context.Context, tx *bbolt.Tx) (string, error) {
				die(afterReserve)
				b, err := tx.CreateBucketIfNotExists(effectsBucket)
				if err != nil {
					return "", err
				}
				seq, err := b.NextSequence()
				if err != nil {
					return "", err
				}
				defer die(afterEffect)
				return value(key), b.Put(fmt.Appendf(nil, "%s#%d", key, seq), []byte{})
			})
		} else {
			res, err = idem.Execute(ctx, store, scope, idem.Key(key), idem.NoFingerprint(), func(context.Context) (string, error) {
				die(afterReserve)
				if err := effects.add(key); err != nil {
					return "", err
				}
				die(afterEffect)
				return value(key), nil
			}, idem.Wait(10*time.Second))
		}
		if err != nil {
			return err
		}
		if res.Value != value(key) {
			return fmt.Errorf("key %s gave %q", key, res.Value)
		}
		die(afterComplete)
		return acks.add(key)
	}

	var wg sync.WaitGroup
	errs := make([]error, workers)
	for n := range workers {
		wg.Go(func() {
			for i := range w.mode.keysEach() {
				key := fmt.Sprintf("key-%d-%d", n, i)
				err := one(key)
				for end := time.Now().Add(10 * time.Second); idem.Advise(err) == idem.AdviceRetry && time.Now().Before(end); {
					err = one(key) // as every caller would
				}
				if errors.Is(err, idem.ErrUnresolved) && w.mode == hold {
					continue // held after a crash: that is the promise
				}
				if err != nil {
					errs[n] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// effectCounts tells how often the effect of each key has happened.
func (w world) effectCounts() (map[string]int, error) {
	if w.mode != inTx {
		return counts(w.effects())
	}
	seen := make(map[string]int)
	if _, err := os.Stat(w.store()); os.IsNotExist(err) {
		return seen, nil // killed before there was a store
	}
	db, err := bbolt.Open(w.store(), 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return seen, db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(effectsBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, _ []byte) error {
			key, _, _ := strings.Cut(string(k), "#")
			seen[key]++
			return nil
		})
	})
}
