package cockroach

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/pgstore"
)

// Store is a store on a pool of pgx: a backend.Transactional[pgx.Tx]. Methods are
// safe for concurrent use.
type Store struct {
	*pgxStore
	config pgstore.Config
	pool   *pgxpool.Pool
	owned  bool // Open made the pool, so Close closes it
	close  sync.Once
}

// pgxStore has the methods; its name keeps the field out of the documentation.
type pgxStore = pgstore.Store[pgx.Tx]

var _ backend.Transactional[pgx.Tx] = (*Store)(nil)

// New opens a store on a pool of the caller's, who closes it after the last call. It
// looks at the cluster, and at the tables, which have to be there unless
// Options.Migrate is set.
func New(ctx context.Context, pool *pgxpool.Pool, o *Options) (*Store, error) {
	if pool == nil {
		return nil, fmt.Errorf("%w: the pool is nil", backend.ErrInvalidRequest)
	}
	c, err := opened(ctx, database(pool), pgstore.Where(pool.Config().ConnConfig), o)
	if err != nil {
		return nil, err
	}
	return newStore(pool, c), nil
}

func newStore(pool *pgxpool.Pool, c pgstore.Config) *Store {
	return &Store{pgxStore: pgstore.New(database(pool), c), config: c, pool: pool}
}

func database(pool *pgxpool.Pool) pgstore.CrdbDB {
	return pgstore.CrdbDB{PgxDB: pgstore.PgxDB{Pool: pool}}
}

// Open opens a store on a pool of its own, made from a URL such as
// cockroach://user:password@host:26257/database?pool_max_conns=8. A URL that begins
// with postgres:// or postgresql://, as CockroachDB's tools write it, is as good. Close
// closes the pool.
func Open(ctx context.Context, url string, o *Options) (*Store, error) {
	pool, err := pgstore.Dial(ctx, url, pgstore.CockroachDB(), "cockroach", "cockroachdb", "postgres", "postgresql")
	if err != nil {
		return nil, err
	}
	s, err := New(ctx, pool, o)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// Join implements backend.Transactional. Where the caller's transaction has to be run
// again, its error has the SQLSTATE 40001, so that cockroach-go's ExecuteTx does so.
func (s *Store) Join(ctx context.Context, tx pgx.Tx, r backend.ReserveRequest, work backend.Work[pgx.Tx]) (backend.Reservation, error) {
	res, err := s.pgxStore.Join(ctx, tx, r, work)
	if errors.Is(err, backend.ErrRetryTransaction) {
		err = restartError{err}
	}
	return res, err
}

// restartError is what cockroach-go takes for a wish of the server.
type restartError struct{ error }

// SQLState implements what cockroach-go looks for.
func (restartError) SQLState() string { return "40001" }

func (e restartError) Unwrap() error { return e.error }

// Pool returns the pool behind the store, for effects of the caller's own.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Close waits for calls that are under way and closes the pool, if Open made it.
// Otherwise it does nothing: there is nothing of the store's to close. Closing again
// does nothing. Its error is always nil.
func (s *Store) Close() error {
	if s.owned {
		s.close.Do(s.pool.Close)
	}
	return nil
}
