package strategy

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// opener opens a strategy in an environment whose defaults are filled in.
type opener func(ctx context.Context, env Env) (Runner, error)

// Open implements Strategy.
func (s strategy) Open(ctx context.Context, env Env) (Runner, error) {
	env, err := env.complete(s.info)
	if err != nil {
		return nil, err
	}
	return s.open(ctx, env)
}

// places are the names that are valid, unquoted, as a schema and a file.
var places = regexp.MustCompile(`^[a-z0-9_]{1,32}$`) // lint:const a pattern

// complete fills the defaults in, and refuses what the strategy cannot work with.
func (e Env) complete(info Info) (Env, error) {
	if !places.MatchString(e.Place) {
		return e, fmt.Errorf("bench: the place %q is not made of 1 to 32 of a-z, 0-9 and _", e.Place)
	}
	for _, server := range info.Needs {
		if e.URLs[server] == "" {
			return e, fmt.Errorf("%w: %s needs %s and was given no URL of one", ErrNoServer, info.Name, server)
		}
	}
	if e.Effects == nil && info.Family != Transactional {
		return e, errors.New("bench: an Env without a ledger for effects")
	}
	if e.LeaseTTL == 0 {
		e.LeaseTTL = 30 * time.Second
	}
	if e.Known == 0 {
		e.Known = 24 * time.Hour
	}
	if e.Conns == 0 {
		e.Conns = 8
	}
	if e.Now == nil {
		e.Now = time.Now
	}
	if e.Sleep == nil {
		e.Sleep = sleep
	}
	return e, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
