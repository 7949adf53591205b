package expiry

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// The example of RFC 9562, appendix A.6.
const rfcUUID = "017F22E2-79B0-7CC3-98C4-DC0C0C07398F"

func rfcTime() time.Time { return time.Date(2022, 2, 22, 19, 22, 22, 0, time.UTC) }

func TestUUIDv7Time(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]time.Time{
		rfcUUID:                                rfcTime(),
		strings.ToLower(rfcUUID):               rfcTime(),
		"00000000-0000-7000-8000-000000000000": time.UnixMilli(0),
		"ffffffff-ffff-7fff-bfff-ffffffffffff": time.UnixMilli(1<<48 - 1),
	} {
		if got, err := UUIDv7Time(key); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", key, got, err, want)
		}
	}
	for _, key := range []string{
		"", "order-1", strings.ToLower(rfcUUID) + "0", "{" + rfcUUID + "}", "urn:uuid:" + rfcUUID,
		strings.ReplaceAll(rfcUUID, "-", ""),
		"017F22E2-79B0-4CC3-98C4-DC0C0C07398F",     // version 4
		"017F22E2-79B0-1CC3-98C4-DC0C0C07398F",     // version 1
		"017F22E2-79B0-7CC3-18C4-DC0C0C07398F",     // variant
		"017F22E2-79B0-7CC3-C8C4-DC0C0C07398F",     // variant
		"017f22E2-79B0-7CC3-98C4-DC0C0C07398F",     // mixed case: another key in every store
		"017F22E2-79B0-7CC3-98C4-DC0C0C07398G",     // no hex
		"017F22E2-79B0-7CC3-98C4 DC0C0C07398F",     // no hyphen
		"017F22E279-B0-7CC3-98C4-DC0C0C07398F",     // hyphen in the wrong place
		" 17F22E2-79B0-7CC3-98C4-DC0C0C07398F",     // space
		"017F22E2-79B0-7CC3-98C4-DC0C0C0739\u00e9", // 36 bytes
	} {
		if got, err := UUIDv7Time(key); err == nil {
			t.Errorf("%q is read as %v", key, got)
		} else if len(key) > 8 && strings.Contains(err.Error(), key) {
			t.Errorf("the error quotes the key: %v", err)
		}
	}
}

func TestULIDTime(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]time.Time{
		"01ARYZ6S41TSV4RRFFQ69G5FAV": time.UnixMilli(1469918176385), // of the specification
		"01aryz6s41tsv4rrffq69g5fav": time.UnixMilli(1469918176385),
		"00000000000000000000000000": time.UnixMilli(0),
		"7ZZZZZZZZZZZZZZZZZZZZZZZZZ": time.UnixMilli(1<<48 - 1),
	} {
		if got, err := ULIDTime(key); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", key, got, err, want)
		}
	}
	for _, key := range []string{
		"", "order-1", "01ARYZ6S41TSV4RRFFQ69G5FA", "01ARYZ6S41TSV4RRFFQ69G5FAVV",
		"8ZZZZZZZZZZZZZZZZZZZZZZZZZ", // 129 bits
		"Z1ARYZ6S41TSV4RRFFQ69G5FAV",
		"01ARYZ6S41TSV4RRFFQ69G5FAI", "01ARYZ6S41TSV4RRFFQ69G5FAL", "01ARYZ6S41TSV4RRFFQ69G5FAO", "01ARYZ6S41TSV4RRFFQ69G5FAU",
		"01ARYZ6S41TSV4RRFFQ69G5Fav", "01ARYZ6S41-SV4RRFFQ69G5FAV", "01ARYZ6S41TSV4RRFFQ69G5F\u00e9",
	} {
		if got, err := ULIDTime(key); err == nil {
			t.Errorf("%q is read as %v", key, got)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	now := rfcTime()
	const window, skew = 24 * time.Hour, 5 * time.Minute
	for _, tt := range []struct {
		name   string
		issued time.Time
		want   Verdict
	}{
		{"now", now, InTime},
		{"just inside", now.Add(-window + skew + time.Millisecond), InTime},
		{"at the edge", now.Add(-window + skew), Late},
		{"just outside", now.Add(-window + skew - time.Millisecond), Late},
		{"long ago", time.UnixMilli(0), Late},
		{"before all time", time.Time{}, Late},
		{"ahead within the skew", now.Add(skew), InTime},
		{"ahead beyond the skew", now.Add(skew + time.Millisecond), FromFuture},
		{"the last UUID", time.UnixMilli(1<<48 - 1), FromFuture},
		{"beyond all time", time.Unix(math.MaxInt64/2, 0), FromFuture},
	} {
		if got := Judge(tt.issued, now, window, skew); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// No key that counts as in time can have lost its record: for all issue times,
// completions, and clocks off by the skew, the record of a key that was completed
// is still there while the key is in time.
func TestInTimeMeansStillKnown(t *testing.T) {
	t.Parallel()
	const window, skew = 60, 5
	base := rfcTime()
	at := func(minutes int) time.Time { return base.Add(time.Duration(minutes) * time.Minute) }
	inTime := 0
	for off := -skew; off <= skew; off++ { // the issuer's clock is ahead by off
		for completed := 0; completed <= 10; completed++ { // after the true issue at 0
			for now := completed; now < 3*window; now++ {
				known := at(now).Before(at(completed + window))
				if Judge(at(off), at(now), window*time.Minute, skew*time.Minute) == InTime {
					inTime++
					if !known {
						t.Fatalf("clock ahead by %d, completed at %d, now %d: in time, and its record is gone", off, completed, now)
					}
				}
			}
		}
	}
	if inTime == 0 {
		t.Error("no key was in time")
	}
}

func TestLateness(t *testing.T) {
	t.Parallel()
	change := rfcTime().Add(-3 * day)
	p := mustNew(t,
		Rule{Operation: "uuid", Issued: ByUUIDv7, Dedup: 7 * day},
		Rule{Operation: "ulid", Issued: ByULID, Dedup: 7 * day},
		Rule{Operation: "given", Issued: ByOption, Dedup: 7 * day},
		Rule{Operation: "was", Issued: ByOption, Dedup: 7 * day, Was: []Past{{Dedup: 2 * day}, {Dedup: 12 * time.Hour}}},
		Rule{Operation: "until", Issued: ByOption, Dedup: 7 * day, Was: []Past{{Dedup: 12 * time.Hour, Until: change}}},
		Rule{Operation: "failed", Issued: ByOption, Dedup: 7 * day, Failed: day},
		Rule{Operation: "abandoned", Issued: ByOption, Dedup: 7 * day, Abandoned: day},
		Rule{Operation: "plain"},
	)
	now := rfcTime()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, tt := range []struct {
		name, operation, key string
		issued, now          time.Time
		want                 Verdict
		wrong                string
	}{
		{"fresh", "uuid", rfcUUID, time.Time{}, now.Add(day), InTime, ""},
		{"old", "uuid", rfcUUID, time.Time{}, now.Add(7 * day), Late, ""},
		{"future", "uuid", rfcUUID, time.Time{}, now.Add(-time.Hour), FromFuture, ""},
		{"not a UUID", "uuid", "order-1", time.Time{}, now, InTime, "no UUID of version 7"},
		{"the earlier counts: the caller's", "uuid", rfcUUID, ago(8 * day), now, Late, ""},
		{"the earlier counts: the key's", "uuid", rfcUUID, now.Add(8 * day), now.Add(8 * day), Late, ""},
		{"ulid", "ulid", "01ARYZ6S41TSV4RRFFQ69G5FAV", time.Time{}, time.UnixMilli(1469918176385).Add(day), InTime, ""},
		{"old ulid", "ulid", "01ARYZ6S41TSV4RRFFQ69G5FAV", time.Time{}, now, Late, ""},
		{"not a ULID", "ulid", rfcUUID, time.Time{}, now, InTime, "no ULID"},
		{"given", "given", "k", ago(time.Hour), now, InTime, ""},
		{"given, old", "given", "k", ago(8 * day), now, Late, ""},
		{"not given", "given", "k", time.Time{}, now, InTime, "gives the issue time of its key (IssuedAt), and this call gives none"},
		{"the shortest of all windows", "was", "k", ago(13 * time.Hour), now, Late, ""},
		{"inside all windows", "was", "k", ago(11 * time.Hour), now, InTime, ""},
		{"issued before the change", "until", "k", ago(4 * day), now, Late, ""},
		{"issued at the change, within the skew", "until", "k", change.Add(DefaultSkew), now, Late, ""},
		{"issued after the change", "until", "k", change.Add(DefaultSkew + time.Second), now, InTime, ""},
		{"failures are forgotten earlier", "failed", "k", ago(2 * day), now, Late, ""},
		{"abandoned runs are forgotten earlier", "abandoned", "k", ago(2 * day), now, Late, ""},
		{"not declared", "plain", rfcUUID, time.Time{}, now.Add(1000 * day), InTime, ""},
		{"not declared, given all the same", "plain", "k", ago(8 * day), now, Late, ""},
		{"no rule, given all the same", "none", "k", ago(8 * day), now, Late, ""},
	} {
		got, err := p.Lateness(backend.ID{Operation: tt.operation, Key: tt.key}, tt.issued, tt.now)
		if (err != nil) != (tt.wrong != "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
			t.Errorf("%s: %v, want an error with %q", tt.name, err, tt.wrong)
		}
		if got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestIssuedNames(t *testing.T) {
	t.Parallel()
	for _, i := range []Issued{ByUUIDv7, ByULID, ByOption} {
		if got, err := ParseIssued(i.String()); err != nil || got != i {
			t.Errorf("%v: %v, %v", i, got, err)
		}
	}
	for _, text := range []string{"", "uuid", "UUIDv7", "not declared"} {
		if _, err := ParseIssued(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func FuzzKeyTimes(f *testing.F) {
	f.Add(rfcUUID)
	f.Add("01ARYZ6S41TSV4RRFFQ69G5FAV")
	f.Fuzz(func(t *testing.T, key string) {
		if at, err := UUIDv7Time(key); err == nil && (len(key) != 36 || key[14] != '7' || at.UnixMilli() < 0 || at.UnixMilli() >= 1<<48) {
			t.Errorf("%q: %v", key, at)
		}
		if at, err := ULIDTime(key); err == nil && (len(key) != 26 || at.UnixMilli() < 0 || at.UnixMilli() >= 1<<48) {
			t.Errorf("%q: %v", key, at)
		}
	})
}
