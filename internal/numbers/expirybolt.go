package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/bolt"
)

// agingBolt is a store file whose clock can be moved on.
type agingBolt struct {
	*bolt.DB
	ahead atomic.Int64
}

func (r *report) agingBolt(name string) (*agingBolt, error) {
	a := &agingBolt{}
	now := func() time.Time { return time.Now().Add(time.Duration(a.ahead.Load())) }
	var err error
	a.DB, err = bolt.Open(filepath.Join(r.dir, name), &bolt.Options{Now: now})
	return a, err
}

func (a *agingBolt) age(d time.Duration) { a.ahead.Add(int64(d)) }

// The windows of what is to expire, and of what is written beside a sweep.
const (
	sweptReplay = 10 * time.Minute
	sweptKnown  = time.Hour
	keptKnown   = 1000 * time.Hour
)

// settleNew returns an operation that completes a new key with a result of 200
// bytes.
func (a *agingBolt) settleNew(replay, known time.Duration) func() error {
	ctx, body := context.Background(), bytes.Repeat([]byte{2}, 200)
	return func() error {
		ref := backend.Ref{ID: backend.ID{Operation: scope.Operation, Key: uuid.NewString()}, Owner: uuid.New()}
		res, err := a.Reserve(ctx, backend.ReserveRequest{Ref: ref, TTL: time.Minute, KnownFor: known, OnAbandoned: backend.Rerun})
		if err != nil || res.Outcome != backend.Acquired {
			return fmt.Errorf("reserve: %v, %w", res.Outcome, err)
		}
		_, err = a.Complete(ctx, backend.CompleteRequest{Ref: ref, State: backend.Completed, Body: body, ReplayFor: replay, KnownFor: known})
		return err
	}
}

// sweep removes what is due, to the end.
func (a *agingBolt) sweep() (total backend.ExpireResult, took time.Duration, err error) {
	begun := time.Now()
	for more := true; more; {
		done, err := a.Expire(context.Background(), backend.ExpireRequest{})
		if err != nil {
			return total, 0, err
		}
		total.Removed, total.Bodies = total.Removed+done.Removed, total.Bodies+done.Bodies
		more = done.More
	}
	return total, time.Since(begun), nil
}

// lone runs op again and again, with a rest of a millisecond after each, until stop
// is closed, and returns how long each took: a commit of one caller.
func lone(stop <-chan struct{}, op func() error) (took []time.Duration, err error) {
	for {
		select {
		case <-stop:
			return took, nil
		default:
		}
		begun := time.Now()
		if err := op(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
		time.Sleep(time.Millisecond)
	}
}

// loneFor is lone for a time.
func loneFor(d time.Duration, op func() error) ([]time.Duration, error) {
	stop := make(chan struct{})
	timer := time.AfterFunc(d, func() { close(stop) })
	defer timer.Stop()
	return lone(stop, op)
}

// boltSweep: a million expired records with their results, beside somebody who
// writes, against a scan of an index by time that deletes key by key.
func boltSweep(r *report) error {
	n, sample := r.size(1_000_000), r.size(200_000)
	floor, err := r.scanSweep(sample)
	if err != nil {
		return err
	}
	r.info(fmt.Sprintf("bolt: index scan that deletes %d expired records key by key", sample), "-", floor, "/s")
	store, err := r.agingBolt("sweep.db")
	if err != nil {
		return err
	}
	defer store.Close()
	if err := fill(n, store.settleNew(sweptReplay, sweptKnown)); err != nil {
		return err
	}
	beside := store.settleNew(keptKnown, keptKnown)
	before, err := loneFor(4*r.cell, beside)
	if err != nil {
		return err
	}
	store.age(2 * sweptKnown)
	type answer struct {
		took []time.Duration
		err  error
	}
	stop, answered := make(chan struct{}), make(chan answer, 1)
	go func() {
		took, err := lone(stop, beside)
		answered <- answer{took, err}
	}()
	done, took, err := store.sweep()
	close(stop)
	during := <-answered
	if err := errors.Join(err, during.err); err != nil {
		return err
	}
	if done.Removed != n || done.Bodies != n {
		return fmt.Errorf("%d records and %d results were swept; %d were due", done.Removed, done.Bodies, n)
	}
	after, err := loneFor(4*r.cell, beside)
	if err != nil {
		return err
	}
	swept, usual := float64(n)/took.Seconds(), median(seconds(before))
	r.info(fmt.Sprintf("bolt: sweep of %d expired records and their results", n), "-", swept, "/s")
	r.atLeast("bolt: sweep / index scan that deletes key by key (a smaller one, which is faster)", "-", swept/floor, 50, "x")
	r.info("bolt: median commit before the sweep", "1", usual*1e3, " ms")
	r.info("bolt: median commit beside the sweep", "1", median(seconds(during.took))*1e3, " ms")
	r.atMost("bolt: longest stall of a write beside the sweep / median commit", "1", slices.Max(seconds(during.took))/usual, 20, "x")
	r.atLeast("bolt: commits after the sweep / before, rate", "1", usual/median(seconds(after)), 0.9, "x")
	return nil
}

func seconds(ds []time.Duration) (s []float64) {
	for _, d := range ds {
		s = append(s, d.Seconds())
	}
	return s
}

// scanSweep is the hand-written floor: records under random keys, an index by the
// time at which they end, a thousand deleted in each transaction. It returns records
// per second.
func (r *report) scanSweep(n int) (float64, error) {
	db, err := bbolt.Open(filepath.Join(r.dir, "scan.db"), 0o600, nil)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	keys, ends := []byte("keys"), []byte("ends")
	db.NoSync = true
	for left := n; left > 0; left -= 5000 {
		if err := db.Update(func(tx *bbolt.Tx) error {
			k, err := tx.CreateBucketIfNotExists(keys)
			if err != nil {
				return err
			}
			e, err := tx.CreateBucketIfNotExists(ends)
			if err != nil {
				return err
			}
			for i := range min(left, 5000) {
				key := floorKey()
				at := append(binary.BigEndian.AppendUint64(nil, uint64(n-left+i)), key...)
				if err := errors.Join(k.Put(key, bytes.Repeat([]byte{2}, completedSize)), e.Put(at, nil)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return 0, err
		}
	}
	db.NoSync = false
	if err := db.Sync(); err != nil {
		return 0, err
	}
	begun := time.Now()
	for left := n; left > 0; left -= 1000 {
		if err := db.Update(func(tx *bbolt.Tx) error {
			k, e := tx.Bucket(keys), tx.Bucket(ends)
			var due [][]byte
			c := e.Cursor()
			for at, _ := c.First(); at != nil && len(due) < 1000; at, _ = c.Next() {
				due = append(due, bytes.Clone(at))
			}
			for _, at := range due {
				if err := errors.Join(k.Delete(at[8:]), e.Delete(at)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(begun).Seconds(), nil
}

// boltRounds: ten rounds are written, expire and are swept, results first.
func boltRounds(r *report) error {
	n := r.size(100_000)
	store, err := r.agingBolt("rounds.db")
	if err != nil {
		return err
	}
	defer store.Close()
	op := store.settleNew(sweptReplay, sweptKnown)
	ctx := context.Background()
	var third, last int64
	var shrunk, results, records []float64
	for round := 1; round <= 10; round++ {
		if err := fill(n, op); err != nil {
			return err
		}
		full, err := store.Stats(ctx)
		if err != nil {
			return err
		}
		store.age(2 * sweptReplay)
		done, took, err := store.sweep()
		if err != nil {
			return err
		}
		bare, err := store.Stats(ctx)
		if err != nil {
			return err
		}
		if done.Bodies != n || bare.Records != n {
			return fmt.Errorf("round %d: %d results were swept and %d records are left of %d", round, done.Bodies, bare.Records, n)
		}
		results = append(results, float64(n)/took.Seconds())
		shrunk = append(shrunk, float64(bare.Used)/float64(full.Used))
		store.age(2 * sweptKnown)
		if done, took, err = store.sweep(); err != nil {
			return err
		}
		if done.Removed != n {
			return fmt.Errorf("round %d: %d records were swept of %d", round, done.Removed, n)
		}
		records = append(records, float64(n)/took.Seconds())
		info, err := os.Stat(store.Path())
		if err != nil {
			return err
		}
		if last = info.Size(); round == 3 {
			third = last
		}
	}
	r.info(fmt.Sprintf("bolt: results of %d records swept at the end of their replay window", n), "-", median(results), "/s")
	r.info("bolt: bytes in use after that / before, results of 200 bytes", "-", median(shrunk), "x")
	r.info("bolt: the records swept at the end of their dedup window", "-", median(records), "/s")
	r.atMost(fmt.Sprintf("bolt: file after ten rounds of %d / after three", n), "-", float64(last)/float64(third), 1.2, "x")
	return nil
}
