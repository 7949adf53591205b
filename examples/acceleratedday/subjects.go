package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	goredis "github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/bolt"
	"github.com/goidem/idem/cockroach"
	"github.com/goidem/idem/postgres"
	"github.com/goidem/idem/redis"
)

// subject is a store to live through a day.
type subject struct {
	name    string
	backend backend.Backend
	size    func(context.Context) (int64, error) // in bytes; -1: not known
}

// open opens the stores that were asked for, and starts the servers. stop gives
// everything back, also after an error.
func open(ctx context.Context, s *settings, dir string, w io.Writer) (subjects []*subject, stop func(), err error) {
	var undo []func() error
	stop = func() {
		for i := len(undo) - 1; i >= 0; i-- {
			_ = undo[i]()
		}
	}
	subjects = append(subjects, &subject{"memory", memory.New(nil), func(context.Context) (int64, error) { return -1, nil }})

	file, err := bolt.Open(filepath.Join(dir, "day.db"), nil)
	if err != nil {
		return nil, stop, err
	}
	undo = append(undo, file.Close)
	subjects = append(subjects, &subject{"bolt", file, func(ctx context.Context) (int64, error) {
		disk, err := file.Stats(ctx)
		return disk.Used, err
	}})

	stores := s.stores
	if s.servers {
		started, end, err := startServers(ctx, w)
		undo = append(undo, end)
		if err != nil {
			return nil, stop, err
		}
		stores = append(stores, started...)
	}
	for _, name := range stores {
		sub, end, err := openServer(ctx, name)
		if err != nil {
			return nil, stop, err
		}
		undo = append(undo, end)
		subjects = append(subjects, sub)
	}
	return subjects, stop, nil
}

func openServer(ctx context.Context, name string) (*subject, func() error, error) {
	u, err := url.Parse(name)
	if err != nil {
		return nil, nil, errors.New("a -store is no URL") // which may hold a password
	}
	switch u.Scheme {
	case "postgres", "postgresql":
		return openPostgres(ctx, name)
	case "cockroach", "cockroachdb":
		return openCockroach(ctx, name)
	case "redis", "rediss":
		return openRedis(ctx, name)
	}
	return nil, nil, fmt.Errorf("-store knows postgres://, cockroach:// and redis:// URLs, and not %s://", u.Scheme)
}

func openPostgres(ctx context.Context, name string) (*subject, func() error, error) {
	pool, err := pgxpool.New(ctx, name)
	if err != nil {
		return nil, nil, errors.New("the postgres:// URL cannot be used")
	}
	store, err := postgres.New(ctx, pool, &postgres.Options{Migrate: true})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	size := func(ctx context.Context) (n int64, err error) {
		err = pool.QueryRow(ctx, "SELECT pg_total_relation_size('idem_records')").Scan(&n)
		return n, err
	}
	return &subject{"postgres", store, size}, func() error { err := store.Close(); pool.Close(); return err }, nil
}

func openCockroach(ctx context.Context, name string) (*subject, func() error, error) {
	store, err := cockroach.Open(ctx, name, &cockroach.Options{Migrate: true})
	if err != nil {
		return nil, nil, err
	}
	// A table is as large as its ranges, on all nodes, with what waits for garbage
	// collection. No cluster was there to try a statement that says so.
	unknown := func(context.Context) (int64, error) { return -1, nil }
	return &subject{"cockroach", store, unknown}, store.Close, nil
}

func openRedis(ctx context.Context, name string) (*subject, func() error, error) {
	o, err := goredis.ParseURL(name)
	if err != nil {
		return nil, nil, errors.New("the redis:// URL cannot be used")
	}
	client := goredis.NewClient(o)
	store, err := redis.New(ctx, client, nil)
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	memory := func(ctx context.Context) (int64, error) {
		info, err := client.Info(ctx, "memory").Result()
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(info) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
				return strconv.ParseInt(v, 10, 64)
			}
		}
		return -1, nil
	}
	empty, err := memory(ctx)
	size := func(ctx context.Context) (int64, error) {
		n, err := memory(ctx)
		return max(n-empty, 0), err
	}
	return &subject{"redis", store, size}, func() error { return errors.Join(store.Close(), client.Close()) }, err
}
