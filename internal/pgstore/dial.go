package pgstore

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/goidem/idem/backend"
)

// Dial makes a pool from a URL with one of the schemes, or from libpq's keywords and
// values. It does not connect. The driver's error is not used: it quotes the URL,
// and where that cannot be parsed nobody knows what in it is the password.
func Dial(ctx context.Context, url string, d Dialect, schemes ...string) (*pgxpool.Pool, error) {
	rest := url
	if scheme, after, isURL := strings.Cut(url, "://"); isURL {
		if !slices.Contains(schemes, scheme) {
			return nil, fmt.Errorf("%w: a URL for %s begins with %s://, not with %s://", backend.ErrInvalidRequest, d.Name, schemes[0], printable(scheme))
		}
		rest = "postgres://" + after
	} else if !strings.Contains(url, "=") {
		return nil, badURL(d, schemes[0])
	}
	c, err := pgxpool.ParseConfig(rest)
	if err != nil {
		return nil, badURL(d, schemes[0])
	}
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, badURL(d, schemes[0])
	}
	return pool, nil
}

func badURL(d Dialect, scheme string) error {
	return fmt.Errorf("%w: this is no URL of a %s database (it is not shown, since it may hold a password): write %s://user:password@host:port/database, with special characters of the password as %%XX, and check the parameters behind the question mark", backend.ErrInvalidRequest, d.Name, scheme)
}

// printable keeps a scheme out of messages that is not one: the text before "://"
// may be anything.
func printable(scheme string) string {
	plain := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '+' }
	if len(scheme) > 20 || strings.IndexFunc(scheme, func(r rune) bool { return !plain(r) }) >= 0 {
		return "something else"
	}
	return scheme
}

// Where names a database in messages: host, port, database and role, never the
// password.
func Where(c *pgx.ConnConfig) string {
	host := c.Host
	if !strings.HasPrefix(host, "/") { // a socket's folder
		host = net.JoinHostPort(host, strconv.Itoa(int(c.Port)))
	}
	return fmt.Sprintf("%s, database %q, role %q", host, c.Database, c.User)
}
