package backend

import (
	"bytes"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// fixtureRecords are the records of testdata, written by the first release. Neither
// they nor the files may ever change.
func fixtureRecords() map[string]Record {
	at := func(sec int64) time.Time { return time.Unix(1_793_000_000+sec, 123_456_789).UTC() }
	ref := Ref{ID: testID, Owner: [16]byte{0xde, 0xad, 0xbe, 0xef, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}
	digest := append([]byte{1}, bytes.Repeat([]byte{0xab}, 32)...)
	holder := Holder{Host: "worker-7", PID: 4711, Started: at(-60)}
	return map[string]Record{
		"in-flight": {Ref: ref, State: InFlight, Fingerprint: digest, Fence: 7, Attempt: 2, TookOver: true, OnAbandoned: Recover, Holder: holder, ReservedAt: at(0), LeaseUntil: at(30)},
		"completed": {Ref: ref, State: Completed, Fingerprint: digest, Fence: 1, Attempt: 1, OnAbandoned: Rerun, Body: []byte("\x00{\"n\":1}\xff"), ReservedAt: at(0), CompletedAt: at(1), ReplayUntil: at(3600), KnownUntil: at(86400)},
		"empty":     {Ref: ref, State: Completed, Fence: 1, Attempt: 1, OnAbandoned: Rerun, ReservedAt: at(0), CompletedAt: at(1), ReplayUntil: at(3600), KnownUntil: at(86400)},
		"failed":    {Ref: ref, State: Failed, Fingerprint: digest, Fence: 3, Attempt: 3, OnAbandoned: Hold, Body: []byte("card_declined"), ReservedAt: at(0), CompletedAt: at(1), ReplayUntil: at(86400), KnownUntil: at(86400)},
		"uncertain": {Ref: ref, State: Uncertain, Fingerprint: digest, Fence: math.MaxUint64, Attempt: math.MaxUint32, OnAbandoned: Hold, Holder: holder, ReservedAt: at(0), LeaseUntil: at(30)},
		"open":      {Ref: Ref{ID: ID{Operation: "op", Key: "é/🙂"}, Owner: ref.Owner}, State: Open, Fence: 4, Attempt: 2, OnAbandoned: Rerun, Evidence: "no charge; host was replaced", ReservedAt: at(0), KnownUntil: at(600)},
		"no-lease":  {Ref: ref, State: InFlight, Fence: 9, Attempt: 1, OnAbandoned: Rerun, ReservedAt: at(0)},
	}
}

// TestCaseC46_OldRecordsStayReadable reads the files of the first release and
// compares the bytes that are written today: within one version they are the same.
func TestCaseC46_OldRecordsStayReadable(t *testing.T) {
	for name, want := range fixtureRecords() {
		file := filepath.Join("testdata", "record-v1-"+name+".hex")
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) && os.Getenv("BACKEND_WRITE_FIXTURES") != "" {
			text = []byte(hex.EncodeToString(AppendRecord(nil, &want)) + "\n")
			err = os.WriteFile(file, text, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		raw, err := hex.DecodeString(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseRecord(raw)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: read %+v, %v; want %+v", name, got, err, want)
		}
		if now := AppendRecord(nil, &want); !bytes.Equal(now, raw) {
			t.Errorf("%s: written as %x; the first release wrote %x", name, now, raw)
		}
	}
}

func TestRecordRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	text := func(n int) string { return strings.Repeat("é", rng.IntN(n/2+1)) }
	when := func() time.Time {
		if rng.IntN(3) == 0 {
			return time.Time{}
		}
		return time.Unix(rng.Int64N(1<<33)-1<<31, rng.Int64N(1e9)).UTC()
	}
	data := func(n int) []byte {
		if n = rng.IntN(n + 1); n == 0 {
			return nil
		}
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	for range 2000 {
		want := Record{
			Ref:   Ref{ID: ID{Tenant: text(MaxTenant), Operation: "o" + text(MaxOperation-1), Key: "k" + text(MaxKey-1)}},
			State: State(1 + rng.IntN(5)), Fingerprint: data(MaxFingerprint), Fence: rng.Uint64(), Attempt: int(rng.Uint32()),
			TookOver: rng.IntN(2) == 0, OnAbandoned: Abandoned(1 + rng.IntN(3)), Body: data(3000), Evidence: text(MaxEvidence),
			ReservedAt: when(), LeaseUntil: when(), CompletedAt: when(), ReplayUntil: when(), KnownUntil: when(),
		}
		copy(want.Owner[:], data(16))
		if rng.IntN(2) == 0 {
			want.Holder = Holder{Host: text(MaxHost), PID: int(rng.Int32()), Started: when()}
		}
		prefix := data(20)
		raw := AppendRecord(bytes.Clone(prefix), &want)
		if !bytes.HasPrefix(raw, prefix) {
			t.Fatal("AppendRecord changed what it appends to")
		}
		raw = raw[len(prefix):]
		got, err := ParseRecord(raw)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("read %+v, %v\nwant %+v", got, err, want)
		}
		for i := range raw { // R27: the record shares no memory with its stored form
			raw[i] = '#'
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatal("a parsed record changed with the bytes that it was read from")
		}
	}
}

func TestLongestRecordRoundTrips(t *testing.T) {
	want := Record{
		Ref: Ref{ID: ID{Tenant: strings.Repeat("t", MaxTenant), Operation: strings.Repeat("o", MaxOperation), Key: strings.Repeat("k", MaxKey)}, Owner: testOwner}, State: Completed,
		Fingerprint: make([]byte, MaxFingerprint), Evidence: strings.Repeat("e", MaxEvidence), Holder: Holder{Host: strings.Repeat("h", MaxHost)}, Body: make([]byte, 1<<16),
	}
	got, err := ParseRecord(AppendRecord(nil, &want))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("the longest record came back differently: %v", err)
	}
}

func TestDamagedRecords(t *testing.T) {
	rec := fixtureRecords()["in-flight"]
	good := AppendRecord(nil, &rec)
	for n := range good {
		if _, err := ParseRecord(good[:n]); !errors.Is(err, ErrCorruptRecord) {
			t.Errorf("cut to %d bytes: %v; want ErrCorruptRecord", n, err)
		}
	}
	for i := 1; i < len(good); i++ {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			if _, err := ParseRecord(bad); !errors.Is(err, ErrCorruptRecord) {
				t.Errorf("bit %d of byte %d flipped: %v; want ErrCorruptRecord", bit, i, err)
			}
		}
	}
	if _, err := ParseRecord(append(bytes.Clone(good), 0)); !errors.Is(err, ErrCorruptRecord) {
		t.Errorf("one byte more: %v; want ErrCorruptRecord", err)
	}
	if _, err := ParseRecord(make([]byte, 4096)); err == nil {
		t.Error("a page of zeros was read as a record")
	}
}

// seal gives bytes a right checksum, so that damage gets past it.
func seal(b []byte) []byte {
	n := len(b) - checksumSize
	sum := crc32.Checksum(b[:n], castagnoli())
	return append(b[:n:n], byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
}

func TestUnknownVersions(t *testing.T) {
	rec := fixtureRecords()["completed"]
	for _, v := range []byte{0, 2, 3, 255} {
		raw := AppendRecord(nil, &rec)
		raw[0] = v
		for _, b := range [][]byte{raw, seal(raw), {v}} {
			_, err := ParseRecord(b)
			var version *VersionError
			if !errors.Is(err, ErrUnknownVersion) || !errors.As(err, &version) || version.Found != int(v) || version.What != "record" {
				t.Errorf("record version %d: %v; want a VersionError", v, err)
			}
			if errors.Is(err, ErrCorruptRecord) {
				t.Errorf("record version %d counts as damage", v)
			}
		}
	}
	raw := AppendRecord(nil, &rec)
	raw[fixedSize+2] = 9 // the version of the identity
	var version *VersionError
	if _, err := ParseRecord(seal(raw)); !errors.As(err, &version) || version.What != "identity" || version.Found != 9 {
		t.Errorf("identity version 9: %v; want a VersionError", err)
	}
}

func TestImpossibleStates(t *testing.T) {
	rec := fixtureRecords()["completed"]
	for _, s := range []byte{0, 6, 255} {
		raw := AppendRecord(nil, &rec)
		raw[1] = s
		if _, err := ParseRecord(seal(raw)); !errors.Is(err, ErrCorruptRecord) {
			t.Errorf("state %d: %v; want ErrCorruptRecord", s, err)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, rec := range fixtureRecords() {
		raw := AppendRecord(nil, &rec)
		f.Add(raw)
		f.Add(raw[:len(raw)/2])
		raw[fixedSize]++
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, seal(append(bytes.Clone(b), 0, 0, 0, 0))} {
			rec, err := ParseRecord(b)
			if err != nil {
				if !errors.Is(err, ErrCorruptRecord) && !errors.Is(err, ErrUnknownVersion) {
					t.Fatalf("error %v is neither ErrCorruptRecord nor ErrUnknownVersion", err)
				}
				continue
			}
			again, err := ParseRecord(AppendRecord(nil, &rec))
			if err != nil || !reflect.DeepEqual(again, rec) {
				t.Fatalf("%+v was read, written and read again as %+v, %v", rec, again, err)
			}
		}
	})
}

func TestCloneSharesNothing(t *testing.T) {
	rec := fixtureRecords()["completed"]
	c := rec.Clone()
	c.Body[0], c.Fingerprint[0] = '#', '#'
	if rec.Body[0] == '#' || rec.Fingerprint[0] == '#' {
		t.Error("a clone shares memory with its original")
	}
	if c = (Record{}).Clone(); c.Body != nil || c.Fingerprint != nil {
		t.Error("a clone of nothing is not nothing")
	}
}
