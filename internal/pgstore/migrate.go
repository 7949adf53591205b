package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goidem/idem/backend"
)

// migrationLock is the advisory lock of everyone who migrates in a database,
// whatever the schema and prefix: two of them may share a schema that has to be made.
// The bytes spell "idem", twice.
const migrationLock = 0x6964656d_6964656d

// Tries of a migration that another one got in the way of, and the pause between
// them.
const (
	migrateTries = 60
	longestPause = 200 * time.Millisecond
)

// Migrate brings the schema to the newest version. Any number of processes may do so
// at the same time. Where nothing is to be done, reading the schema table is all
// that it does, and no right to create anything is needed.
func Migrate[Tx any](ctx context.Context, db DB[Tx], n Names, d Dialect) error {
	all := Migrations(n, d)
	apply := migrateLocked[Tx]
	if !d.isPostgres() {
		apply = migrateStepwise[Tx]
	}
	var last string
	for range migrateTries {
		v, err := readVersion(ctx, db.Do, n)
		if err != nil && !migrateAgain(err) {
			return err
		}
		if err == nil {
			if v.found >= len(all) {
				return v.judge(n, len(all))
			}
			if err = apply(ctx, db, n, &all[v.found]); err != nil && !migrateAgain(err) {
				return err
			}
		}
		if err != nil {
			last = code(err)
			if err := migratePause(ctx); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("idem: the migration of %s was interrupted %d times, the last time with SQLSTATE %q; every attempt was rolled back or is repeatable: run it again", n.Schema, migrateTries, last)
}

// migrateAgain reports whether a migration failed only because of another one beside it,
// or left open whether it went through: the next look at the schema table tells.
func migrateAgain(err error) bool {
	if errors.Is(err, backend.ErrOutcomeUnknown) || isUnknown(err) || isRetry(err) || isUnique(err) {
		return true
	}
	switch code(err) {
	case "42P07", "42P06", "42710", // there is such a table, schema, object by now
		"55000", "55006", "XX000": // an object is in the middle of another schema change
		return true
	}
	return false
}

func migratePause(ctx context.Context) error {
	t := time.NewTimer(rand.N(longestPause) + time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// migrateLocked applies one migration in a transaction of its own, under an
// advisory lock that ends with it: a lock of the session would stay on some
// server connection behind a pooler.
func migrateLocked[Tx any](ctx context.Context, db DB[Tx], n Names, m *Migration) error {
	// Under a stricter default isolation the wait for the lock would leave the
	// transaction with a snapshot from before it, which does not see what the last
	// holder has done.
	link, err := db.Begin(ctx,
		&Stmt{SQL: "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE"},
		&Stmt{SQL: fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", migrationLock)})
	if err != nil {
		return err
	}
	committed := false
	defer func() {
		if !committed {
			link.Rollback(ctx)
		}
	}()
	do := func(ctx context.Context, s *Stmt) error { return link.Do(ctx, s) }
	var there bool
	err = do(ctx, &Stmt{SQL: "SELECT to_regclass($1::text) IS NOT NULL", Args: []any{n.Schema}, Row: func(s Scanner) error { return s.Scan(&there) }})
	if err != nil {
		return err
	}
	var v version
	if there {
		if v, err = readVersion(ctx, do, n); err != nil {
			return err
		}
	}
	if v.found >= m.Version {
		return nil // another one was here while this one waited
	}
	ss, err := m.toApply(ctx, do, n)
	if err != nil {
		return err
	}
	for _, s := range ss {
		// One at a time: a driver that prepares what travels together would prepare a
		// statement on a table that the one before it is to create.
		if err := link.Do(ctx, s); err != nil {
			return err
		}
	}
	committed = true // Commit ends the link, whatever its answer
	return link.Commit(ctx)
}

// migrateStepwise applies one migration on a server that has no advisory locks and
// changes schemas outside of transactions: each statement alone, each repeatable,
// the version last. Of two that do so at once both may run everything.
func migrateStepwise[Tx any](ctx context.Context, db DB[Tx], n Names, m *Migration) error {
	ss, err := m.toApply(ctx, db.Do, n)
	if err != nil {
		return err
	}
	for _, s := range ss {
		if err := db.Do(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// toApply returns the statements, without the one that makes a schema which is there:
// it asks for the right to create schemas even then.
func (m *Migration) toApply(ctx context.Context, do func(context.Context, *Stmt) error, n Names) ([]*Stmt, error) {
	var there bool
	if n.Namespace != "" {
		err := do(ctx, &Stmt{
			SQL:  "SELECT count(*) > 0 FROM pg_catalog.pg_namespace WHERE nspname = $1::text",
			Args: []any{n.Namespace},
			Row:  func(s Scanner) error { return s.Scan(&there) },
		})
		if err != nil {
			return nil, err
		}
	}
	var ss []*Stmt
	for _, sql := range m.statements() {
		if there && sql == createNamespace(n) {
			continue
		}
		ss = append(ss, &Stmt{SQL: sql})
	}
	return ss, nil
}
