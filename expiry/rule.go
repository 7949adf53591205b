package expiry

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/goidem/idem/backend"
)

// Rule is the retention of the operations that it matches. In a literal, a zero
// field was not given; [Policy.Rules] and [Policy.Explain] return rules that are
// filled in.
type Rule struct {
	// Operation is an operation's name, or a pattern in which each * stands for any
	// bytes, none included: "billing.*" is a prefix, "*.close" a glob, "*" the
	// default rule.
	Operation string
	// Tenant is one tenant; empty means any tenant, the one without a name included.
	Tenant string
	// Preset names windows of a well-known provider, see [Presets]. They take the
	// place of the defaults; windows that the rule gives itself come first.
	Preset string

	// Replay is how long retries of a completed operation are given its result.
	// Not given: a day, or that of the preset, or Dedup if that is shorter.
	Replay time.Duration
	// Dedup is how long the key of a completed operation is recognised. Not given:
	// a week, or that of the preset, or Replay or the longest horizon if that is longer.
	Dedup time.Duration
	// Failed is how long a permanent failure is replayed and its key recognised.
	// Not given: Dedup.
	Failed time.Duration
	// Abandoned is how long an abandoned attempt under Rerun is remembered after the
	// end of its lease. Not given: Dedup.
	Abandoned time.Duration

	// Horizons is until when somebody may ask again.
	Horizons Horizons

	// Issued says that keys carry the time they were issued, and how.
	Issued Issued
	// Skew is how far the clocks of those who issue keys may be off, at most. Not
	// given: DefaultSkew, or a quarter of the shortest window if that is less, where
	// Issued is given.
	Skew time.Duration
	// Was lists shorter dedup windows that this rule's operations had at an earlier
	// time. It is the memory behind [Policy.Lateness]: a record that was stored under
	// a shorter window is gone although today's window says otherwise.
	Was []Past
}

// DefaultSkew is the skew of a rule that gives none: what a machine without a
// working time service is off by after a while, with a margin.
const DefaultSkew = 5 * time.Minute

// Past is a dedup window that applied earlier.
type Past struct {
	Dedup time.Duration
	// Until is when the last process that used the window had stopped. Zero means
	// that this is not known: then the window counts for every key.
	Until time.Time
}

// Horizons are the business facts behind a dedup window: how long after the
// operation each source may still ask for it again. Zero means that there is none.
type Horizons struct {
	// ClientRetry is how long a client tries again by itself.
	ClientRetry time.Duration
	// QueueRedrive is how long a message may lie in a queue or a dead-letter queue
	// before it is driven back.
	QueueRedrive time.Duration
	// WebhookReplay is how long a provider may send an event anew.
	WebhookReplay time.Duration
	// OperatorReplay is how long after the fact a person may run things again.
	OperatorReplay time.Duration
	// Settlement is when the last report that names the operation has been dealt with.
	Settlement time.Duration
}

// horizon is one horizon with its name in messages and files.
type horizon struct {
	name, text string
	d          time.Duration
}

// list returns the horizons in the order of their fields.
func (h *Horizons) list() [5]horizon {
	return [...]horizon{
		{"clientRetry", "client retry", h.ClientRetry},
		{"queueRedrive", "queue redrive", h.QueueRedrive},
		{"webhookReplay", "webhook replay", h.WebhookReplay},
		{"operatorReplay", "operator replay", h.OperatorReplay},
		{"settlement", "settlement", h.Settlement},
	}
}

// longest returns the longest horizon; of equals the first.
func (h *Horizons) longest() (best horizon) {
	for _, one := range h.list() {
		if one.d > best.d {
			best = one
		}
	}
	return best
}

// Longest returns the longest horizon and its name in files; zero if there is none.
func (h *Horizons) Longest() (name string, d time.Duration) {
	best := h.longest()
	return best.name, best.d
}

// Given returns the horizons that there are, by their names in files.
func (h *Horizons) Given() map[string]time.Duration {
	given := make(map[string]time.Duration)
	for _, one := range h.list() {
		if one.d != 0 {
			given[one.name] = one.d
		}
	}
	return given
}

// orElse takes the horizons that h does not give from other.
func (h Horizons) orElse(other Horizons) Horizons {
	for _, p := range [...]struct{ mine, theirs *time.Duration }{
		{&h.ClientRetry, &other.ClientRetry}, {&h.QueueRedrive, &other.QueueRedrive}, {&h.WebhookReplay, &other.WebhookReplay},
		{&h.OperatorReplay, &other.OperatorReplay}, {&h.Settlement, &other.Settlement},
	} {
		if *p.mine == 0 {
			*p.mine = *p.theirs
		}
	}
	return h
}

// RuleError is a rule that is refused.
type RuleError struct {
	// Index is the position of the rule among those that were given.
	Index int
	// Field is what is wrong, by its name in a file: "dedup", "horizons.settlement",
	// "was"; empty: the rule as a whole.
	Field string
	// Rule names the rule: its operation and its tenant.
	Rule string
	// Other is the position of a second rule that it collides with; -1: none.
	Other int
	// Text says what is wrong and what would be right.
	Text string
}

// Error names the rule and the problem.
func (e *RuleError) Error() string {
	return fmt.Sprintf("idem: retention policy, rule %d (%s): %s", e.Index+1, e.Rule, e.Text)
}

// String names the rule by what it matches.
func (r *Rule) String() string {
	if r.Tenant == "" {
		return "operation " + r.Operation
	}
	return "operation " + r.Operation + ", tenant " + r.Tenant
}

// problem is a field and what is wrong with it.
type problem struct {
	field, text string
	other       int
}

func wrong(field, format string, args ...any) *problem {
	return &problem{field, fmt.Sprintf(format, args...), -1}
}

// with names the second rule of a collision.
func (p *problem) with(other int) *problem {
	p.other = other
	return p
}

// resolve checks the rule and fills in what it does not give.
func (r *Rule) resolve() *problem {
	if p := r.checkPattern(); p != nil {
		return p
	}
	if p := r.checkGiven(); p != nil {
		return p
	}
	base := Preset{Replay: DefaultReplay, Dedup: DefaultDedup}
	if r.Preset != "" {
		var known bool
		if base, known = presetNamed(r.Preset); !known {
			return wrong("preset", "there is no preset %q; there are %s", r.Preset, strings.Join(presetNames(), ", "))
		}
		r.Horizons = r.Horizons.orElse(base.Horizons)
	}
	// A longer replay window or horizon takes a dedup window that was not given
	// with it; a shorter dedup window does so with a replay window.
	longest := r.Horizons.longest()
	replayGiven := r.Replay != 0
	if !replayGiven {
		r.Replay = base.Replay
	}
	if r.Dedup == 0 {
		r.Dedup = max(base.Dedup, r.Replay, longest.d)
	}
	if !replayGiven {
		r.Replay = min(r.Replay, r.Dedup)
	}
	if r.Failed == 0 {
		r.Failed = r.Dedup
	}
	if r.Abandoned == 0 {
		r.Abandoned = r.Dedup
	}
	switch {
	case r.Replay > r.Dedup:
		return wrong("replay", "replay is %v and dedup %v: a result cannot be kept longer than its key; dedup must be at least %v", Show(r.Replay), Show(r.Dedup), Show(r.Replay))
	case r.Dedup < longest.d:
		return wrong("dedup", "dedup is %v and the %s horizon %v: a key that is forgotten before the last one who asks would run again; dedup must be at least %v", Show(r.Dedup), longest.text, Show(longest.d), Show(longest.d))
	case r.Failed < longest.d:
		return wrong("failed", "failed is %v and the %s horizon %v: a failure that is forgotten before the last one who asks would be tried again; failed must be at least %v", Show(r.Failed), longest.text, Show(longest.d), Show(longest.d))
	}
	return r.resolveIssued()
}

// resolveIssued checks what belongs to late keys.
func (r *Rule) resolveIssued() *problem {
	if r.Issued == NotDeclared {
		switch {
		case r.Skew != 0:
			return wrong("skew", "a skew without issued: say how keys carry their issue time (uuidv7, ulid or explicit), or leave skew out")
		case len(r.Was) > 0:
			return wrong("was", "was without issued: earlier windows matter only where keys carry their issue time (uuidv7, ulid or explicit); leave it out")
		}
		return nil
	}
	if r.Skew == 0 {
		r.Skew = r.defaultSkew()
	}
	if shortest := r.shortest(time.Time{}); r.Skew >= shortest {
		return wrong("skew", "skew is %v and the shortest dedup window that ever applied %v: every key would count as late; skew must be well below it", Show(r.Skew), Show(shortest))
	}
	return nil
}

func (r *Rule) defaultSkew() time.Duration {
	return min(DefaultSkew, r.shortest(time.Time{})/4)
}

// checkPattern checks what the rule matches.
func (r *Rule) checkPattern() *problem {
	if r.Operation == "" {
		return wrong("operation", "a policy without its operation; write operation: NAME, or PREFIX* for all that begin so")
	}
	if strings.Contains(r.Operation, "**") {
		return wrong("operation", "two stars side by side mean what one means; write one")
	}
	literal := strings.ReplaceAll(r.Operation, "*", "")
	if literal == "" {
		literal = "*"
	}
	if err := (backend.ID{Operation: literal, Key: "k"}).Validate(); err != nil {
		return wrong("operation", "no operation can match: %s", plain(err))
	}
	if r.Tenant == "*" {
		return wrong("tenant", "tenant is *: leave it out for any tenant")
	}
	if err := (backend.ID{Tenant: r.Tenant, Operation: "o", Key: "k"}).Validate(); err != nil {
		return wrong("tenant", "there is no such tenant: %s", plain(err))
	}
	return nil
}

func plain(err error) string { return strings.TrimPrefix(err.Error(), "idem: ") }

// checkGiven refuses windows that no window can be. Zero is "not given" in a
// literal; a file refuses it.
func (r *Rule) checkGiven() *problem {
	fields := []horizon{{"replay", "replay", r.Replay}, {"dedup", "dedup", r.Dedup}, {"failed", "failed", r.Failed}, {"abandoned", "abandoned", r.Abandoned}, {"skew", "skew", r.Skew}}
	for _, h := range r.Horizons.list() {
		h.name, h.text = "horizons."+h.name, "the "+h.text+" horizon"
		fields = append(fields, h)
	}
	for _, f := range fields {
		if f.d != 0 {
			if p := checkWindow(f.name, f.text, f.d); p != nil {
				return p
			}
		}
	}
	if r.Issued > ByOption {
		return wrong("issued", "issued is %v; it must be uuidv7, ulid or explicit", r.Issued)
	}
	for _, w := range r.Was {
		if p := checkWindow("was", "an earlier window", w.Dedup); p != nil {
			return p
		}
	}
	return nil
}

// checkWindow refuses windows that are not positive or overflow.
func checkWindow(field, name string, d time.Duration) *problem {
	switch {
	case d <= 0:
		return wrong(field, "%s is %v; it must be positive: zero is neither for ever nor not at all", name, d)
	case d > MaxWindow:
		return wrong(field, "%s is %v; at most a hundred years (36500d) can be kept", name, Show(d))
	}
	return nil
}

// windows are a rule's windows by outcome.
type windows struct {
	completed         Retention
	failed, abandoned time.Duration
}

func (r *Rule) windows() windows {
	return windows{Retention{Replay: r.Replay, Dedup: r.Dedup}, r.Failed, r.Abandoned}
}

// retention returns the windows for an outcome; zero: it has none.
func (w *windows) retention(s backend.State) Retention {
	switch s {
	case backend.Completed:
		return w.completed
	case backend.Failed:
		return Retention{Replay: w.failed, Dedup: w.failed}
	case backend.InFlight:
		return Retention{Replay: w.abandoned, Dedup: w.abandoned}
	}
	return Retention{}
}

// shortest is the shortest window that can have applied to a key that was issued
// not before the given time. The zero time asks for the shortest that ever applied.
func (r *Rule) shortest(notBefore time.Time) time.Duration {
	d := min(r.Dedup, r.Failed, r.Abandoned)
	for _, w := range r.Was {
		if w.Until.IsZero() || !notBefore.After(w.Until) {
			d = min(d, w.Dedup)
		}
	}
	return d
}

// Show writes a window as people do: whole days as 45d, everything else as Go does
// without its zeros. [ParseWindow] reads it.
func Show(d time.Duration) string {
	const day = 24 * time.Hour
	if d != 0 && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// ParseWindow reads a duration as Go writes it (90s, 12h, 1h30m), or whole days
// (45d). It accepts what is no window, zero and negative durations: rules refuse
// those by name.
func ParseWindow(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, ok := wholeDays(days); ok {
			if n > math.MaxInt64/int64(24*time.Hour) {
				return 0, fmt.Errorf("idem: %q overflows; at most a hundred years (36500d) can be kept", text)
			}
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("idem: %q is no duration; write 90s, 15m, 12h or 30d", text)
	}
	return d, nil
}

// wholeDays reads digits; more than fifteen of them are as good as infinite.
func wholeDays(text string) (n int64, ok bool) {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return 0, false
		}
		if n = n*10 + int64(text[i]-'0'); n > 1e15 {
			n = 1e15
		}
	}
	return n, text != ""
}
