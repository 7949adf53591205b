package expiry

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

func TestRemembers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	before := now.AddDate(-6, 0, 0)
	long, known := 30*day, 12*time.Hour
	for _, tt := range []struct {
		name     string
		old, now []Rule
		want     string // part of the error; empty: none
	}{
		{"longer, and says so", []Rule{{Operation: "pay", Dedup: 12 * time.Hour}}, []Rule{{Operation: "pay", Issued: ByULID, Was: []Past{{Dedup: 12 * time.Hour}}}}, ""},
		{"longer", []Rule{{Operation: "pay", Dedup: 12 * time.Hour}}, []Rule{{Operation: "pay", Issued: ByULID}}, "add was: [12h]"},
		{"longer, without issue times", []Rule{{Operation: "pay", Dedup: 12 * time.Hour}}, []Rule{{Operation: "pay"}}, ""},
		{"shorter", []Rule{{Operation: "pay", Dedup: 12 * time.Hour}}, []Rule{{Operation: "pay", Issued: ByULID, Dedup: time.Hour}}, ""},
		{"failures were shorter", []Rule{{Operation: "pay", Failed: time.Hour}}, []Rule{{Operation: "pay", Issued: ByULID}}, "add was: [1h]"},
		{"was is left out", []Rule{{Operation: "pay", Issued: ByULID, Was: []Past{{Dedup: time.Hour}}}}, []Rule{{Operation: "pay", Issued: ByULID}}, "add was: [1h]"},
		{"a rule of its own", []Rule{{Operation: "*", Dedup: time.Hour}}, []Rule{{Operation: "*", Dedup: time.Hour}, {Operation: "pay", Issued: ByULID}}, "rule 2 (operation pay): its operations had a dedup window of 1h before (operation *)"},
		{"the old default", nil, []Rule{{Operation: "pay", Issued: ByULID, Dedup: 30 * day}}, "add was: [7d]"},
		{"the old default did not count", []Rule{{Operation: "pay", Dedup: 30 * day}}, []Rule{{Operation: "pay", Issued: ByULID, Dedup: 30 * day}}, ""},
		{"the old default, said", nil, []Rule{{Operation: "pay", Issued: ByULID, Dedup: 30 * day, Was: []Past{{Dedup: 7 * day}}}}, ""},
		{"its rule is gone", []Rule{{Operation: "pay.card", Dedup: time.Hour}}, []Rule{{Operation: "pay.*", Issued: ByULID}}, "(operation pay.card)"},
		{"it has a rule still", []Rule{{Operation: "pay.card", Dedup: time.Hour}}, []Rule{{Operation: "pay.*", Issued: ByULID}, {Operation: "pay.card", Dedup: time.Hour}}, ""},
		{"other operations", []Rule{{Operation: "*", Dedup: 7 * day}, {Operation: "bill*", Dedup: time.Hour}}, []Rule{{Operation: "pay*", Issued: ByULID}}, ""},
		{"a tenant's rule", []Rule{{Operation: "pay", Tenant: "acme", Dedup: time.Hour}}, []Rule{{Operation: "pay", Issued: ByULID}}, "tenant acme"},
		{"another tenant's rule", []Rule{{Operation: "pay", Tenant: "acme", Dedup: time.Hour}}, []Rule{{Operation: "pay", Tenant: "globex", Issued: ByULID}}, ""},
		{"a glob", []Rule{{Operation: "*.close", Dedup: time.Hour}}, []Rule{{Operation: "billing.*", Issued: ByULID}}, "operation *.close"},

		{"an older window hides none that was in force", []Rule{{Operation: "pay", Issued: ByULID, Dedup: known, Was: []Past{{Dedup: 6 * time.Hour, Until: before}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: 6 * time.Hour, Until: before}}}}, "a dedup window of 12h before (operation pay), and it does not say so for all keys issued until now"},
		{"said until a time when it was in force still", []Rule{{Operation: "pay", Dedup: known}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(-time.Second)}}}}, "add was: [12h]"},
		{"said until now", []Rule{{Operation: "pay", Dedup: known}}, []Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now}}}}, ""},
		{"said until the last process is replaced", []Rule{{Operation: "pay", Dedup: known}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(day)}}}}, ""},
		{"a window of failures that was in force", []Rule{{Operation: "pay", Issued: ByULID, Failed: time.Hour, Was: []Past{{Dedup: time.Minute, Until: before}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Was: []Past{{Dedup: time.Minute, Until: before}}}}, "add was: [1h]"},
		{"a window of abandoned attempts that was in force", []Rule{{Operation: "pay", Abandoned: time.Hour}},
			[]Rule{{Operation: "pay", Issued: ByULID, Was: []Past{{Dedup: time.Hour, Until: before}}}}, "add was: [1h]"},
		{"was ends earlier than it did", []Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(-day)}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(-2 * day)}}}}, "add was: [{dedup: 12h, until: 2026-11-30T12:00:00Z}]"},
		{"was ends later than it did", []Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(-2 * day)}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(-day)}}}}, ""},
		{"was for ever, and now until some day", []Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: before}}}}, "add was: [12h]"},
		{"was for ever, and now until today", []Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now}}}}, ""},
		{"was ends in the future", []Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(day)}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now}}}}, "until: 2026-12-02T12:00:00Z"},
		{"what was is too old to matter", []Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(-long)}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long}}, ""},
		{"what was is nearly too old to matter", []Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(time.Second - long)}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: long}}, "was: [{dedup: 12h"},
		{"it matters again under a longer window", []Rule{{Operation: "pay", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: known, Until: now.Add(-long)}}}},
			[]Rule{{Operation: "pay", Issued: ByULID, Dedup: 2 * long, Was: []Past{{Dedup: known, Until: now.Add(-2 * long)}}}}, "add was: [{dedup: 12h, until: 2026-11-01T12:00:00Z}, 30d]"},
		{"of two rules the longer one had the shorter past", []Rule{{Operation: "pay.a", Dedup: known}, {Operation: "pay.b", Issued: ByULID, Dedup: 2 * day, Was: []Past{{Dedup: time.Hour, Until: now.Add(-time.Hour)}}}},
			[]Rule{{Operation: "pay.*", Issued: ByULID, Dedup: long, Was: []Past{{Dedup: time.Hour, Until: now.Add(-time.Hour)}}}}, "a dedup window of 12h before (operation pay.a)"},
	} {
		err := mustNew(t, tt.now...).Remembers(mustNew(t, tt.old...), now)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// Nil is the policy without rules, here as everywhere: what it kept was the default.
func TestRemembersTheDefault(t *testing.T) {
	t.Parallel()
	now := rfcTime()
	p := mustNew(t, Rule{Operation: "pay", Issued: ByULID, Dedup: 30 * day})
	if err := p.Remembers(nil, now); err == nil || !strings.Contains(err.Error(), "add was: [7d]") {
		t.Errorf("%v", err)
	}
	var none *Policy
	if err := none.Remembers(p, now); err != nil {
		t.Error(err)
	}
	if err := p.Remembers(p, time.Time{}); err == nil {
		t.Error("a change at no time is accepted")
	}
}

// A change that passes is harmless: no key that counts as in time under the new
// policy can have lost its record under the old one. The old policy's word is taken
// for what was before it. What the message asks for is enough, and every entry of it is.
func TestRemembersMeansStillKnown(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 3))
	now := rfcTime()
	const skew = time.Minute
	hours := func(n int) time.Duration { return time.Duration(1+r.IntN(n)) * time.Hour }
	rule := func() Rule {
		one := Rule{Operation: "pay", Issued: ByOption, Skew: skew, Dedup: hours(20), Failed: hours(20), Abandoned: hours(20), Replay: time.Minute}
		for range r.IntN(3) {
			w := Past{Dedup: hours(20)}
			if r.IntN(4) > 0 {
				w.Until = now.Add(-hours(40) + 4*time.Hour)
			}
			one.Was = append(one.Was, w)
		}
		return one
	}
	// lost returns a key whose record the old policy may have let go, and which is
	// in time under the new one.
	lost := func(old, p *Policy) (age, at time.Duration, found bool) {
		for age := time.Duration(0); age < 70*time.Hour; age += 30 * time.Minute {
			issued := now.Add(-age)
			had := min(old.rules[0].Dedup, old.rules[0].Failed, old.rules[0].Abandoned)
			for _, w := range old.rules[0].Was {
				if w.Until.IsZero() || !issued.After(w.Until) {
					had = min(had, w.Dedup)
				}
			}
			for off := -skew; off <= skew; off += skew {
				for at := time.Duration(0); at < 25*time.Hour; at += 30 * time.Minute {
					verdict, err := p.Lateness(backend.ID{Operation: "pay", Key: "k"}, issued.Add(off), now.Add(at))
					if err == nil && verdict == InTime && age+at >= had {
						return age, at, true
					}
				}
			}
		}
		return 0, 0, false
	}
	passed, refused, harmful := 0, 0, 0
	for range 400 {
		old, p := mustNew(t, rule()), mustNew(t, rule())
		err := p.Remembers(old, now)
		age, at, found := lost(old, p)
		if err == nil {
			passed++
			if found {
				t.Fatalf("seed %d: %+v after %+v passes; a key issued %v before the change is in time %v after it, and its record may be gone", seed, p.rules[0].Rule, old.rules[0].Rule, age, at)
			}
			continue
		}
		refused++
		if found {
			harmful++
		}
		var one *RuleError
		if !errors.As(err, &one) {
			t.Fatal(err)
		}
		_, asked, ok := strings.Cut(one.Text, "add was: [")
		if !ok {
			t.Fatalf("it asks for nothing: %v", one)
		}
		mended := p.rules[0].Rule
		mended.Was = append(mended.Was, readWas(t, strings.TrimSuffix(asked, "]"))...)
		if err := mustNew(t, mended).Remembers(old, now); err != nil {
			t.Fatalf("seed %d: what it asks for is not enough: %v, then %v", seed, one, err)
		}
	}
	if passed < 20 || refused < 20 || harmful*10 < refused*9 {
		t.Errorf("seed %d: %d passed, %d refused, of which %d would have run a key twice", seed, passed, refused, harmful)
	}
}

// readWas reads what a message asks for, which is what people paste into a file.
func readWas(t *testing.T, text string) (all []Past) {
	t.Helper()
	for text != "" {
		var one string
		if inner, ok := strings.CutPrefix(text, "{dedup: "); ok {
			one, text, _ = strings.Cut(inner, "}")
		} else {
			one, text, _ = strings.Cut(text+",", ",")
		}
		text = strings.TrimLeft(text, ", ")
		window, until, timed := strings.Cut(one, ", until: ")
		d, err := ParseWindow(window)
		past := Past{Dedup: d}
		if err == nil && timed {
			past.Until, err = time.Parse(time.RFC3339, until)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, past)
	}
	return all
}
