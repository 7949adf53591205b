package pgstore

import (
	"context"
	"fmt"

	"github.com/goidem/idem/backend"
)

// oldestCockroach has SKIP LOCKED right under LIMIT and under READ COMMITTED.
const oldestCockroach = "24.2.3"

// probeCockroach finds out what the cluster is and gives.
func probeCockroach[Tx any](ctx context.Context, db DB[Tx], where string) (backend.Guarantees, error) {
	var version, isolation, idle string
	var readOnly bool
	err := db.Do(ctx, &Stmt{
		SQL: `SELECT version(), current_setting('transaction_read_only') = 'on', current_setting('default_transaction_isolation'),
	current_setting('idle_in_transaction_session_timeout')`,
		Row: func(r Scanner) error { return r.Scan(&version, &readOnly, &isolation, &idle) },
	})
	switch {
	case err != nil:
		return backend.Guarantees{}, err
	case !isCockroach(version):
		return backend.Guarantees{}, fmt.Errorf("%w: %s is not CockroachDB, and its retry protocol would commit nothing there: use package postgres (a postgres:// URL on the command line)", ErrServer, where)
	case readOnly:
		return backend.Guarantees{}, fmt.Errorf("%w: %s: default_transaction_read_only is on for this role or database: set it to off", ErrReadOnly, where)
	}
	name, number := cockroachVersion(version)
	if !number.atLeast(24, 2, 3) {
		return backend.Guarantees{}, fmt.Errorf("%w: %s is CockroachDB %s; v%s or newer is needed", ErrServer, where, name, oldestCockroach)
	}
	return backend.Guarantees{
		ProcessCrash: backend.Survives, MachineCrash: backend.Survives, Failover: backend.Survives,
		Atomic: true, ServerClock: true, Shared: true,
		Findings: []backend.Finding{
			{Setting: "server", Value: "CockroachDB " + name, Text: "a commit is on the disks of a majority of its replicas before it is acknowledged; another replica takes over with all of them"},
			{Setting: "default_transaction_isolation", Value: isolation, Text: "idem is right under each of them; read committed makes it retry less often"},
			{Setting: "clocks", Value: "not seen from here", Text: "leases and windows are judged by the nodes' clocks, which may differ by up to the cluster's max-offset (500 ms)"},
			{Setting: "idle_in_transaction_session_timeout", Value: idle, Text: "0 means that nothing ends a transaction that its program has left open"},
		},
	}, nil
}

// crdbNumber is the three numbers of a version.
type crdbNumber [3]int

func (v crdbNumber) atLeast(major, minor, patch int) bool {
	for i, want := range [3]int{major, minor, patch} {
		if v[i] != want {
			return v[i] > want
		}
	}
	return true
}

// cockroachVersion reads "CockroachDB CCL v24.2.3 (x86_64-linux, ...)". What it
// cannot read counts as older than everything.
func cockroachVersion(text string) (name string, v crdbNumber) {
	var edition string
	if _, err := fmt.Sscanf(text, "CockroachDB %s %s", &edition, &name); err != nil {
		return "of an unknown version", v
	}
	if _, err := fmt.Sscanf(name, "v%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		return name, crdbNumber{}
	}
	return name, v
}
