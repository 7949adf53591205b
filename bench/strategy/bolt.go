package strategy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/bolt"
)

// Buckets of the hand-written strategies and of effects.
var (
	keysBucket    = []byte("bench_keys")    // lint:const never written
	effectsBucket = []byte("bench_effects") // lint:const never written
)

// boltLease is idem's lease mode on one file.
func boltLease() Strategy {
	return strategy{
		Info{
			Name: "bolt-lease", Title: "idem on bolt", Family: Lease,
			Survives: "a power cut",
			Cost:     "new: 1 commit, shared with concurrent callers; duplicate: a read",
			Floor:    "bolt-batch",
		},
		func(_ context.Context, env Env) (Runner, error) {
			db, err := env.openIdemFile()
			if err != nil {
				return nil, err
			}
			do, err := doLease(env, db)
			return boltRunner(db, do, env.Effects, err)
		},
	}
}

// boltTx is idem's transactional mode, with effects in the same file.
func boltTx() Strategy {
	return strategy{
		Info{
			Name: "bolt-tx", Title: "idem on bolt, in one transaction with the effect", Family: Transactional,
			Survives: "a power cut, together with the effect",
			Cost:     "new: 1 commit with the effect, shared with concurrent callers; duplicate: a read. The work holds the file's write lock",
			Floor:    "fsync",
		},
		func(_ context.Context, env Env) (Runner, error) {
			db, err := env.openIdemFile()
			if err != nil {
				return nil, err
			}
			do, err := doTx(env, db, func(_ context.Context, tx *bbolt.Tx, op Op) error { return addEffect(tx, op.Key, op.Caller) })
			return boltRunner(db, do, boltLedger{db.Bolt()}, err)
		},
	}
}

func (e Env) openIdemFile() (*bolt.DB, error) {
	return bolt.Open(e.file(), &bolt.Options{Now: e.Now, OpenTimeout: fileWait})
}

func boltRunner(db *bolt.DB, do func(context.Context, Op) (Outcome, error), effects Ledger, err error) (Runner, error) {
	if err != nil {
		return nil, closing(err, db.Close)
	}
	flushes, err := boltFlushes(db.Bolt())
	if err != nil {
		return nil, closing(err, db.Close)
	}
	usage := func(ctx context.Context) (Usage, error) {
		s, err := db.Stats(ctx)
		return Usage{Records: int64(s.Records), StoredBytes: s.Used}, err
	}
	return &runner{do: do, effects: effects, usage: usage, flushes: flushes, close: db.Close}, nil
}

// fileWait is how long an opener waits for the process that has the file.
const fileWait = 5 * time.Second

// file is the path of the place's bbolt file.
func (e Env) file() string { return filepath.Join(e.Dir, e.Place+".db") }

// openFile opens the place's file for a hand-written strategy.
func (e Env) openFile() (*bbolt.DB, error) {
	db, err := bbolt.Open(e.file(), 0o600, &bbolt.Options{Timeout: fileWait})
	if err != nil {
		return nil, fmt.Errorf("bench: open the file of %s: %w", e.Place, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(keysBucket)
		return err
	})
	if err != nil {
		return nil, closing(err, db.Close)
	}
	return db, nil
}

// boltCheck looks a key up, runs the operation when it is not there, and notes it.
// Two callers that look before either notes both run it.
func boltCheck() Strategy {
	return strategy{
		Info{
			Name: "bolt-check", Title: "check, then act, on a bbolt file", Family: Naive,
			Survives: "a power cut",
			Cost:     "new: a read and 1 db.Batch; duplicate: a read",
		},
		func(_ context.Context, env Env) (Runner, error) {
			db, err := env.openFile()
			if err != nil {
				return nil, err
			}
			return handmade(db, env, func(ctx context.Context, op Op) (Outcome, error) {
				seen := false
				err := db.View(func(tx *bbolt.Tx) error { seen = tx.Bucket(keysBucket).Get([]byte(op.Key)) != nil; return nil })
				switch {
				case err != nil:
					return "", err
				case seen:
					return Replayed, nil
				}
				result, err := env.performOutside(ctx, op)
				if err != nil {
					return "", err
				}
				if err := db.Batch(put(op.Key, result)); err != nil {
					return "", err
				}
				return op.executed(ctx)
			})
		},
	}
}

// boltBatch is a reserve and a completion as people write them on bbolt: two writes, each
// in a db.Batch, which waits for others to share its commit with.
func boltBatch() Strategy {
	return strategy{
		Info{
			Name: "bolt-batch", Title: "floor: two db.Batch", Family: Floor,
			Survives: "a power cut",
			Cost:     "each call: 2 db.Batch, shared with concurrent callers",
		},
		func(_ context.Context, env Env) (Runner, error) {
			db, err := env.openFile()
			if err != nil {
				return nil, err
			}
			return handmade(db, env, func(ctx context.Context, op Op) (Outcome, error) {
				if err := db.Batch(put(op.Key, []byte("pending"))); err != nil {
					return "", err
				}
				result, err := env.performOutside(ctx, op)
				if err != nil {
					return "", err
				}
				if err := db.Batch(put(op.Key, result)); err != nil {
					return "", err
				}
				return op.executed(ctx)
			})
		},
	}
}

// put returns a write of a value. bbolt stores an empty one as it stores any other.
func put(key string, value []byte) func(*bbolt.Tx) error {
	return func(tx *bbolt.Tx) error { return tx.Bucket(keysBucket).Put([]byte(key), value) }
}

// handmade is the runner of a hand-written strategy on a file.
func handmade(db *bbolt.DB, env Env, do func(context.Context, Op) (Outcome, error)) (Runner, error) {
	flushes, err := boltFlushes(db)
	if err != nil {
		return nil, closing(err, db.Close)
	}
	usage := func(ctx context.Context) (u Usage, err error) {
		err = db.View(func(tx *bbolt.Tx) error {
			u.Records = int64(tx.Bucket(keysBucket).Stats().KeyN)
			free := db.Stats()
			u.StoredBytes = tx.Size() - int64(free.FreePageN+free.PendingPageN)*int64(db.Info().PageSize)
			return ctx.Err()
		})
		return u, err
	}
	return &runner{do: do, effects: env.Effects, usage: usage, flushes: flushes, close: db.Close}, nil
}

// boltFlushes counts the flushes of a bbolt file since now.
//
// It is a formula: each commit of bbolt flushes the data pages and then the meta
// page, and its number is one more than that of the last. What a growing file is
// flushed for is not in it.
func boltFlushes(db *bbolt.DB) (func(context.Context) (int64, error), error) {
	first, err := lastCommit(db)
	if err != nil {
		return nil, err
	}
	return func(context.Context) (int64, error) {
		last, err := lastCommit(db)
		return 2 * int64(last-first), err
	}, nil
}

// lastCommit is the number of the newest commit: a reader sees it as its own.
func lastCommit(db *bbolt.DB) (n int, err error) {
	err = db.View(func(tx *bbolt.Tx) error { n = tx.ID(); return nil })
	return n, err
}

// boltLedger keeps effects in a bbolt file, under numbers, so that an effect that is
// applied twice is there twice.
type boltLedger struct{ db *bbolt.DB }

// Apply implements Ledger.
func (l boltLedger) Apply(_ context.Context, key, caller string) error {
	return l.db.Batch(func(tx *bbolt.Tx) error { return addEffect(tx, key, caller) })
}

func addEffect(tx *bbolt.Tx, key, caller string) error {
	b, err := tx.CreateBucketIfNotExists(effectsBucket)
	if err != nil {
		return err
	}
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	b.FillPercent = 1 // numbers only grow, so a page that splits stays full
	value := binary.AppendUvarint(nil, uint64(len(key)))
	return b.Put(binary.BigEndian.AppendUint64(nil, n), append(append(value, key...), caller...))
}

// Counts implements Ledger.
func (l boltLedger) Counts(context.Context) (map[string]int, error) {
	all := make(map[string]int)
	err := l.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(effectsBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(_, v []byte) error {
			n, head := binary.Uvarint(v)
			if head <= 0 || n > uint64(len(v)-head) {
				return errors.New("bench: an effect in the file cannot be read")
			}
			all[string(v[head:][:n])]++
			return nil
		})
	})
	return all, err
}
