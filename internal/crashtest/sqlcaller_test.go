package crashtest

import (
	"context"
	"database/sql"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/goidem/idem"
	"github.com/goidem/idem/postgres"
)

// openSQL makes c a caller on database/sql.
func (c *caller) openSQL(ctx context.Context, url string, conns int, o *idem.Options) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	c.close = func() { db.Close() }
	s, err := postgres.NewSQL(ctx, db, &postgres.Options{Migrate: true})
	if err != nil {
		c.close()
		return err
	}
	tx, err := idem.NewTx(s, o)
	if err != nil {
		c.close()
		return err
	}
	c.store = tx.Store
	c.do = transactional(tx, func(ctx context.Context, tx *sql.Tx, key, run, pad string) error {
		_, err := tx.ExecContext(ctx, insertEffect, key, run, pad)
		return err
	})
	return nil
}
