package strategy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// Erase removes what strategies have stored in env.Place, on every server of env and
// in env.Dir. No Runner may be open there. It touches nothing outside places: their
// schemas, keys and files begin with names of their own.
func Erase(ctx context.Context, env Env) error {
	if !places.MatchString(env.Place) {
		return fmt.Errorf("bench: the place %q is none", env.Place)
	}
	var failed error
	for _, end := range []string{".db", ".log"} {
		if err := os.Remove(filepath.Join(env.Dir, env.Place+end)); !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	for _, server := range []Server{Postgres, Cockroach} {
		if env.URLs[server] != "" {
			failed = errors.Join(failed, eraseSQL(ctx, env, server))
		}
	}
	if env.URLs[Redis] != "" {
		failed = errors.Join(failed, eraseRedis(ctx, env))
	}
	return failed
}

func eraseSQL(ctx context.Context, env Env, server Server) error {
	conn, err := pgx.Connect(ctx, env.URLs[server])
	if err != nil {
		return fmt.Errorf("bench: connect to %s: %w", server, err)
	}
	_, err = conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+sqlSchema(env.Place)+" CASCADE")
	return errors.Join(err, conn.Close(ctx))
}

func eraseRedis(ctx context.Context, env Env) error {
	p, err := openRedis(env)
	if err != nil {
		return err
	}
	err = p.each(ctx, func(keys []string) error {
		if len(keys) == 0 {
			return nil
		}
		return p.admin.Unlink(ctx, keys...).Err()
	})
	return errors.Join(err, p.close())
}
