package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/cmd/idem/internal/view"
	"github.com/goidem/idem/expiry"
	"github.com/goidem/idem/expiry/policyfile"
)

// forecastView is one line of a forecast as programs read it.
type forecastView struct {
	Operation   string  `json:"operation"`
	Tenant      string  `json:"tenant,omitempty"`
	Backend     string  `json:"backend"`
	Records     int64   `json:"records"`
	WithResult  int64   `json:"withResult"`
	Bytes       int64   `json:"bytes"`
	SweepRate   float64 `json:"sweepPerSecond"`
	SweepShare  float64 `json:"sweepShare"`
	SteadyAfter string  `json:"steadyAfter"`
	Basis       string  `json:"basis"`
}

func newPolicyForecast() *cobra.Command {
	var op, tenant, rate, size, only string
	cmd := &cobra.Command{
		Use:   "forecast [FILE] --rate RATE --result-size BYTES",
		Short: "What a rate and a size come to under the rules: records, bytes, sweeping",
		Long: `Says for every rule of FILE, or for the one that decides for --op, what is stored
once as much expires as arrives: records, those that still have their result, bytes,
and how many records a second have to be removed. The rate counts for each rule.

Bytes per record and the speed of a sweep were measured on one machine; the last
lines say what they rest on. The share is that of the measured speed which sweeping
takes: above 100% it falls behind.`,
		Example: `  idem policy forecast policies.yaml --rate 50/s --result-size 200
  idem policy forecast policies.yaml --op billing.close --rate 3000/h --result-size 4KiB --backend bolt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := policyArg(cmd, args)
			if err != nil {
				return err
			}
			if rate == "" || size == "" {
				return wrongCall(cmd, "idem: --rate and --result-size are both needed, such as --rate 50/s --result-size 200")
			}
			var load expiry.Load
			if load.Rate, err = parseRate(rate); err == nil {
				load.ResultSize, err = parseBytes(size)
			}
			if err == nil {
				err = load.Validate()
			}
			if err != nil {
				return &usageError{err: err, hint: helpFor(cmd)}
			}
			if only != "" && !slices.Contains([]string{expiry.Bolt, expiry.Redis, expiry.Postgres}, only) {
				return wrongCall(cmd, "idem: --backend takes bolt, redis or postgres, not %q", only)
			}
			f, err := policyfile.Open(path)
			if err != nil {
				return err
			}
			rules := f.Policy().Rules()
			if op != "" {
				id := backend.ID{Tenant: tenant, Operation: op, Key: "k"}
				if err := id.Validate(); err != nil {
					return &usageError{err: err, hint: helpFor(cmd)}
				}
				rules = []expiry.Rule{f.Policy().Rule(id)}
			} else if tenant != "" {
				return wrongCall(cmd, "idem: --tenant needs --op")
			}
			asJSON, _ := cmd.Flags().GetBool("json")
			return showForecast(rules, load, only, asJSON)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&rate, "rate", "", "new keys: 50/s, 3000/m, 20000/h, 1000000/d")
	fl.StringVar(&size, "result-size", "", "mean size of a result: 200, 4KiB, 1MiB")
	fl.StringVar(&only, "backend", "", "bolt, redis or postgres (default: all)")
	fl.StringVar(&op, "op", "", "only the rule that decides for this operation")
	fl.StringVar(&tenant, "tenant", "", "and for this tenant")
	return cmd
}

func showForecast(rules []expiry.Rule, load expiry.Load, only string, asJSON bool) error {
	t := view.Table{Header: []string{"OPERATION", "TENANT", "BACKEND", "RECORDS", "WITH RESULT", "SIZE", "SWEEP", "SHARE", "STEADY AFTER"}}
	var all []forecastView
	var basis []string
	for _, r := range rules {
		forecasts, err := r.Forecast(load)
		if err != nil {
			return err
		}
		for _, f := range forecasts {
			if only != "" && f.Backend != only {
				continue
			}
			all = append(all, forecastView{
				Operation: r.Operation, Tenant: r.Tenant, Backend: f.Backend, Records: f.Records, WithResult: f.WithResult,
				Bytes: f.Bytes, SweepRate: f.SweepRate, SweepShare: f.SweepShare, SteadyAfter: expiry.Show(r.Dedup), Basis: f.Basis,
			})
			share := "by itself"
			if f.SweepShare > 0 {
				share = strconv.FormatFloat(100*f.SweepShare, 'g', 2, 64) + "%"
			}
			t.Add(view.C(view.Text(r.Operation)), view.C(anyTenant(r.Tenant)), view.C(f.Backend), view.C(fmt.Sprint(f.Records)), view.C(fmt.Sprint(f.WithResult)),
				view.C(view.Bytes(f.Bytes)), view.C(strconv.FormatFloat(f.SweepRate, 'g', 4, 64)+" per s"), view.C(share), view.C(expiry.Show(r.Dedup)))
			if text := f.Backend + ": " + f.Basis; !slices.Contains(basis, text) {
				basis = append(basis, text)
			}
		}
	}
	if asJSON {
		return printOneJSON(all)
	}
	if err := t.Write(os.Stdout); err != nil {
		return err
	}
	_, err := fmt.Printf("\n%s\n", strings.Join(basis, "\n"))
	return err
}

// parseRate reads 50/s, 3000/m, 20000/h, 1000000/d; a bare number is per second.
func parseRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, "/")
	per, ok := map[string]time.Duration{"": time.Second, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !ok || strings.HasSuffix(text, "/") {
		return 0, fmt.Errorf("idem: %q is no rate; write 50/s, 3000/m, 20000/h or 1000000/d", text)
	}
	return n / per.Seconds(), nil
}

// parseBytes reads 200, 4KiB or 1MiB.
func parseBytes(text string) (int64, error) {
	number, unit := text, int64(1)
	for suffix, size := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if n, ok := strings.CutSuffix(text, suffix); ok {
			number, unit = n, size
		}
	}
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("idem: %q is no size; write bytes, such as 200, or 4KiB, 1MiB", text)
	}
	return n * unit, nil
}
