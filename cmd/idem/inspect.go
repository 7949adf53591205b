package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/bolt"
	"github.com/goidem/idem/cmd/idem/internal/storage"
	"github.com/goidem/idem/cmd/idem/internal/view"
)

func newStats(store *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count what is in the store",
		Long: `Counts the records of the store by state and operation, with the bytes of their
results, and shows the size of the file, what has expired, and whether idem sweep
or idem compact would pay. It reads the whole store; a database counts by itself
and sends the sums. Nothing is changed.`,
		Example: `  idem stats
  idem stats --json | jq .states`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if u, ok, err := serverURL(*store); err != nil || ok {
				return first(err, serverStats(cmd.Context(), u, asJSON))
			}
			file, err := openFile(*store, storage.Look)
			if err != nil {
				return err
			}
			disk, err := file.Stats(cmd.Context())
			if err != nil {
				return &storeError{err: err}
			}
			s, err := over(file, nil)
			if err != nil {
				return err
			}
			sum, err := view.Summarise(s.List(cmd.Context(), idem.Filter{}))
			if err != nil {
				return err
			}
			sum.File = view.File{
				Path: file.Path(), Bytes: disk.Size, Used: disk.Used,
				Expired: disk.Expired, Due: disk.Due, StaleResults: disk.Stale,
			}
			if asJSON {
				return printOneJSON(sum)
			}
			return sum.Write(os.Stdout)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newDoctor(store *string) *cobra.Command {
	var (
		require                               backend.Guarantees
		processCrash, machineCrash, replicate bool
		asJSON                                bool
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what the store promises, and what falls short",
		Long: `Looks at the store and at what it lies on, and says what survives which accident,
what was looked at, and what to change where something falls short. Nothing is
changed.

The status is 0 whatever is found, unless something is required: then it is 78 when
the store gives less.`,
		Example: `  idem doctor
  idem doctor --require-machine-crash --require-shared
  idem doctor --json | jq '.findings[] | select(.want)'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, care, where, err := examine(cmd.Context(), *store)
			if err != nil {
				return err
			}
			g := found
			g.Findings = append(append([]backend.Finding(nil), found.Findings...), care...)
			if err := view.Doctor(os.Stdout, where, &g, asJSON); err != nil {
				return err
			}
			for _, c := range []struct {
				asked bool
				grade *backend.Survival
			}{{processCrash, &require.ProcessCrash}, {machineCrash, &require.MachineCrash}, {replicate, &require.Failover}} {
				if c.asked {
					*c.grade = backend.Survives
				}
			}
			// Only what weakens a guarantee is its reason, not the care of the file.
			return found.Check(&require)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&processCrash, "require-process-crash", false, "fail unless results survive a crash of the process")
	f.BoolVar(&machineCrash, "require-machine-crash", false, "fail unless results survive a power loss")
	f.BoolVar(&replicate, "require-failover", false, "fail unless results survive a failover")
	f.BoolVar(&require.Atomic, "require-atomic", false, "fail unless effect and record can commit together")
	f.BoolVar(&require.ServerClock, "require-server-clock", false, "fail unless the store's own clock decides")
	f.BoolVar(&require.Shared, "require-shared", false, "fail unless several processes may use the store")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// examine opens the store and returns what it gives, what else is worth knowing, and
// its name without secrets.
func examine(ctx context.Context, name string) (g backend.Guarantees, care []backend.Finding, where string, err error) {
	u, ok, err := serverURL(name)
	if err != nil {
		return g, nil, "", err
	}
	if ok {
		s, err := openServer(ctx, u)
		if err != nil {
			return g, nil, "", err
		}
		return s.Guarantees(), nil, u.String(), nil
	}
	file, err := openFile(name, storage.Look)
	if err != nil {
		return g, nil, "", err
	}
	if care, err = fileCare(ctx, file); err != nil {
		return g, nil, "", &storeError{err: err}
	}
	return file.Guarantees(), care, file.Path(), nil
}

// serverStats counts what is in a store on a server: there, if it can.
func serverStats(ctx context.Context, u *storage.URL, asJSON bool) error {
	b, err := openServer(ctx, u)
	if err != nil {
		return err
	}
	sum, err := summary(ctx, b)
	if err != nil {
		return err
	}
	if l, ok := b.(backend.Backlogger); ok {
		due, err := l.Backlog(ctx)
		if err != nil {
			return &storeError{err: err}
		}
		sum.SetBacklog(due)
	}
	sum.Store = u.String()
	if asJSON {
		return printOneJSON(sum)
	}
	return sum.Write(os.Stdout)
}

func summary(ctx context.Context, b storage.Store) (*view.Summary, error) {
	if t, ok := b.(backend.Tallier); ok {
		tallies, err := t.Tally(ctx)
		if err != nil {
			return nil, &storeError{err: err}
		}
		return view.Sum(tallies), nil
	}
	s, err := over(b, nil)
	if err != nil {
		return nil, err
	}
	return view.Summarise(s.List(ctx, idem.Filter{}))
}

// checkServer reads every record: the pages below are the server's to check.
func checkServer(ctx context.Context, u *storage.URL) error {
	b, err := openServer(ctx, u)
	if err != nil {
		return err
	}
	for _, err := range b.List(ctx, backend.Filter{}) {
		if err != nil {
			return err
		}
	}
	return nil
}

// fileCare is what is worth knowing about the file besides its guarantees.
func fileCare(ctx context.Context, file *bolt.DB) ([]backend.Finding, error) {
	info, err := os.Stat(file.Path())
	if err != nil {
		return nil, err
	}
	mode := backend.Finding{Setting: "file mode", Value: fmt.Sprintf("%#o", info.Mode().Perm()), Text: "only you can read what is stored"}
	if info.Mode().Perm()&0o077 != 0 {
		mode.Want, mode.Text = "0600", "others on this machine can read or change what is stored: chmod 600"
	}
	disk, err := file.Stats(ctx)
	if err != nil {
		return nil, err
	}
	backlog := backend.Finding{Setting: "expired records", Value: fmt.Sprint(disk.Expired), Text: "still in the file"}
	if disk.Due > 1000 && disk.Due > disk.Records {
		backlog.Want, backlog.Text = "none", "more than what is alive: run idem sweep from cron"
	}
	return []backend.Finding{mode, backlog}, nil
}

func newCheck(store *string) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Look for damage in the store",
		Long: `Looks through the whole file: every page, every record, and whether records and
index agree. Nothing is changed, and no key is shown. Commands that write wait
meanwhile. On a database server it reads every record; pages and indexes are the
server's to check.

The status is 0 if all is well and 71 if the file is damaged. A damaged file is
left as it is; restore a copy, or what idem export has written.`,
		Example: `  idem check
  idem check --store /srv/idem/billing.db && idem compact --store /srv/idem/billing.db`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := check(cmd.Context(), *store)
			damaged := errors.Is(err, bolt.ErrDamaged) || errors.Is(err, idem.ErrCorruptRecord)
			switch {
			case err != nil && !damaged:
				return first(err)
			case asJSON:
				report := map[string]any{"sound": err == nil, "path": path}
				if err != nil {
					report["problem"] = err.Error()
				}
				if e := printJSON(report); e != nil {
					return e
				}
			case err == nil:
				fmt.Printf("%s: sound\n", path)
			}
			return withNextIf(err, err, "restore a copy, or import what idem export has written into a new file; never put an empty file in its place: it would forget every key")
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// check looks through the store and returns its name without secrets.
func check(ctx context.Context, name string) (where string, err error) {
	u, ok, err := serverURL(name)
	if err != nil {
		return "", err
	}
	if ok {
		return u.String(), checkServer(ctx, u)
	}
	file, err := openFile(name, storage.Look)
	if err != nil {
		return "", err
	}
	return file.Path(), file.Check(ctx)
}
