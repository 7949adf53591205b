package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/cmd/idem/internal/config"
	"github.com/goidem/idem/cmd/idem/internal/view"
	"github.com/goidem/idem/expiry"
	"github.com/goidem/idem/expiry/policyfile"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check and explain a file of policies, and forecast what it comes to",
		Long: `A file of policies, YAML or JSON, says how long keys and results are kept, how long
a lease is, and what becomes of an abandoned run, by operation and tenant:

  policies:
    - operation: billing.*        # a name, a prefix, or a pattern with stars
      tenant: acme                # left out: any tenant
      replay: 1d                  # how long retries get the result
      dedup: 30d                  # how long the key is recognised
      failed: 14d                 # the same for failures; left out: dedup
      abandoned: 7d               # and for runs cut off, after their lease
      horizons:                   # until when somebody may ask again
        clientRetry: 1d
        queueRedrive: 14d
        webhookReplay: 3d
        operatorReplay: 7d
        settlement: 10d
      issued: uuidv7              # keys carry their time: uuidv7, ulid, explicit
      skew: 5m                    # how far the clocks of their makers may be off
      was: [12h]                  # shorter dedup windows of earlier days, for all keys,
                                  # or {dedup: 12h, until: 2026-03-01T00:00:00Z}
      lease: 30s
      onAbandoned: hold           # rerun or hold
    - operation: payments.*
      preset: stripe              # windows of a provider, as a start

One rule decides, alone: a tenant's before any tenant's, then an exact name before a
prefix, a longer prefix before a shorter one, a prefix before a pattern, and * last.
The order in the file does not matter. A dedup window below a horizon is refused.`,
		Example: `  idem policy check policies.yaml
  idem policy explain policies.yaml --op billing.close
  idem policy forecast policies.yaml --rate 50/s --result-size 200`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().Bool("json", false, "print JSON")
	cmd.AddCommand(newPolicyCheck(), newPolicyExplain(), newPolicyForecast())
	return cmd
}

// loadPolicies reads the file that --config or IDEM_CONFIG names. Without one
// there are no policies, and everything is the default.
func loadPolicies() (*config.Config, error) {
	path := policyPath()
	if path == "" {
		return nil, nil
	}
	return config.Load(path)
}

func policyPath() string { return cmp.Or(global.config, os.Getenv(config.Env)) }

// policyArg is the file that a policy command is about: its argument, else the one
// that other commands would use.
func policyArg(cmd *cobra.Command, args []string) (string, error) {
	switch {
	case len(args) > 1:
		return "", wrongCall(cmd, "idem: one file is needed, not %d", len(args))
	case len(args) == 1:
		return args[0], nil
	}
	if path := policyPath(); path != "" {
		return path, nil
	}
	return "", wrongCall(cmd, "idem: the file of policies is missing; name it, or set IDEM_CONFIG")
}

// ruleView is a rule as programs read it. Windows are as people write them.
type ruleView struct {
	Line        int               `json:"line,omitempty"`
	Operation   string            `json:"operation"`
	Tenant      string            `json:"tenant,omitempty"`
	Preset      string            `json:"preset,omitempty"`
	Replay      string            `json:"replay"`
	Dedup       string            `json:"dedup"`
	Failed      string            `json:"failed"`
	Abandoned   string            `json:"abandoned"`
	Horizons    map[string]string `json:"horizons,omitempty"`
	Issued      string            `json:"issued,omitempty"`
	Skew        string            `json:"skew,omitempty"`
	Was         []string          `json:"was,omitempty"`
	Lease       string            `json:"lease,omitempty"`
	OnAbandoned string            `json:"onAbandoned,omitempty"`
}

func viewRule(f *policyfile.File, r *expiry.Rule) ruleView {
	v := ruleView{
		Operation: r.Operation, Tenant: r.Tenant, Preset: r.Preset,
		Replay: expiry.Show(r.Replay), Dedup: expiry.Show(r.Dedup), Failed: expiry.Show(r.Failed), Abandoned: expiry.Show(r.Abandoned),
	}
	set, line := f.RuleSettings(r)
	v.Line = line
	if set.Lease != 0 {
		v.Lease = expiry.Show(set.Lease)
	}
	if set.OnAbandoned != 0 {
		v.OnAbandoned = set.OnAbandoned.String()
	}
	for name, d := range r.Horizons.Given() {
		if v.Horizons == nil {
			v.Horizons = make(map[string]string)
		}
		v.Horizons[name] = expiry.Show(d)
	}
	if r.Issued != expiry.NotDeclared {
		v.Issued, v.Skew = r.Issued.String(), expiry.Show(r.Skew)
	}
	for _, w := range r.Was {
		text := expiry.Show(w.Dedup)
		if !w.Until.IsZero() {
			text += " until " + w.Until.Format(time.RFC3339)
		}
		v.Was = append(v.Was, text)
	}
	return v
}

// longest is the longest horizon with its name.
func longest(r *expiry.Rule) string {
	name, d := r.Horizons.Longest()
	if d == 0 {
		return "-"
	}
	return name + " " + expiry.Show(d)
}

func newPolicyCheck() *cobra.Command {
	var against string
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a file of policies, and show its rules in their order",
		Long: `Reads FILE, or the file that --config or IDEM_CONFIG names, and shows every rule
with all its windows, the most specific first. Whatever is wrong is listed with its
line, all of it at once, and the status is 78.

--against names the file that is in force until now. Where keys carry their issue
time and a dedup window was shorter then, the new file has to say so under was: a key
whose record is gone would count as new otherwise. An until under was has to lie after
the last process with the old file; leave it out if you do not know. Run it at every
change: one file knows nothing of those before the one that it is compared with.`,
		Example: `  idem policy check policies.yaml
  idem policy check policies.yaml --against policies.old.yaml
  idem policy check policies.yaml --json | jq '.rules[] | {operation, dedup}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := policyArg(cmd, args)
			if err != nil {
				return err
			}
			var old *policyfile.File
			if against != "" {
				if old, err = policyfile.Open(against); err != nil {
					return err
				}
			}
			f, err := policyfile.Open(path)
			if err == nil && old != nil {
				err = f.Remembers(old, time.Now())
			}
			return showCheck(cmd, path, f, err)
		},
	}
	cmd.Flags().StringVar(&against, "against", "", "the file that is in force until now")
	return cmd
}

// showCheck prints the rules, or all that is wrong.
func showCheck(cmd *cobra.Command, path string, f *policyfile.File, err error) error {
	asJSON, _ := cmd.Flags().GetBool("json")
	var refused *policyfile.Error
	switch {
	case errors.As(err, &refused):
		refused.Path = path
		if asJSON {
			if err := printOneJSON(map[string]any{"ok": false, "problems": refused.Problems}); err != nil {
				return err
			}
		} else {
			for _, p := range refused.Problems[:len(refused.Problems)-1] {
				fmt.Fprintln(os.Stderr, refused.Line(p))
			}
			refused.Problems = refused.Problems[len(refused.Problems)-1:]
		}
		return withNext(refused, "mend the file, and check it again")
	case err != nil:
		return err
	}
	rules := f.Policy().Rules()
	if asJSON {
		all := make([]ruleView, len(rules))
		for i := range rules {
			all[i] = viewRule(f, &rules[i])
		}
		return printOneJSON(map[string]any{"ok": true, "rules": all})
	}
	t := view.Table{Header: []string{"LINE", "OPERATION", "TENANT", "REPLAY", "DEDUP", "FAILED", "ABANDONED", "LONGEST HORIZON", "ISSUED"}}
	for i := range rules {
		r := &rules[i]
		_, line := f.RuleSettings(r)
		issued := "-"
		if r.Issued != expiry.NotDeclared {
			issued = r.Issued.String()
		}
		t.Add(view.C(fmt.Sprint(line)), view.C(view.Text(r.Operation)), view.C(anyTenant(r.Tenant)),
			view.C(expiry.Show(r.Replay)), view.C(expiry.Show(r.Dedup)), view.C(expiry.Show(r.Failed)), view.C(expiry.Show(r.Abandoned)),
			view.C(longest(r)), view.C(issued))
	}
	return t.Write(os.Stdout)
}

func anyTenant(tenant string) string {
	if tenant == "" {
		return "any"
	}
	return view.Text(tenant)
}

// outcomes are what windows are stated for, by the names that people use.
func outcome(name string) (idem.State, bool) {
	s, ok := map[string]idem.State{
		"completed": idem.StateCompleted, "failed": idem.StateFailed, "abandoned": idem.StateInFlight, "uncertain": idem.StateUncertain,
	}[name]
	return s, ok
}

func newPolicyExplain() *cobra.Command {
	var op, tenant, state, key string
	cmd := &cobra.Command{
		Use:   "explain [FILE] --op OPERATION",
		Short: "Say which rule decides for an operation, and why",
		Long: `Says which rule of FILE decides for an operation, which others match and come after
it, and what it gives. With --key it also reads the time out of a key, where the
operation declares that keys carry it, and says whether the key would be late if the
store had no record of it, by the clock of this machine.`,
		Example: `  idem policy explain policies.yaml --op billing.close
  idem policy explain policies.yaml --op billing.close --tenant acme --state failed
  idem policy explain policies.yaml --op pay --key 01890a5d-ac96-774b-bcce-b302099a8057`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := policyArg(cmd, args)
			if err != nil {
				return err
			}
			s, known := outcome(state)
			switch {
			case op == "":
				return wrongCall(cmd, "idem: --op is missing")
			case !known:
				return wrongCall(cmd, "idem: --state takes completed, failed, abandoned or uncertain, not %q", state)
			}
			id := backend.ID{Tenant: tenant, Operation: op, Key: cmp.Or(key, "k")}
			if err := id.Validate(); err != nil {
				return &usageError{err: err, hint: helpFor(cmd)}
			}
			f, err := policyfile.Open(path)
			if err != nil {
				return err
			}
			asJSON, _ := cmd.Flags().GetBool("json")
			return showExplain(f, id, s, key != "", asJSON)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&op, "op", "", "operation that is asked about")
	fl.StringVar(&tenant, "tenant", "", "tenant that is asked about")
	fl.StringVar(&state, "state", "completed", "outcome: completed, failed, abandoned or uncertain")
	fl.StringVar(&key, "key", "", "key whose issue time is judged")
	return cmd
}

func showExplain(f *policyfile.File, id backend.ID, s idem.State, judge, asJSON bool) error {
	rule, why := f.Policy().Explain(id, s)
	keep := f.Policy().For(id, s)
	late := ""
	if judge {
		switch verdict, err := f.Policy().Lateness(id, time.Time{}, time.Now()); {
		case err != nil:
			late = strings.TrimPrefix(err.Error(), "idem: ")
		case rule.Issued == expiry.NotDeclared:
			late = "this operation does not declare that its keys carry their issue time: no key is late"
		default:
			late = verdict.String()
		}
	}
	if asJSON {
		out := map[string]any{"rule": viewRule(f, &rule), "why": why}
		if keep.Dedup != 0 {
			out["replay"], out["dedup"] = expiry.Show(keep.Replay), expiry.Show(keep.Dedup)
		}
		if judge {
			out["key"] = late
		}
		return printOneJSON(out)
	}
	var t view.Table
	add := func(name, text string) { t.Add(view.C(name), view.C(text)) }
	if line := f.Line(id); line != 0 {
		add("rule", fmt.Sprintf("line %d, %s", line, view.Text(rule.String())))
	} else {
		add("rule", "none")
	}
	add("why", view.Text(why))
	if keep.Dedup != 0 {
		add("replay", expiry.Show(keep.Replay))
		add("dedup", expiry.Show(keep.Dedup))
	}
	add("longest horizon", longest(&rule))
	set := f.Settings(id)
	if set.Lease != 0 {
		add("lease", expiry.Show(set.Lease))
	}
	if set.OnAbandoned != 0 {
		add("if abandoned", set.OnAbandoned.String())
	}
	if judge {
		add("key", view.Text(late))
	}
	return t.Write(os.Stdout)
}
