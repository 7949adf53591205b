package postgres_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/goidem/idem"
	"github.com/goidem/idem/internal/testdb"
	"github.com/goidem/idem/postgres"
)

// The examples need a server, so they have no output that go test compares: TestExamples runs them.

// lint:const set once, before the examples run
var exampleURL = "postgres://app@localhost/app"

func TestExamples(t *testing.T) {
	pg := testdb.Postgres(t)
	exampleURL = pg.Database(t)
	pg.Exec(t, exampleURL, "CREATE TABLE payments (id serial PRIMARY KEY, account text, cents int)")
	for name, example := range map[string]func(ctx context.Context) error{
		"pgx": payOnce, "join": payInOwnTransaction, "queued": payQueued, "database/sql": payWithSQL, "sqlc": payWithQueries,
	} {
		for range 2 { // the second time is a replay
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := example(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
		}
		if n := pg.Exec(t, exampleURL, "SELECT count(*) FROM payments WHERE account = '"+name+"'"); n[0] != "1" {
			t.Errorf("%s: %s payments, want 1", name, n[0])
		}
	}
}

// The effect and the record of the key commit together, or not at all.
func payOnce(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, exampleURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	db, err := postgres.New(ctx, pool, &postgres.Options{Migrate: true})
	if err != nil {
		return err
	}
	store, err := idem.NewTx(db, nil)
	if err != nil {
		return err
	}
	res, err := idem.ExecuteTx(ctx, store, idem.Scope{Operation: "pay"}, "order-1", idem.FingerprintJSON(4200),
		func(ctx context.Context, tx pgx.Tx) (id int, err error) {
			err = tx.QueryRow(ctx, "INSERT INTO payments (account, cents) VALUES ($1, $2) RETURNING id", "pgx", 4200).Scan(&id)
			return id, err
		})
	fmt.Println("payment", res.Value, "replayed", res.Replayed)
	return err
}

// A transaction of the caller's own stays the caller's: it commits, and it stays
// usable when the key turns out to be taken.
func payInOwnTransaction(ctx context.Context) error {
	db, err := postgres.Open(ctx, exampleURL, &postgres.Options{Migrate: true})
	if err != nil {
		return err
	}
	defer db.Close()
	store, err := idem.NewTx(db, nil)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, db.Pool(), func(tx pgx.Tx) error {
		_, err := idem.ExecuteIn(ctx, store, tx, idem.Scope{Operation: "pay"}, "order-2", idem.NoFingerprint(),
			func(ctx context.Context, tx pgx.Tx) (string, error) {
				_, err := tx.Exec(ctx, "INSERT INTO payments (account, cents) VALUES ($1, $2)", "join", 4200)
				return "paid", err
			})
		return err
	})
}

// Work that only queues statements goes to the server in one round trip, together
// with the record and the commit.
func payQueued(ctx context.Context) error {
	db, err := postgres.Open(ctx, exampleURL, &postgres.Options{Migrate: true})
	if err != nil {
		return err
	}
	defer db.Close()
	store, err := idem.NewTx(db.Queued(), nil)
	if err != nil {
		return err
	}
	_, err = idem.ExecuteTx(ctx, store, idem.Scope{Operation: "pay"}, "order-3", idem.NoFingerprint(),
		func(_ context.Context, b *pgx.Batch) (string, error) {
			b.Queue("INSERT INTO payments (account, cents) VALUES ($1, $2)", "queued", 4200)
			return "paid", nil
		})
	return err
}

// database/sql, with pgx's driver.
func payWithSQL(ctx context.Context) error {
	conn, err := sql.Open("pgx", exampleURL)
	if err != nil {
		return err
	}
	defer conn.Close()
	db, err := postgres.NewSQL(ctx, conn, &postgres.Options{Migrate: true})
	if err != nil {
		return err
	}
	store, err := idem.NewTx(db, nil)
	if err != nil {
		return err
	}
	_, err = idem.ExecuteTx(ctx, store, idem.Scope{Operation: "pay"}, "order-4", idem.NoFingerprint(),
		func(ctx context.Context, tx *sql.Tx) (string, error) {
			_, err := tx.ExecContext(ctx, "INSERT INTO payments (account, cents) VALUES ($1, $2)", "database/sql", 4200)
			return "paid", err
		})
	return err
}

// Queries is what sqlc generates.
type Queries struct {
	db interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}
}

// WithTx is what sqlc generates.
func (q *Queries) WithTx(tx pgx.Tx) *Queries { return &Queries{db: tx} }

// Payment is a row.
type Payment struct {
	ID      int
	Account string
}

// InsertPayment is what sqlc generates.
func (q *Queries) InsertPayment(ctx context.Context, account string, cents int) (p Payment, err error) {
	err = q.db.QueryRow(ctx, "INSERT INTO payments (account, cents) VALUES ($1, $2) RETURNING id, account", account, cents).Scan(&p.ID, &p.Account)
	return p, err
}

// Generated queries take part through WithTx.
func payWithQueries(ctx context.Context) error {
	db, err := postgres.Open(ctx, exampleURL, &postgres.Options{Migrate: true})
	if err != nil {
		return err
	}
	defer db.Close()
	store, err := idem.NewTx(db, nil)
	if err != nil {
		return err
	}
	queries := &Queries{db: db.Pool()}
	_, err = idem.ExecuteTx(ctx, store, idem.Scope{Operation: "pay"}, "order-5", idem.NoFingerprint(),
		func(ctx context.Context, tx pgx.Tx) (Payment, error) {
			return queries.WithTx(tx).InsertPayment(ctx, "sqlc", 4200)
		})
	return err
}

func ExampleNew() {
	if err := payOnce(context.Background()); err != nil {
		fmt.Println(err)
	}
}

func ExampleOpen() {
	if err := payInOwnTransaction(context.Background()); err != nil {
		fmt.Println(err)
	}
}

func ExampleStore_Queued() {
	if err := payQueued(context.Background()); err != nil {
		fmt.Println(err)
	}
}

func ExampleNewSQL() {
	if err := payWithSQL(context.Background()); err != nil {
		fmt.Println(err)
	}
}

func ExampleNew_sqlc() {
	if err := payWithQueries(context.Background()); err != nil {
		fmt.Println(err)
	}
}
