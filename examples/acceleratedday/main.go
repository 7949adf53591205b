// Command acceleratedday lives through a day of traffic in less than a minute, on one
// store after the other so that none slows another down, and shows what the retention
// of keys does to it: how many records wait for the sweeper, how much room the store
// takes, and how long a call takes meanwhile.
//
//	go run ./examples/acceleratedday                       # memory and a bolt file
//	go run ./examples/acceleratedday -servers              # and throw-away servers
//	go run ./examples/acceleratedday -store postgres://...  # and a server of yours
//
// An hour of the day lasts as long as -hour says. Results are replayed for two hours
// and keys known for six, so that from the morning on keys are forgotten while others
// arrive. The traffic has a rush at nine and one at six, and one call in five is a
// retry of an earlier one. It prints a table for each store and writes day.svg.
//
// CockroachDB is left out of -servers: there is no cluster to start that a machine
// would have. -store cockroach://... takes one of yours, of which the size is not
// shown. That has been run against a shim of the protocol before PostgreSQL, in the
// test of this package, and against no cluster.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "acceleratedday:", err)
		}
		stop()
		os.Exit(1)
	}
}

// settings are what a person may change.
type settings struct {
	servers bool
	hour    time.Duration // how long an hour of the day lasts
	rate    int           // calls a second at an ordinary hour, see traffic
	stores  []string      // URLs
	out     string        // folder of day.svg
}

func parse(args []string, w io.Writer) (s settings, err error) {
	f := flag.NewFlagSet("acceleratedday", flag.ContinueOnError)
	f.SetOutput(w)
	f.DurationVar(&s.hour, "hour", 2*time.Second, "how long an hour of the day lasts, at least 100ms")
	f.IntVar(&s.rate, "rate", 300, "calls a second at an ordinary hour; three times as many in a rush, less than half at night")
	f.BoolVar(&s.servers, "servers", false, "start PostgreSQL and Redis for this run, from the installed binaries; for CockroachDB, name a cluster with -store")
	f.StringVar(&s.out, "out", ".", "folder for day.svg, made if it is not there")
	f.Func("store", "postgres://, cockroach:// or redis:// URL of a server to use, with an empty schema or database; may be given again", func(v string) error {
		s.stores = append(s.stores, v)
		return nil
	})
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if s.hour < 100*time.Millisecond || s.rate < 1 {
		return s, errors.New("-hour must be at least 100ms and -rate at least 1")
	}
	return s, nil
}

func run(ctx context.Context, args []string, w io.Writer) error {
	s, err := parse(args, w)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "idem-day-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(s.out, 0o755); err != nil { // before the day, not after it
		return err
	}

	subjects, stop, err := open(ctx, &s, dir, w)
	defer stop()
	if err != nil {
		return err
	}
	var days []day
	for _, sub := range subjects {
		fmt.Fprintf(w, "\n%s: a day in %s\n", sub.name, 24*s.hour)
		d, err := live(ctx, sub, &s)
		if err != nil {
			return fmt.Errorf("%s: %w", sub.name, err)
		}
		if err := d.table(w); err != nil {
			return err
		}
		days = append(days, d)
	}
	path := filepath.Join(s.out, "day.svg")
	if err := draw(path, days); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nplot: %s\n", path)
	return err
}

// sample is the state of a store at one time of the day.
type sample struct {
	clock    float64 // hours since midnight
	calls    int     // since the sample before
	backlog  int64   // records that the sweeper has to look at; -1: not known
	size     int64   // bytes; -1: not known
	p50, p99 time.Duration
}

// day is what one store went through.
type day struct {
	store             string
	samples           []sample
	executed, retried int
	removed, bodies   int64 // by the sweeper
}

func (d *day) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "hour\tcalls\tdue\tsize\tp50\tp99\t")
	for i, s := range d.samples {
		if i%2 == 1 {
			fmt.Fprintf(t, "%02.0f:00\t%d\t%s\t%s\t%s\t%s\t\n", s.clock, s.calls+d.samples[i-1].calls, known(s.backlog, ""), known(s.size>>10, " KiB"),
				s.p50.Round(time.Microsecond), s.p99.Round(time.Microsecond))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%d operations took effect once, %d retries were answered without them; the sweeper removed %d records and %d results\n",
		d.executed, d.retried, d.removed, d.bodies)
	return err
}

func known(n int64, unit string) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprint(n) + unit
}
