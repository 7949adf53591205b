package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/google/uuid"

	"github.com/goidem/idem"
	"github.com/goidem/idem/bolt"
	"github.com/goidem/idem/expiry"
)

// resultSize is the result of every record of which the size is measured.
const resultSize = 200

// recordBytes: what a record takes on each backend, less its result, against the
// constants of the forecast.
func recordBytes(r *report) error {
	for _, m := range []struct {
		name     string
		each     func(n int) (float64, error)
		records  int
		forecast float64
	}{
		{expiry.Bolt, r.boltBytes, 100_000, expiry.BoltRecord},
		{expiry.Redis, redisBytes, 10_000, expiry.RedisRecord},
		{expiry.Postgres, pgBytes, 100_000, expiry.PostgresRecord},
	} {
		each, err := m.each(max(r.size(m.records), 2000))
		if err != nil {
			return err
		}
		r.info(m.name+": bytes per record without its result", "-", each-resultSize, " B")
		r.atMost(m.name+": bytes per record / forecast", "-", each/(m.forecast+resultSize), 1.25, "x")
		r.atLeast(m.name+": bytes per record / forecast", "-", each/(m.forecast+resultSize), 0.75, "x")
	}
	return nil
}

// storeRecords executes n new keys with a result of resultSize.
func storeRecords(store *idem.Store, n int) error {
	ctx, hash, body := context.Background(), idem.FingerprintBytes([]byte("request")), make([]byte, resultSize)
	return fill(n, func() error {
		_, err := idem.Execute(ctx, store, scope, idem.Key(uuid.NewString()), hash, func(context.Context) ([]byte, error) { return body, nil })
		return err
	})
}

// pgBytes is what a record takes of the table with its indexes.
func pgBytes(n int) (each float64, err error) {
	err = withPG(8, func(b *pgBench) error {
		empty, err := b.size()
		if err != nil {
			return err
		}
		if err := storeRecords(b.store, n); err != nil {
			return err
		}
		full, err := b.size()
		each = (full - empty) / float64(n)
		return err
	})
	return each, err
}

// redisBytes is what a record takes by MEMORY USAGE.
func redisBytes(n int) (each float64, err error) {
	err = withRedis(func(b *redisBench) error {
		if err := storeRecords(b.store, n); err != nil {
			return err
		}
		ctx, keys, total := context.Background(), 0, int64(0)
		for at := b.raw.Scan(ctx, 0, "*", 1000).Iterator(); at.Next(ctx); {
			size, err := b.raw.MemoryUsage(ctx, at.Val()).Result()
			if err != nil {
				return err
			}
			keys, total = keys+1, total+size
		}
		if keys < n {
			return fmt.Errorf("%d keys of %d records", keys, n)
		}
		each = float64(total) / float64(n)
		return nil
	})
	return each, err
}

// boltBytes is what a record takes of the pages in use.
func (r *report) boltBytes(n int) (float64, error) {
	file, err := bolt.Open(filepath.Join(r.dir, uuid.NewString()), nil)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	store, err := idem.New(file, nil)
	if err != nil {
		return 0, err
	}
	if err := storeRecords(store, n); err != nil {
		return 0, err
	}
	s, err := file.Stats(context.Background())
	if err == nil && s.Records != n {
		err = fmt.Errorf("%d records of %d", s.Records, n)
	}
	return float64(s.Used) / float64(n), err
}
