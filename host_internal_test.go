package idem

import (
	"strings"
	"testing"

	"github.com/goidem/idem/backend"
)

// Every host name that an operating system may give is made acceptable to a
// backend.
func TestHostNameIsStorable(t *testing.T) {
	for _, host := range []string{"web-3", "a\x00b", "\xff\xfe", strings.Repeat("é", 200), strings.Repeat("x", 1000)} {
		r := backend.ReserveRequest{
			Ref: backend.Ref{ID: backend.ID{Operation: "o", Key: "k"}, Owner: [16]byte{1}},
			TTL: 1, KnownFor: 1, OnAbandoned: backend.Rerun,
			Holder: backend.Holder{Host: storableHost(host), PID: 1},
		}
		if err := r.Validate(); err != nil {
			t.Errorf("%q: %v", host, err)
		}
	}
	if storableHost("web-3") != "web-3" {
		t.Error("an ordinary name was changed")
	}
}
