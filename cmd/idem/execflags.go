package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/config"
	"github.com/goidem/idem/expiry"
)

// execFlags are the flags of the commands that run commands.
type execFlags struct {
	scope       idem.Scope
	wait        time.Duration
	lease       time.Duration
	timeout     time.Duration
	replayFor   days
	knownFor    days
	onAbandoned string
	recover     string
	finalCodes  string
	noHash      bool

	final    func(int) bool
	cmdName  string
	policies *config.Config // read by complete
}

// bind makes the flags.
func (o *execFlags) bind(cmd *cobra.Command) {
	o.cmdName = cmd.Name()
	f := cmd.Flags()
	f.StringVar(&o.scope.Operation, "op", "", "operation that the key belongs to, such as billing.close")
	f.StringVar(&o.scope.Tenant, "tenant", "", "tenant that the key belongs to")
	f.DurationVar(&o.wait, "wait", 0, "how long to wait for another run of the same key")
	f.DurationVar(&o.lease, "lease", idem.DefaultLeaseTTL, "how long a crash blocks the key; renewed while the command runs")
	f.DurationVar(&o.timeout, "timeout", 0, "stop the command after this time; its key is free again (status 124)")
	f.Var(&o.replayFor, "replay-for", "how long the result is replayed: 12h, 30d (default 1d)")
	f.Var(&o.knownFor, "known-for", "how long the key is recognised: 12h, 30d (default 7d)")
	f.StringVar(&o.onAbandoned, "on-abandoned", "rerun", "what becomes of a run that was cut off: rerun or hold")
	f.StringVar(&o.recover, "recover", "", "shell command that says whether a run that was cut off took effect")
	f.StringVar(&o.finalCodes, "final-codes", "", "exit statuses that are final: stored and replayed, such as 3,4,10-20")
	f.BoolVar(&o.noHash, "no-hash", false, "do not compare command lines")
}

// wrong is an error about a flag.
func (o *execFlags) wrong(format string, args ...any) error {
	return &usageError{err: fmt.Errorf("idem: "+format+"; nothing was run", args...), hint: "idem help " + o.cmdName}
}

// complete checks the flags and returns the options of a call. What no flag says
// is taken from the file of policies.
func (o *execFlags) complete(cmd *cobra.Command) ([]idem.CallOption, error) {
	var err error
	if o.policies, err = loadPolicies(); err != nil {
		return nil, err
	}
	rule := o.policies.Settings(o.scope)
	if rule.Lease != 0 && !cmd.Flags().Changed("lease") {
		o.lease = rule.Lease
	}
	abandoned := rule.OnAbandoned
	if abandoned == 0 || cmd.Flags().Changed("on-abandoned") {
		switch o.onAbandoned {
		case "rerun":
			abandoned = idem.Rerun
		case "hold":
			abandoned = idem.Hold
		default:
			return nil, o.wrong("--on-abandoned takes rerun or hold, not %q", o.onAbandoned)
		}
	}
	if o.recover != "" && abandoned == idem.Hold {
		return nil, o.wrong("--recover and hold exclude each other: under hold a person decides, not a command")
	}
	if o.timeout < 0 || o.wait < 0 {
		return nil, o.wrong("--timeout and --wait must not be negative")
	}
	if o.final, err = parseCodes(o.finalCodes); err != nil {
		return nil, o.wrong("--final-codes: %v", err)
	}
	if o.replayFor > 0 && o.knownFor > 0 && o.replayFor > o.knownFor {
		return nil, o.wrong("--replay-for is longer than --known-for: a result cannot outlive its key")
	}
	return []idem.CallOption{idem.Wait(o.wait), idem.LeaseTTL(o.lease), idem.OnAbandoned(abandoned)}, nil
}

// options are those of the store: the windows, where a flag sets them. bare says
// that only a status is kept, which is replayed as long as the key is known.
func (o *execFlags) options(bare bool) (*idem.Options, error) {
	if o.replayFor == 0 && o.knownFor == 0 && !bare {
		return nil, nil
	}
	r := o.policies.Policy().Rule(config.ID(o.scope))
	r.Tenant, r.Operation, r.Preset = o.scope.Tenant, o.scope.Operation, ""
	if o.knownFor > 0 {
		known := time.Duration(o.knownFor)
		r.Dedup, r.Failed, r.Abandoned = known, known, known
		r.Replay = min(r.Replay, known)
	}
	if o.replayFor > 0 {
		r.Replay = time.Duration(o.replayFor)
		r.Dedup = max(r.Dedup, r.Replay)
	} else if bare {
		r.Replay = r.Dedup
	}
	policy, err := expiry.New(r)
	if err != nil {
		return nil, &usageError{err: fmt.Errorf("%w; nothing was run", err), hint: "idem policy explain"}
	}
	return &idem.Options{Retention: policy}, nil
}

// requireFlags refuses a call without the flags that name the intent.
func requireFlags(cmd *cobra.Command, names ...string) error {
	for _, name := range names {
		if !cmd.Flags().Changed(name) {
			text := fmt.Sprintf("idem: --%s is missing; nothing was run", name)
			if name == "key" {
				text = "idem: --key is missing; a key is never made up, because a made-up key is a new one on every retry; nothing was run"
			}
			return &usageError{err: errors.New(text), hint: "idem help " + cmd.Name()}
		}
	}
	return nil
}

// days is a flag: a duration that may be given in whole days.
type days time.Duration

// Set implements pflag.Value.
func (d *days) Set(text string) error {
	v, err := expiry.ParseWindow(text)
	if err == nil && v <= 0 {
		err = errors.New("it must be positive")
	}
	*d = days(v)
	return err
}

// Type implements pflag.Value.
func (d *days) Type() string { return "duration" }

// String implements pflag.Value.
func (d *days) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// parseCodes reads a list of exit statuses and ranges: 3,4,10-20.
func parseCodes(text string) (func(int) bool, error) {
	if text == "" {
		return nil, nil
	}
	var set [256]bool
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			high = low
		}
		from, err1 := strconv.ParseUint(low, 10, 8)
		to, err2 := strconv.ParseUint(high, 10, 8)
		if err1 != nil || err2 != nil || from == 0 || from > to {
			return nil, fmt.Errorf("%q is no status or range; write statuses from 1 to 255, such as 3,4,10-20", part)
		}
		for code := from; code <= to; code++ {
			set[code] = true
		}
	}
	return func(code int) bool { return code > 0 && code < len(set) && set[code] }, nil
}
