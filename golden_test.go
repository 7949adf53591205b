package idem_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
)

const goldenFile = "testdata/stored.golden"

// stored lists everything that this package makes and a store keeps, or another
// system is given: fingerprints, results, failures, derived and joined keys.
func stored(t *testing.T) (names []string, values map[string]string) {
	t.Helper()
	values = map[string]string{}
	add := func(name string, value []byte) {
		if _, ok := values[name]; ok {
			t.Fatalf("%s is there twice", name)
		}
		names, values[name] = append(names, name), hex.EncodeToString(value)
	}
	for i, parts := range [][]string{{}, {""}, {"a"}, {"ab", "c"}, {"a", "bc"}, {"\x00\xff"}, {"héllo", "wörld"}, {strings.Repeat("x", 1000)}} {
		raw := make([][]byte, len(parts))
		for i, p := range parts {
			raw[i] = []byte(p)
		}
		add(fmt.Sprint("fingerprint bytes ", i), storedHash(t, idem.FingerprintBytes(raw...)))
	}
	for i, v := range []any{
		nil, true, 0, -1.5, "text", "<&>\u2028", []int{3, 1, 2}, map[string]any{"b": 1, "a": []string{"x"}},
		struct {
			Cents int64  `json:"cents"`
			To    string `json:"to,omitempty"`
		}{199, ""},
		json.RawMessage(`{"z":1e2,"y":100,"x":9007199254740993,"é":"\u00e9"}`),
		json.RawMessage(` [ 1.0 , 1 , 0.10 , -0 ] `), []byte("bytes"),
	} {
		add(fmt.Sprint("fingerprint JSON ", i), storedHash(t, idem.FingerprintJSON(v)))
	}
	add("fingerprint none", storedHash(t, idem.NoFingerprint()))

	body := func(codec idem.Codec, fn func(context.Context) (any, error)) []byte {
		spy := &spyBackend{Backend: memory.New(nil)}
		store, err := idem.New(spy, &idem.Options{Codec: codec})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = run(t.Context(), store, "k", fn)
		return spy.completed().Body
	}
	typed := func(codec idem.Codec, fn any) []byte {
		spy := &spyBackend{Backend: memory.New(nil)}
		store, err := idem.New(spy, &idem.Options{Codec: codec})
		if err != nil {
			t.Fatal(err)
		}
		switch v := fn.(type) {
		case []byte:
			_, err = run(t.Context(), store, "k", func(context.Context) ([]byte, error) { return v, nil })
		case string:
			_, err = run(t.Context(), store, "k", func(context.Context) (string, error) { return v, nil })
		case receipt:
			_, err = run(t.Context(), store, "k", func(context.Context) (receipt, error) { return v, nil })
		case struct{}:
			_, err = run(t.Context(), store, "k", func(context.Context) (struct{}, error) { return v, nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		return spy.completed().Body
	}
	add("result receipt", typed(idem.JSON(), receipt{"R-1", 4200, []string{"a", "<b>"}}))
	add("result bytes", typed(idem.JSON(), []byte{0, 1, 255}))
	add("result nil bytes", typed(idem.JSON(), []byte(nil)))
	add("result empty bytes", typed(idem.JSON(), []byte{}))
	add("result empty string", typed(idem.JSON(), ""))
	add("result none", typed(idem.JSON(), struct{}{}))
	add("result raw", typed(idem.Raw(), "text"))
	add("result not storable", body(idem.JSON(), func(context.Context) (any, error) { return make(chan int), nil }))
	add("result nil interface", body(idem.JSON(), func(context.Context) (any, error) { return nil, nil }))
	add("result interface", body(idem.JSON(), func(context.Context) (any, error) { return "text", nil }))
	add("failure", body(idem.JSON(), func(context.Context) (any, error) { return nil, idem.Permanent("code", errors.New("text")) }))
	add("failure without text", body(idem.JSON(), func(context.Context) (any, error) { return nil, idem.Permanent("code", nil) }))
	add("failure under raw", body(idem.Raw(), func(context.Context) (any, error) { return nil, idem.Permanent("code", errors.New("text")) }))

	for i, id := range []backend.ID{
		{Operation: "o", Key: "k"}, {Tenant: "t", Operation: "o", Key: "k"}, {Tenant: "to", Operation: "k", Key: "x"}, {Operation: "o", Key: "é/\n"},
	} {
		a := &idem.Attempt{Scope: idem.Scope{Tenant: id.Tenant, Operation: id.Operation}, Key: idem.Key(id.Key)}
		for _, step := range []string{"", "psp", "mail"} {
			add(fmt.Sprintf("derived key %d %q", i, step), []byte(a.DeriveKey(step)))
		}
	}
	for i, parts := range [][]string{{"a", "b"}, {"a/b"}, {"100%", ""}, {"é", "日本"}} {
		add(fmt.Sprint("joined key ", i), []byte(idem.JoinKey(parts...)))
	}
	return names, values
}

// What is stored stays readable and keeps its meaning: a release that changed one
// of these would not recognise the records, or the downstream calls, of the one
// before. A line of the golden file is never changed, only added (delete the file
// and run with IDEM_GOLDEN=write after adding one, and look at the difference).
func TestCaseC46_StoredFormsStay(t *testing.T) {
	names, values := stored(t)
	if os.Getenv("IDEM_GOLDEN") == "write" {
		var text strings.Builder
		for _, name := range names {
			fmt.Fprintf(&text, "%s\t%s\n", name, values[name])
		}
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(goldenFile, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	golden := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		golden[name] = value
	}
	if len(golden) < 40 {
		t.Errorf("%d vectors", len(golden))
	}
	for _, name := range names {
		if values[name] != golden[name] {
			t.Errorf("%s has changed:\n was %q\n is  %q", name, golden[name], values[name])
		}
		delete(golden, name)
	}
	for name := range golden {
		t.Errorf("nobody makes %s any more", name)
	}
}

// Records of the first release, with bodies spelled out, are replayed; those of a
// version to come are refused by name and fn does not run (R28).
func TestCaseC46_Versions(t *testing.T) {
	log := &ledger{}
	plant := func(body string, state backend.State, hash []byte) *idem.Store {
		db := newFakeDB()
		store := otherStore(t, db)
		_, err := run(t.Context(), store, "k", func(context.Context) (string, error) { return "", nil })
		if err != nil {
			t.Fatal(err)
		}
		db.damage("k", func(r *backend.Record) {
			r.Body, r.State = []byte(body), state
			if hash != nil {
				r.Fingerprint = hash
			}
		})
		return store
	}
	old := func(body string, state backend.State) (idem.Result[string], error) {
		return run(t.Context(), plant(body, state, nil), "k", does(log, "k", "x"))
	}
	res, err := old("\x01r\x04json\"v\"", backend.Completed)
	wantReplayed(t, res, err, "v")
	res, err = old("\x01r\x03rawv", backend.Completed)
	wantReplayed(t, res, err, "v")
	res, err = old("\x01n", backend.Completed)
	wantReplayed(t, res, err, "")
	_, err = old("\x01u", backend.Completed)
	wantOnly(t, err, idem.ErrResultUnavailable)
	_, err = old("\x01f\x04json{\"code\":\"c\",\"message\":\"m\"}", backend.Failed)
	if err == nil || err.Error() != "idem: failed: c: m" {
		t.Errorf("failure: %v", err)
	}
	_, err = old("\x01cc", backend.Failed)
	wantErr(t, err, &idem.FailedError{Code: "c"})

	_, err = old("\x02r\x04json\"v\"", backend.Completed)
	wantOnly(t, err, idem.ErrUnknownVersion)
	var version *backend.VersionError
	if !errors.As(err, &version) || version.Found != 2 || version.Known != 1 || strings.Contains(err.Error(), "corrupt") {
		t.Errorf("error %v", err)
	}
	_, err = old("\x02f", backend.Failed)
	wantOnly(t, err, idem.ErrUnknownVersion)

	hash := storedHash(t, hashOf("h1"))
	newer := append([]byte{2}, hash[1:]...)
	for name, tt := range map[string]struct {
		hash []byte
		want error
	}{
		"newer only":           {newer, idem.ErrUnknownVersion},
		"both":                 {append(append([]byte{}, newer...), hash...), nil},
		"both, other request":  {append(append([]byte{}, newer...), storedHash(t, hashOf("h2"))...), idem.ErrFingerprintMismatch},
		"same version changed": {append([]byte{1}, make([]byte, 32)...), idem.ErrFingerprintMismatch},
	} {
		_, err := run(t.Context(), plant("\x01r\x04json\"v\"", backend.Completed, tt.hash), "k", does(log, "k", "x"))
		if tt.want == nil && err != nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	log.want(t, "k", 0)
}
