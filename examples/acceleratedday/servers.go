package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/goidem/idem/internal/throwaway"
)

// startServers starts the servers that are installed, with durable settings, and
// returns their URLs. end removes them.
func startServers(ctx context.Context, w io.Writer) (urls []string, end func() error, err error) {
	host, err := throwaway.New("")
	if err != nil {
		return nil, func() error { return nil }, err
	}
	end = func() error { host.Close(); return nil }
	// The vacuum is as much faster as the day: it comes round every minute otherwise.
	pg, err := host.Postgres(ctx, throwaway.PGOptions{Settings: map[string]string{"autovacuum_naptime": "1s"}})
	switch {
	case errors.Is(err, throwaway.ErrNotInstalled):
		fmt.Fprintln(w, "left out:", err)
	case err != nil:
		return nil, end, err
	default:
		url, err := pg.CreateDatabase("day")
		if err != nil {
			return nil, end, err
		}
		urls = append(urls, url)
	}
	server, err := host.Redis(ctx, throwaway.RedisOptions{Args: []string{"--appendonly", "yes", "--appendfsync", "always"}})
	switch {
	case errors.Is(err, throwaway.ErrNotInstalled):
		fmt.Fprintln(w, "left out:", err)
	case err != nil:
		return nil, end, err
	default:
		urls = append(urls, server.URL())
	}
	return urls, end, nil
}
