package redis

import (
	"crypto/rand"
	"crypto/sha256"
	"time"

	"github.com/goidem/idem/backend"
)

// token returns a new owner token.
func token() (t [16]byte) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// request returns a reserve by a new attempt.
func request(key string) backend.ReserveRequest {
	sum := sha256.Sum256([]byte("amount 100"))
	return backend.ReserveRequest{
		Ref:         backend.Ref{ID: backend.ID{Operation: "pay", Key: key}, Owner: token()},
		Fingerprint: append([]byte{1}, sum[:]...),
		TTL:         time.Hour,
		KnownFor:    time.Hour,
		OnAbandoned: backend.Rerun,
		Holder:      backend.Holder{Host: "worker-7", PID: 4711, Started: time.UnixMilli(1_700_000_000_000).UTC()},
	}
}

func completion(ref backend.Ref, body string) backend.CompleteRequest {
	return backend.CompleteRequest{Ref: ref, State: backend.Completed, Body: []byte(body), ReplayFor: time.Hour, KnownFor: 2 * time.Hour}
}
