package backend

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vectorIDs are the identities of testdata/id-v1.txt. Neither may ever change.
func vectorIDs() []ID {
	return []ID{
		{"", "op", "k"},
		{"acme", "billing.invoice", "order-1001"},
		{"acme", "billing.invoice", "order-1002"},
		{"a:b", "op", "c"},
		{"a", "op", "b:c"},
		{"a/b", "op", "c"},
		{"a", "op", "b/c"},
		{"a", "bc", "d"},
		{"ab", "c", "d"},
		{"A", "op", "k"},
		{"a", "op", "k"},
		{"a", "op", "k "},
		{"a", "op", "\u00e9"},
		{"a", "op", "e\u0301"},
		{"", "op", "🙂"},
		{"", "op", "line\nbreak"},
		{"", "op", "018f4e9a-7c1e-7000-8000-0123456789ab"},
		{"\x01", "\x02", "\x03"},
		{strings.Repeat("t", MaxTenant), strings.Repeat("o", MaxOperation), strings.Repeat("k", MaxKey)},
		{"", "op", strings.Repeat("é", 127)},
	}
}

// TestCaseC46_StoredKeysStayTheSame compares with the keys of the first release.
func TestCaseC46_StoredKeysStayTheSame(t *testing.T) {
	var text strings.Builder
	for _, id := range vectorIDs() {
		sum := id.Sum()
		fmt.Fprintf(&text, "%q %q %q %s %s\n", id.Tenant, id.Operation, id.Key, hex.EncodeToString(id.AppendTo(nil)), hex.EncodeToString(sum[:]))
	}
	file := filepath.Join("testdata", "id-v1.txt")
	want, err := os.ReadFile(file)
	if os.IsNotExist(err) && os.Getenv("BACKEND_WRITE_FIXTURES") != "" {
		want = []byte(text.String())
		err = os.WriteFile(file, want, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if text.String() != string(want) {
		t.Errorf("stored keys have changed; records under the old ones would be forgotten.\nnow:\n%s\nfirst release:\n%s", text.String(), want)
	}
}

// TestCaseC24_IdentitiesDoNotRunTogether: no two identities share a stored form.
func TestCaseC24_IdentitiesDoNotRunTogether(t *testing.T) {
	seen := make(map[string]ID)
	sums := make(map[[16]byte]ID)
	parts := []string{"", "a", "b", "ab", "a:b", "a/b", "b:c", "b/c", "c", "bc", "A", "\u00e9", "e\u0301", "k", "k ", "\x01", "\x01a", "\x02", ":", "::"}
	for _, tenant := range parts {
		for _, operation := range parts {
			for _, key := range parts {
				id := ID{tenant, operation, key}
				if id.Validate() != nil {
					continue
				}
				b := string(id.AppendTo(nil))
				if other, ok := seen[b]; ok {
					t.Fatalf("%q and %q have the same stored form", id, other)
				}
				seen[b] = id
				if other, ok := sums[id.Sum()]; ok {
					t.Fatalf("%q and %q have the same sum", id, other)
				}
				sums[id.Sum()] = id
				if got, err := ParseID([]byte(b)); err != nil || got != id {
					t.Fatalf("%q is read back as %q, %v", id, got, err)
				}
				if !strings.HasPrefix(b, string(AppendScope(nil, tenant, operation))) {
					t.Fatalf("%q does not start with its scope", id)
				}
			}
		}
	}
}

func FuzzIDEncoding(f *testing.F) {
	f.Add("a:b", "op", "c", "a", "op", "b:c")
	f.Add("a", "bc", "d", "ab", "c", "d")
	f.Add("", "\x01a", "k", "\x01", "a", "k")
	f.Fuzz(func(t *testing.T, t1, o1, k1, t2, o2, k2 string) {
		a, b := ID{t1, o1, k1}, ID{t2, o2, k2}
		if a.Validate() != nil || b.Validate() != nil {
			t.Skip()
		}
		ea, eb := string(a.AppendTo(nil)), string(b.AppendTo(nil))
		if (ea == eb) != (a == b) {
			t.Fatalf("%q and %q: equal %v, stored forms equal %v", a, b, a == b, ea == eb)
		}
		if got, err := ParseID([]byte(ea)); err != nil || got != a {
			t.Fatalf("%q is read back as %q, %v", a, got, err)
		}
		sameScope := t1 == t2 && o1 == o2
		if strings.HasPrefix(eb, string(AppendScope(nil, t1, o1))) != sameScope {
			t.Fatalf("%q and %q: same scope %v, same prefix %v", a, b, sameScope, !sameScope)
		}
	})
}

func FuzzParseID(f *testing.F) {
	f.Add([]byte{1, 0, 1, 'o', 'k'})
	f.Add([]byte{1, 200, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := ParseID(b)
		if err != nil {
			if !errors.Is(err, ErrCorruptRecord) && !errors.Is(err, ErrUnknownVersion) {
				t.Fatalf("error %v is neither ErrCorruptRecord nor ErrUnknownVersion", err)
			}
			return
		}
		if again := string(id.AppendTo(nil)); again != string(b) {
			t.Fatalf("%x was read and written as %x", b, again)
		}
	})
}

func TestCaseC41_IDLimits(t *testing.T) {
	ok := ID{"acme", "op", "secret"}
	with := func(change func(id *ID)) ID {
		id := ok
		change(&id)
		return id
	}
	for _, c := range []struct {
		name  string
		id    ID
		valid bool
	}{
		{"usual", ok, true},
		{"zero", ID{}, false},
		{"no tenant", with(func(id *ID) { id.Tenant = "" }), true},
		{"no operation", with(func(id *ID) { id.Operation = "" }), false},
		{"no key", with(func(id *ID) { id.Key = "" }), false},
		{"key of 255", with(func(id *ID) { id.Key = strings.Repeat("k", 255) }), true},
		{"key of 256", with(func(id *ID) { id.Key = strings.Repeat("k", 256) }), false},
		{"key of 128 two-byte letters", with(func(id *ID) { id.Key = strings.Repeat("é", 128) }), false},
		{"tenant of 128", with(func(id *ID) { id.Tenant = strings.Repeat("t", 128) }), true},
		{"tenant of 129", with(func(id *ID) { id.Tenant = strings.Repeat("t", 129) }), false},
		{"operation of 128", with(func(id *ID) { id.Operation = strings.Repeat("o", 128) }), true},
		{"operation of 129", with(func(id *ID) { id.Operation = strings.Repeat("o", 129) }), false},
		{"NUL", with(func(id *ID) { id.Key = "secret\x00" }), false},
		{"NUL in tenant", with(func(id *ID) { id.Tenant = "\x00" }), false},
		{"not UTF-8", with(func(id *ID) { id.Key = "secret\xff" }), false},
		{"half a letter", with(func(id *ID) { id.Operation = "\xc3" }), false},
		{"newline, emoji", with(func(id *ID) { id.Key = "\n🙂" }), true},
	} {
		err := c.id.Validate()
		if (err == nil) != c.valid || err != nil && !errors.Is(err, ErrInvalidKey) {
			t.Errorf("%s: %v; valid: %v", c.name, err, c.valid)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error quotes the key: %v", c.name, err)
		}
	}
}
