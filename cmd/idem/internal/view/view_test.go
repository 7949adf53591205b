package view

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem"
)

func TestTextIsSafeForATerminal(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"order-1": "order-1", "": `""`, "a b": "a b", "é": "é",
		"\x1b[2J": `"\x1b[2J"`, "a\nb": `"a\nb"`, "\u202egnp": `"\u202egnp"`, "\xff": `"\xff"`,
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestAgesAndSizes(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0ms", 0: "0ms", 999 * time.Millisecond: "999ms", time.Second: "1s",
		90 * time.Second: "1m30s", 61 * time.Minute: "1h01m", 47 * time.Hour: "47h00m", 49 * time.Hour: "2d01h",
	} {
		if got := Age(d); got != want {
			t.Errorf("Age(%v) = %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1 << 20: "1.0 MiB", 5 << 40: "5.0 TiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestTableHasStraightColumnsAndNoColoursInAFile(t *testing.T) {
	t.Parallel()
	table := Table{Header: []string{"A", "B", "C"}}
	table.Add(Cell{"ééé", Red}, C("1"), C("x"))
	table.Add(C("z"), Cell{"", Green}, C("y"))
	var b bytes.Buffer
	if err := table.Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := "A    B  C\nééé  1  x\nz       y\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestEveryStateIsExplained(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, name := range States() {
		state, abandoned, err := ParseState(name)
		if err != nil {
			t.Fatal(err)
		}
		r := idem.Record{State: state, OnAbandoned: idem.Rerun, LeaseUntil: now.Add(time.Minute)}
		if abandoned {
			r.LeaseUntil = now.Add(-time.Minute)
		}
		var b bytes.Buffer
		if err := Show(&b, &r, now); err != nil {
			t.Fatal(err)
		}
		if text := strings.ReplaceAll(name, "-", " ") + ": "; !strings.Contains(b.String(), text) {
			t.Errorf("%s: %s", name, b.String())
		}
	}
	if _, _, err := ParseState("gone"); err == nil {
		t.Error("an unknown state is accepted")
	}
	held := idem.Record{State: idem.StateInFlight}
	if Abandoned(&held, now) || Lease(&held, now) != "no end: held for a person" {
		t.Error("a record without a deadline is taken for abandoned")
	}
}
