package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	goredis "github.com/redis/go-redis/v9"

	"github.com/goidem/idem/bench/experiment"
	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
	"github.com/goidem/idem/internal/throwaway"
)

// pingLimit bounds how long a server that was named may take to answer.
const pingLimit = 10 * time.Second

// servers are those of a run.
type servers struct {
	host    *throwaway.Host // nil: none was started
	urls    map[strategy.Server]string
	pids    map[strategy.Server][]int  // of those that were started
	missing map[strategy.Server]string // why there is none
	about   []result.Server
}

// openServers looks at the servers that were named, and starts those that are needed and
// were not. An error is about a named one: what was asked for must be there.
func openServers(ctx context.Context, p *plan, dir string, s *screen) (*servers, error) {
	all := &servers{urls: make(map[strategy.Server]string), pids: make(map[strategy.Server][]int), missing: make(map[strategy.Server]string)}
	for _, server := range []strategy.Server{strategy.Postgres, strategy.Redis, strategy.Cockroach} {
		if !p.needs(server) {
			continue
		}
		if given := p.urls[server]; given != "" {
			about, err := look(ctx, server, given)
			if err != nil {
				return all, &Error{Code: ExitServer, Err: fmt.Errorf("bench: --%s: %w", server, err), Next: "check the URL; nothing was run"}
			}
			all.about, all.urls[server] = append(all.about, about), given
			continue
		}
		if err := all.start(ctx, p, server, dir, s); err != nil {
			return all, err
		}
	}
	return all, nil
}

// durableRedis is how the run's own Redis is started: a write that was answered has been
// flushed, as PostgreSQL and bolt have it.
func durableRedis() []string { return []string{"--appendonly", "yes", "--appendfsync", "always"} }

// manyConnections has room for a pool of each strategy.
const manyConnections = "300"

// start starts a server of the run's own, or notes why there is none.
func (all *servers) start(ctx context.Context, p *plan, server strategy.Server, dir string, s *screen) (err error) {
	if server == strategy.Cockroach {
		all.missing[server] = "it needs a CockroachDB: --cockroach URL"
		return nil
	}
	if !p.ownServers {
		all.missing[server] = fmt.Sprintf("--own-servers=false, and no --%s URL", server)
		return nil
	}
	if all.host == nil {
		if all.host, err = throwaway.New(dir); err != nil {
			return err
		}
	}
	var url string
	var pid int
	switch server {
	case strategy.Postgres:
		var pg *throwaway.PG
		if pg, err = all.host.Postgres(ctx, throwaway.PGOptions{Settings: map[string]string{"max_connections": manyConnections}}); err == nil {
			url, pid = pg.AdminURL(), pg.PID()
		}
	case strategy.Redis:
		var r *throwaway.Redis
		if r, err = all.host.Redis(ctx, throwaway.RedisOptions{Args: durableRedis()}); err == nil {
			url, pid = r.URL(), r.PID()
		}
	}
	var absent *throwaway.NotInstalledError
	switch {
	case errors.As(err, &absent):
		all.missing[server] = absent.Missing()
		s.say("%s: what needs it is left out; --%s URL names a server", absent.Missing(), server)
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		all.missing[server] = "it could not be started: " + firstLine(err.Error())
		s.say("%s could not be started, what needs it is left out: %v", server, err)
		return nil
	}
	about, err := look(ctx, server, url)
	if err != nil {
		return fmt.Errorf("bench: the %s that was started: %w", server, err)
	}
	about.Own = true
	all.about, all.urls[server], all.pids[server] = append(all.about, about), url, []int{pid}
	s.say("started %s %s in %s", server, about.Version, all.host.Dir())
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

func (all *servers) close() {
	if all != nil && all.host != nil {
		all.host.Close()
	}
}

// forExperiments starts servers that may be hurt, one for each call.
func (all *servers) forExperiments(p *plan) (s experiment.Servers) {
	if all.host == nil {
		return s
	}
	s = experiment.On(all.host)
	if all.missing[strategy.Postgres] != "" || !p.needs(strategy.Postgres) {
		s.Postgres = nil
	}
	if all.missing[strategy.Redis] != "" || !p.needs(strategy.Redis) {
		s.Redis = nil
	}
	return s
}

// look asks a server who it is and how durable.
func look(ctx context.Context, server strategy.Server, url string) (result.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	about := result.Server{Name: string(server), Settings: make(map[string]string)}
	var err error
	if server == strategy.Redis {
		err = lookRedis(ctx, url, &about)
	} else {
		err = lookSQL(ctx, url, &about)
	}
	if err != nil {
		return about, fmt.Errorf("no %s answers at %s: %s", server, shown(url), why(err))
	}
	return about, nil
}

func lookSQL(ctx context.Context, url string, about *result.Server) error {
	conn, err := pgx.Connect(ctx, pgURL(url))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&about.Version); err != nil {
		return err
	}
	about.Version, _, _ = strings.Cut(about.Version, " ") // behind it, how it was packaged
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size"} {
		var value string
		if conn.QueryRow(ctx, "SHOW "+name).Scan(&value) == nil { // not every server has each
			about.Settings[name] = value
		}
	}
	return nil
}

// pgURL is the URL as the driver knows it.
func pgURL(url string) string {
	if _, rest, ok := strings.Cut(url, "://"); ok {
		return "postgres://" + rest
	}
	return url
}

func lookRedis(ctx context.Context, url string, about *result.Server) error {
	o, err := goredis.ParseURL(url)
	if err != nil {
		return err
	}
	c := goredis.NewClient(o)
	defer c.Close()
	info, err := c.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			about.Version = v
		}
	}
	for _, name := range []string{"appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy"} {
		if got, err := c.ConfigGet(ctx, name).Result(); err == nil { // a managed server may refuse
			about.Settings[name] = got[name]
		}
	}
	return nil
}

// why is the reason in words of this program: a driver's may hold what was in the URL.
func why(err error) string {
	var refused *pgconn.PgError
	var dns *net.DNSError
	var timeout net.Error
	text := strings.ToLower(err.Error())
	switch {
	case errors.As(err, &refused):
		switch refused.Code {
		case "28P01", "28000":
			return "it does not let this user in; check the user and PGPASSWORD"
		case "3D000":
			return "it has no such database"
		}
		return "it refuses with SQLSTATE " + refused.Code
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused; is it running?"
	case errors.As(err, &dns):
		return "the host's name is not known"
	case strings.HasPrefix(text, "noauth"), strings.HasPrefix(text, "wrongpass"):
		return "it does not let this user in; check the password"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("not within %v", pingLimit)
	case errors.Is(err, context.Canceled):
		return "stopped"
	}
	return "what answers there is no such server, or the URL's parameters are wrong"
}
