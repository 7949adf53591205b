package postgres

import (
	"context"
	"database/sql"
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

// SQLStore is a store on database/sql: a backend.Transactional[*sql.Tx]. Methods are
// safe for concurrent use.
type SQLStore struct {
	*sqlStore
	config pgstore.Config
}

// The methods of the stores; the names keep the fields out of the documentation.
type (
	pgxStore = pgstore.Store[pgx.Tx]
	sqlStore = pgstore.Store[*sql.Tx]
)

var (
	_ backend.Transactional[pgx.Tx]  = (*Store)(nil)
	_ backend.Transactional[*sql.Tx] = (*SQLStore)(nil)
)

// New opens a store on a pool of the caller's, who closes it after the last call.
// It looks at the server, and at the tables, which have to be there unless
// Options.Migrate is set. See the package comment for the pool's settings behind a
// pooler.
func New(ctx context.Context, pool *pgxpool.Pool, o *Options) (*Store, error) {
	if pool == nil {
		return nil, fmt.Errorf("%w: the pool is nil", backend.ErrInvalidRequest)
	}
	c, err := opened(ctx, pgstore.PgxDB{Pool: pool}, pgstore.Where(pool.Config().ConnConfig), o)
	if err != nil {
		return nil, err
	}
	return newStore(pool, c), nil
}

func newStore(pool *pgxpool.Pool, c pgstore.Config) *Store {
	return &Store{pgxStore: pgstore.New(pgstore.PgxDB{Pool: pool}, c), config: c, pool: pool}
}

// NewSQL opens a store on a *sql.DB of the caller's, who closes it after the last
// call. The driver is pgx's (github.com/jackc/pgx/v5/stdlib, "pgx"). The rest is as
// for [New].
func NewSQL(ctx context.Context, db *sql.DB, o *Options) (*SQLStore, error) {
	if db == nil {
		return nil, fmt.Errorf("%w: the database is nil", backend.ErrInvalidRequest)
	}
	c, err := opened(ctx, pgstore.SQLDB{DB: db}, "the database", o)
	if err != nil {
		return nil, err
	}
	return newSQLStore(db, c), nil
}

func newSQLStore(db *sql.DB, c pgstore.Config) *SQLStore {
	return &SQLStore{sqlStore: pgstore.New(pgstore.SQLDB{DB: db}, c), config: c}
}

// Open opens a store on a pool of its own, made from a URL such as
// postgres://user:password@host:5432/database?pool_max_conns=8, or from keywords and
// values as libpq has them. Close closes the pool.
func Open(ctx context.Context, url string, o *Options) (*Store, error) {
	pool, err := pgstore.Dial(ctx, url, pgstore.PostgreSQL(), "postgres", "postgresql")
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

// Queued returns the store for work that only queues statements in a batch: reserve,
// effect, complete and commit then travel in one round trip. The work runs before
// anything is sent, so it cannot decide by what its statements find, and its outcome
// cannot be a permanent failure. It shares records and connections with s.
func (s *Store) Queued() backend.Transactional[*pgx.Batch] {
	return pgstore.NewQueued(s.pgxStore, pgstore.PgxDB{Pool: s.pool})
}

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
