package main

import (
	"bytes"
	"errors"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

// The hand-written floor: what a careful engineer writes over bbolt without a
// library. One flat bucket; a reserve that refuses a known key, a completion that
// replaces the pending value.
const (
	pendingSize   = 65
	completedSize = 265
)

var errTaken = errors.New("key is taken")

func floorKey() []byte { return []byte("\x0fpayments/create" + uuid.NewString()) }

// floorReserve and floorComplete are the two writes of one Execute.
func floorReserve(key []byte) func(*bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("keys"))
		if b.Get(key) != nil {
			return errTaken
		}
		return b.Put(key, bytes.Repeat([]byte{1}, pendingSize))
	}
}

func floorComplete(key []byte) func(*bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("keys"))
		if len(b.Get(key)) != pendingSize {
			return errTaken
		}
		return b.Put(key, bytes.Repeat([]byte{2}, completedSize))
	}
}

// viaUpdate does both writes in transactions of their own.
func viaUpdate(name string, db *bbolt.DB) variant {
	return variant{name: name, op: twoWrites(db.Update)}
}

// viaBatch does both writes through db.Batch with the given delay.
func viaBatch(name string, db *bbolt.DB, delay time.Duration) variant {
	return variant{name: name, before: func() { db.MaxBatchDelay = delay }, op: twoWrites(db.Batch)}
}

func twoWrites(write func(func(*bbolt.Tx) error) error) func() error {
	return func() error {
		key := floorKey()
		if err := write(floorReserve(key)); err != nil {
			return err
		}
		return write(floorComplete(key))
	}
}

// floorDB makes a bbolt file with n completed records, bbolt's default options.
func floorDB(dir, name string, n int) (*bbolt.DB, [][]byte, error) {
	db, err := bbolt.Open(filepath.Join(dir, name), 0o600, nil)
	if err != nil {
		return nil, nil, err
	}
	var some [][]byte
	db.NoSync = true
	for left := n; left > 0 && err == nil; left -= 5000 {
		err = db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("keys"))
			if err != nil {
				return err
			}
			for i := range min(left, 5000) {
				key := floorKey()
				if i%100 == 0 {
					some = append(some, key)
				}
				if err := b.Put(key, bytes.Repeat([]byte{2}, completedSize)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	db.NoSync = false
	if err == nil {
		err = db.Sync()
	}
	return db, some, err
}
