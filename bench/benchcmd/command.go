// Package benchcmd is the command that compares strategies: go run ./bench, and a part
// of the idem program as idem bench.
package benchcmd

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem/bench/experiment"
	"github.com/goidem/idem/bench/report"
	"github.com/goidem/idem/bench/result"
	"github.com/goidem/idem/bench/strategy"
)

// Exit statuses, the same as those of idem where both have one.
const (
	ExitFound       = 1   // a promise was broken, or something got worse
	ExitUsage       = 64  // the call is wrong
	ExitServer      = 69  // a server that was asked for cannot be used
	ExitInternal    = 70  // anything else
	ExitVersion     = 71  // a report of another version
	ExitInterrupted = 130 // stopped by Ctrl-C or a signal
)

// Error is an error with the status to exit with.
type Error struct {
	Code int
	Err  error
	Next string // what to type next; may be empty
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

func usage(format string, args ...any) error {
	return &Error{Code: ExitUsage, Err: fmt.Errorf(format, args...), Next: "idem bench --help"}
}

// Child does not return when this process was started as a worker of an experiment. A
// program that has the command calls it first.
func Child() { experiment.ChildMain(strategy.All()) }

// flags are what a person may set.
type flags struct {
	profile     string
	strategies  []string
	workloads   []string
	experiments []string
	urls        map[strategy.Server]*string
	ownServers  bool
	seed        uint64
	out, dir    string
	limit       time.Duration
	list        bool
}

// New returns the command, under the given name.
func New(name string) *cobra.Command {
	f := flags{urls: make(map[strategy.Server]*string)}
	cmd := &cobra.Command{
		Use:   name,
		Short: "Compare strategies by what they cost and by what they keep",
		Long: `bench runs strategies of keeping an operation from taking effect twice, from none
at all through what people write by hand to the modes of idem: first under workloads,
for what they cost, then under faults, for what they keep. Worker processes are killed,
servers too, clocks are stepped; effects are counted in a ledger that has no memory of
keys. It writes report.html, report.md and report.json.

Without a URL it starts a throw-away PostgreSQL and Redis of its own, where their
programs are installed, and throws them away at the end. Servers that you name are not
hurt: experiments that kill a server have one of their own or are skipped. What is
stored on them is removed at the end.

Keep passwords out of a URL, which other users of the machine can see on the command
line: in PGPASSWORD, or in the file that PGPASSFILE names. Reports and messages never
contain one.

The quick profile takes less than five minutes on two processors. Ctrl-C ends a run
early: its report is kept, marked as partial.

Exit status: 0 done; 1 a strategy broke its own promise; 64 the call is wrong; 69 a
server cannot be used; 130 stopped by a signal.`,
		Example: `  idem bench --list
  idem bench --strategies bolt-lease,bolt-tx --out report
  idem bench --profile full --postgres postgres://me@db.example.org/test
  idem bench compare before/report.json after/report.json`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("bench: unexpected argument %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.list {
				return list(cmd)
			}
			return f.run(cmd)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.profile, "profile", "quick", "quick (less than five minutes) or full")
	fs.StringSliceVar(&f.strategies, "strategies", nil, "only these, and the floors that they are held against (default: all)")
	fs.StringSliceVar(&f.workloads, "workloads", nil, "only these, or none (default: all of the profile)")
	fs.StringSliceVar(&f.experiments, "experiments", nil, "only these, or none (default: all)")
	for _, s := range []struct {
		server strategy.Server
		about  string
	}{
		{strategy.Postgres, "URL of a PostgreSQL to use instead of an own one: postgres://USER@HOST/DATABASE"},
		{strategy.Redis, "URL of a Redis to use instead of an own one: redis://HOST:6379/DB"},
		{strategy.Cockroach, "URL of a CockroachDB: postgres://USER@HOST:26257/DATABASE"},
	} {
		f.urls[s.server] = fs.String(string(s.server), "", s.about)
	}
	fs.BoolVar(&f.ownServers, "own-servers", true, "start throw-away servers where no URL is given")
	fs.Uint64Var(&f.seed, "seed", 1, "fixes the keys, the order of operations and the moments of faults")
	fs.StringVar(&f.out, "out", "idem-bench", "folder for the report")
	fs.StringVar(&f.dir, "dir", "", "folder on the disk that is measured (default: the system's temporary folder)")
	fs.DurationVar(&f.limit, "limit", 0, "end after this time with what there is by then (default 4m40s for quick, none for full)")
	fs.BoolVar(&f.list, "list", false, "list strategies, workloads and experiments")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("bench: %w", err) })
	cmd.AddCommand(newCompare())
	return cmd
}

func newCompare() *cobra.Command {
	return &cobra.Command{
		Use:   "compare BEFORE.json AFTER.json",
		Short: "Say what changed between two runs beyond noise",
		Long: `compare reads two reports of bench and says what is worse, better or different in the
second. It warns where the runs themselves are not comparable: other machines, servers,
settings or seeds. It ends with the rule by which it decides.

Exit status: 0 nothing got worse; 1 something did; 64 a file is no report; 71 a report
is of another version.`,
		Example: `  idem bench compare before/report.json after/report.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage("bench: compare needs two reports, and was given %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var reports [2]*result.Report
			for i, path := range args {
				r, err := result.ReadFile(path)
				if errors.Is(err, result.ErrUnknownVersion) {
					return &Error{Code: ExitVersion, Err: err}
				}
				if err != nil {
					return usage("%w", err)
				}
				reports[i] = r
			}
			c := report.Compare(reports[0], reports[1])
			fmt.Fprint(cmd.OutOrStdout(), c.Text())
			if len(c.Worse) > 0 {
				return &Error{Code: ExitFound, Err: fmt.Errorf("bench: %s worse", counted(len(c.Worse), "thing is", "things are"))}
			}
			return nil
		},
	}
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// list prints what there is to choose from.
func list(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("strategies:\n")
	for _, s := range strategy.All() {
		i := s.Info()
		fmt.Fprintf(&b, "  %-16s %-13s %s", i.Name, i.Family, i.Title)
		for _, n := range i.Needs {
			fmt.Fprintf(&b, "; needs %s", n)
		}
		if i.Floor != "" {
			fmt.Fprintf(&b, "; floor %s", i.Floor)
		}
		b.WriteByte('\n')
	}
	for _, p := range profiles() {
		fmt.Fprintf(&b, "workloads of --profile %s:\n", p.name)
		for _, w := range p.workloads {
			fmt.Fprintf(&b, "  %-16s %s\n", w.spec.Name, w.String())
		}
	}
	b.WriteString("experiments:\n")
	for _, e := range experiment.All() {
		fmt.Fprintf(&b, "  %-28s %s\n", e.Name, e.About)
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), b.String())
	return err
}

// run is the whole of it.
func (f *flags) run(cmd *cobra.Command) (err error) {
	p, err := f.plan()
	if err != nil {
		return err
	}
	s := newScreen(cmd.ErrOrStderr())
	defer s.close()
	r := &runner{plan: p, screen: s, report: &result.Report{Profile: p.profile.name, Seed: p.seed, Started: time.Now().UTC(), Reason: "The run has not ended."}}
	err = r.run(cmd.Context())
	s.close()
	if r.written {
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n", r.paths())
	}
	return err
}

// Main runs the command as a program of its own and returns its exit status.
func Main(cmd *cobra.Command) int {
	err := cmd.Execute()
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ExitInternal
}
