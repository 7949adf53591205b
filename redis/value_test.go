package redis

import (
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// lint:const a test flag
var update = flag.Bool("update", false, "write the golden values of this layout")

// samples are records of every form.
func samples() map[string]backend.Record {
	at := time.UnixMicro(1_790_000_000_123_456).UTC()
	owner := [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	fp := append([]byte{1}, make([]byte, 32)...)
	ref := backend.Ref{ID: backend.ID{Tenant: "acme", Operation: "billing.invoice", Key: "order-1001"}, Owner: owner}
	holder := backend.Holder{Host: "worker-7", PID: 4711, Started: at.Add(-time.Hour)}
	flight := backend.Record{Ref: ref, State: backend.InFlight, Fingerprint: fp, Fence: 1_790_000_000_123_000, Attempt: 3, TookOver: true, OnAbandoned: backend.Rerun, Holder: holder, ReservedAt: at, LeaseUntil: at.Add(time.Minute), KnownUntil: at.Add(time.Hour)}
	held := flight
	held.OnAbandoned, held.KnownUntil, held.TookOver = backend.Hold, time.Time{}, false
	uncertain := held
	uncertain.State, uncertain.Body = backend.Uncertain, []byte("what is known")
	done := flight
	done.State, done.Holder, done.LeaseUntil, done.Body = backend.Completed, backend.Holder{}, time.Time{}, []byte("the answer")
	done.CompletedAt, done.ReplayUntil, done.KnownUntil = at, at.Add(time.Hour), at.Add(2*time.Hour)
	failed := done
	failed.State, failed.Body, failed.Evidence, failed.Owner = backend.Failed, nil, "asked the bank", [16]byte{}
	open := flight
	open.State, open.Fingerprint, open.LeaseUntil = backend.Open, nil, time.Time{}
	bare := backend.Record{Ref: backend.Ref{ID: backend.ID{Operation: "o", Key: "k"}, Owner: owner}, State: backend.InFlight, Fence: 1, Attempt: 1, OnAbandoned: backend.Rerun, ReservedAt: at}
	return map[string]backend.Record{"in-flight": flight, "held": held, "uncertain": uncertain, "completed": done, "failed": failed, "open": open, "no-lease": bare}
}

func TestValueRoundTrip(t *testing.T) {
	for name, rec := range samples() {
		value, body := encode(&rec)
		if body != nil {
			t.Errorf("%s: a small body got a key of its own", name)
		}
		st, err := decode(string(value), -1, &rec.ID)
		if err != nil || !reflect.DeepEqual(st.rec, rec) {
			t.Errorf("%s: %+v, %v; want %+v", name, st.rec, err, rec)
		}
		if st, err = decode(string(value), -1, nil); err != nil || st.rec.ID != rec.ID {
			t.Errorf("%s: without knowing its identity: %+v, %v", name, st.rec.ID, err)
		}
	}
}

// TestValueGolden: the layout is a stored format, and what an earlier release wrote
// stays readable.
func TestValueGolden(t *testing.T) {
	for name, rec := range samples() {
		path := filepath.Join("testdata", "value-v1-"+name+".hex")
		if *update {
			value, _ := encode(&rec)
			if err := os.WriteFile(path, []byte(hex.EncodeToString(value)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		value, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if st, err := decode(string(value), -1, &rec.ID); err != nil || !reflect.DeepEqual(st.rec, rec) {
			t.Errorf("%s: %+v, %v; want %+v", path, st.rec, err, rec)
		}
		if again, _ := encode(&rec); string(again) != string(value) {
			t.Errorf("%s: this code writes another form under the same version", path)
		}
	}
}

// TestValueDamage: every cut, and every changed byte behind the fields that scripts
// change, is noticed.
func TestValueDamage(t *testing.T) {
	for name, rec := range samples() {
		value, _ := encode(&rec)
		for n := range value {
			_, err := decode(string(value[:n]), -1, &rec.ID)
			if !errors.Is(err, backend.ErrCorruptRecord) {
				t.Errorf("%s cut at %d: %v", name, n, err)
			}
		}
		fp := len(rec.Fingerprint)
		for n := range value {
			bad := append([]byte(nil), value...)
			bad[n] ^= 0x40
			_, err := decode(string(bad), -1, &rec.ID)
			covered := n == 0 || n == 1 || n >= posBindSum && n < len(head(string(value))) || n >= len(value)-len(rec.Body)
			if covered && err == nil {
				t.Errorf("%s with byte %d of %d changed (fingerprint %d): no error", name, n, len(value), fp)
			}
			if err != nil && !errors.Is(err, backend.ErrCorruptRecord) && !errors.Is(err, backend.ErrUnknownVersion) {
				t.Errorf("%s with byte %d changed: %v", name, n, err)
			}
		}
	}
}

// TestValueOfAnotherIdentity: a collision of sums is an error, never shared.
func TestValueOfAnotherIdentity(t *testing.T) {
	rec := samples()["completed"]
	value, _ := encode(&rec)
	other := rec.ID
	other.Tenant = "acmf"
	if _, err := decode(string(value), -1, &other); !errors.Is(err, backend.ErrCorruptRecord) {
		t.Errorf("another identity's record: %v; want ErrCorruptRecord", err)
	}
}

func TestRelativeValue(t *testing.T) {
	rec := samples()["in-flight"]
	value, _ := encode(&rec)
	makeRelative(value, 30_000, 600_000)
	const expire = 1_790_000_000_000
	st, err := decode(string(value), expire, &rec.ID)
	if err != nil {
		t.Fatal(err)
	}
	got := [...]int64{st.rec.ReservedAt.UnixMilli(), st.rec.LeaseUntil.UnixMilli(), st.rec.KnownUntil.UnixMilli(), int64(st.rec.Fence)}
	if want := [...]int64{expire - 630_000, expire - 600_000, expire, (expire - 630_000) * 1000}; got != want {
		t.Errorf("times and fence are %v; want %v", got, want)
	}
	// Somebody has persisted the key: nothing tells the lease any more.
	if _, err := decode(string(value), -1, &rec.ID); !errors.Is(err, backend.ErrCorruptRecord) {
		t.Errorf("without an expiry: %v; want ErrCorruptRecord", err)
	}
}
