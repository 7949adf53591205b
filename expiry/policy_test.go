package expiry

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

const day = 24 * time.Hour

func mustNew(t testing.TB, rules ...Rule) *Policy {
	t.Helper()
	p, err := New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func scope(tenant, operation string) backend.ID {
	return backend.ID{Tenant: tenant, Operation: operation}
}

func TestMostSpecificRuleDecides(t *testing.T) {
	t.Parallel()
	// Each rule has a dedup window of its own, which says who decided.
	p := mustNew(t,
		Rule{Operation: "*", Dedup: 1 * day},
		Rule{Operation: "b*", Dedup: 2 * day},
		Rule{Operation: "billing.*", Dedup: 3 * day},
		Rule{Operation: "billing.close", Dedup: 4 * day},
		Rule{Operation: "*.close", Dedup: 5 * day},
		Rule{Operation: "*.*.close", Dedup: 6 * day},
		Rule{Operation: "shop*close", Dedup: 7 * day},
		Rule{Operation: "*", Tenant: "acme", Dedup: 8 * day},
		Rule{Operation: "billing.*", Tenant: "acme", Dedup: 9 * day},
		Rule{Operation: "*refund*", Dedup: 10 * day},
		Rule{Operation: "x*y*", Dedup: 11 * day},
		Rule{Operation: "lonely", Tenant: "globex", Dedup: 12 * day},
	)
	for _, tt := range []struct {
		tenant, operation string
		want              time.Duration
	}{
		{"", "other", 1 * day},
		{"", "b", 2 * day},
		{"", "bank", 2 * day},
		{"", "billing.", 3 * day},
		{"", "billing.open", 3 * day},
		{"", "billing.close", 4 * day}, // an exact name before everything
		{"", "billing.x.close", 3 * day},
		{"", "till.close", 5 * day},
		{"", ".close", 5 * day},
		{"", "close", 1 * day},
		{"", "a.b.close", 6 * day},       // 7 literal bytes before 6
		{"", "shop.till.close", 7 * day}, // 9 before 7
		{"", "shop.close", 7 * day},
		{"", "shopclose", 7 * day},
		{"", "shopclos", 1 * day},
		{"", "refund", 10 * day},
		{"", "till.refund.close", 6 * day}, // 7 literal bytes before 6
		{"", "xy", 11 * day},
		{"", "x", 1 * day},
		{"acme", "billing.close", 9 * day}, // a tenant's rule before an exact name
		{"acme", "other", 8 * day},
		{"globex", "lonely", 12 * day},
		{"globex", "billing.close", 4 * day}, // no rule of the tenant's matches
		{"nobody", "billing.close", 4 * day},
	} {
		id := scope(tt.tenant, tt.operation)
		if got := p.For(id, backend.Completed).Dedup; got != tt.want {
			rule, why := p.Explain(id, backend.Completed)
			t.Errorf("%q %q: %v, want %v; %v: %s", tt.tenant, tt.operation, got, tt.want, &rule, why)
		}
	}
}

func TestOutcomesHaveTheirOwnWindows(t *testing.T) {
	t.Parallel()
	p := mustNew(t, Rule{Operation: "pay", Replay: 2 * day, Dedup: 30 * day, Failed: 14 * day, Abandoned: time.Hour})
	for state, want := range map[backend.State]Retention{
		backend.Completed: {2 * day, 30 * day},
		backend.Failed:    {14 * day, 14 * day},
		backend.InFlight:  {time.Hour, time.Hour},
		backend.Uncertain: {},
		backend.Open:      {},
		0:                 {},
	} {
		if got := p.For(scope("", "pay"), state); got != want {
			t.Errorf("%v: %v, want %v", state, got, want)
		}
	}
	if err := p.For(scope("", "pay"), backend.Uncertain).Validate(); err == nil {
		t.Error("no window passes for one")
	}
}

func TestWithoutRulesThereIsTheDefault(t *testing.T) {
	t.Parallel()
	var zero Policy
	for name, p := range map[string]*Policy{"nil": nil, "zero": &zero, "none": mustNew(t), "other": mustNew(t, Rule{Operation: "x"})} {
		want := Retention{DefaultReplay, DefaultDedup}
		if got := p.For(scope("acme", "pay"), backend.Completed); got != want {
			t.Errorf("%s: %v", name, got)
		}
		rule, why := p.Explain(scope("acme", "pay"), backend.Completed)
		if rule.Dedup != DefaultDedup || !strings.HasPrefix(why, "no rule matches; the default of idem decides") {
			t.Errorf("%s: %v %s", name, rule, why)
		}
		if v, err := p.Lateness(scope("acme", "pay"), time.Time{}, time.Unix(0, 0)); v != InTime || err != nil {
			t.Errorf("%s: %v %v", name, v, err)
		}
		if got := p.NeedsIssueTime(scope("", "pay")); got != NotDeclared {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestFixed(t *testing.T) {
	t.Parallel()
	p, err := Fixed(Retention{time.Hour, 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.For(scope("t", "o"), backend.Completed); got != (Retention{time.Hour, 2 * time.Hour}) {
		t.Error(got)
	}
	if got := p.For(scope("t", "o"), backend.Failed); got.Dedup != 2*time.Hour {
		t.Error(got)
	}
	for _, r := range []Retention{{}, {1, 0}, {2, 1}, {-1, 1}, {1, MaxWindow + 1}} {
		if _, err := Fixed(r); err == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
}

// What a rule leaves out is completed so that its windows fit each other.
func TestWindowsThatAreNotGiven(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		rule Rule
		want Rule
	}{
		{"nothing", Rule{}, Rule{Replay: day, Dedup: 7 * day, Failed: 7 * day, Abandoned: 7 * day}},
		{"long replay", Rule{Replay: 10 * day}, Rule{Replay: 10 * day, Dedup: 10 * day, Failed: 10 * day, Abandoned: 10 * day}},
		{"short dedup", Rule{Dedup: time.Hour}, Rule{Replay: time.Hour, Dedup: time.Hour, Failed: time.Hour, Abandoned: time.Hour}},
		{"horizon", Rule{Horizons: Horizons{Settlement: 10 * day}}, Rule{Replay: day, Dedup: 10 * day, Failed: 10 * day, Abandoned: 10 * day, Horizons: Horizons{Settlement: 10 * day}}},
		{"failed", Rule{Failed: time.Hour}, Rule{Replay: day, Dedup: 7 * day, Failed: time.Hour, Abandoned: 7 * day}},
		{"preset", Rule{Preset: PresetPayPalPayments}, Rule{Replay: 45 * day, Dedup: 45 * day, Failed: 45 * day, Abandoned: 45 * day}},
		{"preset with replay", Rule{Preset: PresetStripe, Replay: 2 * day}, Rule{Replay: 2 * day, Dedup: 2 * day, Failed: 2 * day, Abandoned: 2 * day}},
		{"preset with horizon", Rule{Preset: PresetGitHubWebhook}, Rule{Replay: day, Dedup: 4 * day, Failed: 4 * day, Abandoned: 4 * day, Horizons: Horizons{WebhookReplay: 3 * day}}},
		{"preset overruled", Rule{Preset: PresetGitHubWebhook, Dedup: 2 * day, Horizons: Horizons{WebhookReplay: day}}, Rule{Replay: day, Dedup: 2 * day, Failed: 2 * day, Abandoned: 2 * day, Horizons: Horizons{WebhookReplay: day}}},
		{"issued", Rule{Issued: ByULID}, Rule{Replay: day, Dedup: 7 * day, Failed: 7 * day, Abandoned: 7 * day, Issued: ByULID, Skew: DefaultSkew}},
		{"issued, short", Rule{Issued: ByULID, Dedup: 4 * time.Minute}, Rule{Replay: 4 * time.Minute, Dedup: 4 * time.Minute, Failed: 4 * time.Minute, Abandoned: 4 * time.Minute, Issued: ByULID, Skew: time.Minute}},
	} {
		tt.rule.Operation, tt.want.Operation, tt.want.Preset = "o", "o", tt.rule.Preset
		got := mustNew(t, tt.rule).Rules()[0]
		got.Was = nil
		if got.String() != tt.want.String() || got.Replay != tt.want.Replay || got.Dedup != tt.want.Dedup || got.Failed != tt.want.Failed ||
			got.Abandoned != tt.want.Abandoned || got.Horizons != tt.want.Horizons || got.Issued != tt.want.Issued || got.Skew != tt.want.Skew {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		// What is filled in is accepted again and stays as it is.
		again := mustNew(t, got).Rules()[0]
		if again.Dedup != got.Dedup || again.Replay != got.Replay || again.Skew != got.Skew {
			t.Errorf("%s: %+v becomes %+v", tt.name, got, again)
		}
	}
}

func TestRefusedRules(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		rules []Rule
		index int
		field string
		text  string
	}{
		{"C49: below a horizon", []Rule{{Operation: "ok"}, {Operation: "inbox.*", Dedup: time.Hour, Horizons: Horizons{ClientRetry: time.Minute, QueueRedrive: 4 * time.Hour, Settlement: 2 * time.Hour}}},
			1, "dedup", "dedup is 1h and the queue redrive horizon 4h: a key that is forgotten before the last one who asks would run again; dedup must be at least 4h"},
		{"failures below a horizon", []Rule{{Operation: "o", Failed: time.Hour, Horizons: Horizons{OperatorReplay: 2 * time.Hour}}}, 0, "failed", "the operator replay horizon 2h"},
		{"preset below a horizon", []Rule{{Operation: "o", Preset: PresetSQSFIFO, Dedup: 5 * time.Minute, Horizons: Horizons{QueueRedrive: 14 * day}}}, 0, "dedup", "at least 14d"},
		{"replay above dedup", []Rule{{Operation: "o", Replay: 2 * day, Dedup: day}}, 0, "replay", "replay is 2d and dedup 1d"},
		{"negative", []Rule{{Operation: "o", Dedup: -1}}, 0, "dedup", "it must be positive"},
		{"negative replay", []Rule{{Operation: "o", Replay: -day}}, 0, "replay", "it must be positive"},
		{"negative horizon", []Rule{{Operation: "o", Horizons: Horizons{WebhookReplay: -1}}}, 0, "horizons.webhookReplay", "the webhook replay horizon is -1ns"},
		{"overflow", []Rule{{Operation: "o", Dedup: 1<<63 - 1}}, 0, "dedup", "at most a hundred years (36500d)"},
		{"overflow of a horizon", []Rule{{Operation: "o", Horizons: Horizons{Settlement: MaxWindow + 1}}}, 0, "horizons.settlement", "at most a hundred years"},
		{"no operation", []Rule{{Dedup: day}}, 0, "operation", "write operation: NAME"},
		{"two stars", []Rule{{Operation: "a**"}}, 0, "operation", "write one"},
		{"too long", []Rule{{Operation: strings.Repeat("x", 129)}}, 0, "operation", "no operation can match"},
		{"no text", []Rule{{Operation: "a\xff*"}}, 0, "operation", "no operation can match"},
		{"tenant", []Rule{{Operation: "a", Tenant: "*"}}, 0, "tenant", "leave it out"},
		{"no tenant", []Rule{{Operation: "a", Tenant: "\x00"}}, 0, "tenant", "there is no such tenant"},
		{"twice", []Rule{{Operation: "b"}, {Operation: "a"}, {Operation: "c"}, {Operation: "a", Dedup: day}}, 3, "operation", "it has a policy already, rule 2"},
		{"twice for a tenant", []Rule{{Operation: "a*", Tenant: "t"}, {Operation: "a*"}, {Operation: "a*", Tenant: "t"}}, 2, "operation", "rule 1"},
		{"default twice", []Rule{{Operation: "*"}, {Operation: "*"}}, 1, "operation", "rule 1"},
		{"two globs", []Rule{{Operation: "a*xy"}, {Operation: "ab*y"}}, 1, "operation", "it matches operations that a*xy (rule 1) matches too"},
		{"two globs, the other way round", []Rule{{Operation: "ab*y"}, {Operation: "a*xy"}}, 1, "operation", "ab*y (rule 1)"},
		{"two open globs", []Rule{{Operation: "*ab*"}, {Operation: "*cd*"}}, 1, "operation", "neither is more specific"},
		{"unknown preset", []Rule{{Operation: "a", Preset: "strype"}}, 0, "preset", "there are stripe, "},
		{"skew alone", []Rule{{Operation: "a", Skew: 1}}, 0, "skew", "say how keys carry their issue time"},
		{"was alone", []Rule{{Operation: "a", Was: []Past{{Dedup: 1}}}}, 0, "was", "earlier windows matter only where"},
		{"was zero", []Rule{{Operation: "a", Issued: ByULID, Was: []Past{{}}}}, 0, "was", "an earlier window is 0s"},
		{"skew too long", []Rule{{Operation: "a", Issued: ByULID, Dedup: time.Hour, Skew: time.Hour}}, 0, "skew", "every key would count as late"},
		{"skew longer than was", []Rule{{Operation: "a", Issued: ByULID, Skew: time.Hour, Was: []Past{{Dedup: time.Hour}}}}, 0, "skew", "the shortest dedup window that ever applied 1h"},
		{"issued", []Rule{{Operation: "a", Issued: 9}}, 0, "issued", "it must be uuidv7, ulid or explicit"},
	} {
		p, err := New(tt.rules...)
		var refused *RuleError
		if p != nil || !errors.As(err, &refused) {
			t.Errorf("%s: %v, %v", tt.name, p, err)
			continue
		}
		if refused.Index != tt.index || refused.Field != tt.field || !strings.Contains(refused.Text, tt.text) {
			t.Errorf("%s: %+v; want rule %d, %s: %s", tt.name, refused, tt.index, tt.field, tt.text)
		}
		if !strings.HasPrefix(err.Error(), "idem: retention policy, rule ") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestEveryWrongRuleIsNamed(t *testing.T) {
	t.Parallel()
	_, err := New(Rule{Operation: "a", Dedup: -1}, Rule{Operation: "b"}, Rule{Operation: "c", Replay: -1}, Rule{Operation: "b"})
	for _, want := range []string{"rule 1 (operation a)", "rule 3 (operation c)", "rule 4 (operation b)"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// Globs that can never match the same operation need no order, and neither do
// those of different tenants.
func TestGlobsThatDoNotMeet(t *testing.T) {
	t.Parallel()
	mustNew(t,
		Rule{Operation: "*.ab"}, Rule{Operation: "*.cd"}, Rule{Operation: "x*.ef"}, Rule{Operation: "y*.ef"},
		Rule{Operation: "*.ab", Tenant: "t"}, Rule{Operation: "*.ab", Tenant: "u"}, Rule{Operation: "*a.*", Tenant: "v"},
	)
}

func TestPresets(t *testing.T) {
	t.Parallel()
	windows := make(map[string]time.Duration)
	for _, p := range Presets() {
		windows[p.Name] = p.Dedup
		if !strings.HasPrefix(p.Source, "https://") {
			t.Errorf("%s: no source", p.Name)
		}
		if _, err := New(Rule{Operation: "o", Preset: p.Name}); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
	}
	for name, want := range map[string]time.Duration{
		PresetStripe: day, PresetStripeV2: 30 * day, PresetPayPalOrders: 6 * time.Hour, PresetPayPalPayments: 45 * day,
		PresetSQSFIFO: 5 * time.Minute, PresetGitHubWebhook: 4 * day,
	} {
		if windows[name] != want {
			t.Errorf("%s: %v, want %v", name, windows[name], want)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	p := mustNew(t, Rule{Operation: "*"}, Rule{Operation: "bill*", Dedup: 3 * day}, Rule{Operation: "*.close"}, Rule{Operation: "billing.close", Tenant: "acme", Failed: time.Hour})
	for _, tt := range []struct {
		id    backend.ID
		state backend.State
		want  string
	}{
		{scope("acme", "billing.close"), backend.Failed,
			"rule 4 (operation billing.close, tenant acme) decides: this tenant, exact name; more specific than rule 2 (operation bill*), rule 3 (operation *.close), rule 1 (operation *); failed: replayed and recognised for 1h"},
		{scope("", "bills"), backend.Completed, "rule 2 (operation bill*) decides: any tenant, prefix; more specific than rule 1 (operation *); completed: replay 1d, dedup 3d"},
		{scope("", "x"), backend.InFlight, "rule 1 (operation *) decides: any tenant, default rule; in flight: if abandoned under rerun, remembered for 7d after the lease"},
		{scope("", "x.close"), backend.Uncertain, "rule 3 (operation *.close) decides: any tenant, glob; more specific than rule 1 (operation *); uncertain: no window until it is settled"},
	} {
		if _, got := p.Explain(tt.id, tt.state); got != tt.want {
			t.Errorf("%v:\n%s\nwant\n%s", tt.id, got, tt.want)
		}
	}
}

// What the caller does with slices does not reach the policy.
func TestPolicyKeepsNoMemoryOfTheCaller(t *testing.T) {
	t.Parallel()
	was := []Past{{Dedup: time.Hour}}
	p := mustNew(t, Rule{Operation: "o", Issued: ByULID, Was: was})
	was[0].Dedup = 1
	p.Rules()[0].Was[0].Dedup = 2
	r := p.Rule(scope("", "o"))
	r.Was[0].Dedup = 3
	if got := p.Rules()[0].Was[0].Dedup; got != time.Hour {
		t.Error(got)
	}
}

func TestShowAndParseWindow(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"30d": 30 * day, "45d": 45 * day, "0d": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "-1h": -time.Hour, "36500d": MaxWindow, "106751d": 106751 * day,
	} {
		if got, err := ParseWindow(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "d", "1.5d", "30 d", "1d12h", "-1d", "+3d", "106752d", "99999999d", "9999999999999999999999d", "soon", "1", "3w"} {
		if got, err := ParseWindow(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
	for want, d := range map[string]time.Duration{"1d": day, "45d": 45 * day, "1h": time.Hour, "1h30m": 90 * time.Minute, "1m30s": 90 * time.Second, "5m": 5 * time.Minute, "0s": 0, "10s": 10 * time.Second, "36h": 36 * time.Hour, "100ms": 100 * time.Millisecond} {
		if got := Show(d); got != want {
			t.Errorf("%v is shown as %s, want %s", d, got, want)
		}
		if back, err := ParseWindow(Show(d)); err != nil || back != d {
			t.Errorf("%s: %v, %v", want, back, err)
		}
	}
}
