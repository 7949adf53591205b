package backendtest

import (
	"bytes"
	"fmt"

	"github.com/goidem/idem/backend"
)

const ruleBytes = "Returned bytes belong to the caller; they never alias the store's memory. Caller's bytes are copied before they are kept."

// scribble overwrites b, as a caller may do with bytes that are its own.
func scribble(b []byte) {
	for i := range b[:cap(b)] {
		b[:cap(b)][i] = '#'
	}
}

// bytesChecks: R27. One handle throughout: a handle is where aliases live.
func bytesChecks() []check {
	return []check{
		{"R27/StoredBytesAreCopied", ruleBytes, func(k *kit) {
			b := k.open()
			r := k.request(k.id())
			fp := digests("amount 100")
			r.Fingerprint = bytes.Clone(fp)
			_, err := b.Reserve(k.ctx, r)
			k.check(err == nil, "Reserve: %v", err)
			scribble(r.Fingerprint)
			rec, err := b.Get(k.ctx, r.ID)
			k.check(err == nil && bytes.Equal(rec.Fingerprint, fp), "the caller changed its fingerprint and the store's changed with it: %x", rec.Fingerprint)

			body := []byte("the first answer")
			_, err = b.Complete(k.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: body, ReplayFor: long, KnownFor: long})
			k.check(err == nil, "Complete: %v", err)
			scribble(body)
			rec, err = b.Get(k.ctx, r.ID)
			k.check(err == nil && string(rec.Body) == "the first answer", "the caller changed its result and the store's changed with it: %s", quote(rec.Body))

			u := k.request(k.key("uncertain"))
			res, err := b.Reserve(k.ctx, u)
			k.check(err == nil, "Reserve: %v", err)
			_, err = b.Complete(k.ctx, backend.CompleteRequest{Ref: u.Ref, State: backend.Uncertain})
			k.check(err == nil, "Complete: %v", err)
			body = []byte("by hand")
			_, err = b.Resolve(k.ctx, backend.ResolveRequest{ID: u.ID, Fence: res.Record.Fence, Applied: true, Body: body, ReplayFor: long, KnownFor: long})
			k.check(err == nil, "Resolve: %v", err)
			scribble(body)
			rec, err = b.Get(k.ctx, u.ID)
			k.check(err == nil && string(rec.Body) == "by hand", "the caller changed a resolved result and the store's changed with it: %s", quote(rec.Body))
		}},
		{"R27/ReturnedBytesAreCopies", ruleBytes, func(k *kit) {
			b := k.open()
			r := k.request(k.id())
			fp := bytes.Clone(r.Fingerprint)
			same := func(body, after string) {
				k.t.Helper()
				rec, err := b.Get(k.ctx, r.ID)
				k.check(err == nil && bytes.Equal(rec.Fingerprint, fp) && string(rec.Body) == body, "the caller changed what %s returned and the store's record changed with it: %x, %s, %v", after, rec.Fingerprint, quote(rec.Body), err)
			}
			dirty := func(rec backend.Record) {
				scribble(rec.Fingerprint)
				scribble(rec.Body)
			}
			reserve := func(r backend.ReserveRequest) backend.Record {
				r.Fingerprint = bytes.Clone(fp)
				res, err := b.Reserve(k.ctx, r)
				k.check(err == nil, "Reserve: %v", err)
				return res.Record
			}
			dirty(reserve(r))
			same("", "Reserve")
			dirty(reserve(r))
			same("", "a repeated Reserve")
			dirty(reserve(over(r, 0)))
			same("", "a Reserve over another's attempt")
			c := backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: []byte("answer"), ReplayFor: long, KnownFor: long}
			for _, what := range []string{"Complete", "a repeated Complete"} {
				rec, err := b.Complete(k.ctx, c)
				k.check(err == nil, "Complete: %v", err)
				dirty(rec)
				c.Body = []byte("answer")
				same("answer", what)
			}
			dirty(reserve(over(r, 0)))
			same("answer", "a Reserve over a completed record")
			rec, err := b.Get(k.ctx, r.ID)
			k.check(err == nil, "Get: %v", err)
			dirty(rec)
			same("answer", "Get")
			for rec := range b.List(k.ctx, backend.Filter{}) {
				dirty(rec)
			}
			same("answer", "List")
			mismatch := over(r, 0)
			mismatch.Fingerprint = digests("amount 999")
			res, err := b.Reserve(k.ctx, mismatch)
			k.check(err == nil, "Reserve: %v", err)
			dirty(res.Record)
			same("answer", "a mismatch")
		}},
		{"R27/KeptBytesOutliveTheRecord", ruleBytes, func(k *kit) { // C33
			b := k.open()
			want := bytes.Repeat([]byte("0123456789abcdef"), 256)
			var kept [][]byte
			for i := range 50 {
				r := k.request(k.key(fmt.Sprint("order-", i)))
				_, err := b.Reserve(k.ctx, r)
				k.check(err == nil, "Reserve: %v", err)
				rec, err := b.Complete(k.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: want, ReplayFor: k.unit, KnownFor: k.unit})
				k.check(err == nil, "Complete: %v", err)
				kept = append(kept, rec.Body)
			}
			for rec, err := range b.List(k.ctx, backend.Filter{}) {
				k.check(err == nil, "List: %v", err)
				kept = append(kept, rec.Body)
			}
			k.pass(k.unit)
			k.sweep()
			for i := range 300 {
				r := k.request(k.key(fmt.Sprint("new-", i)))
				_, err := b.Reserve(k.ctx, r)
				k.check(err == nil, "Reserve: %v", err)
				_, err = b.Complete(k.ctx, backend.CompleteRequest{Ref: r.Ref, State: backend.Completed, Body: bytes.Repeat([]byte("#"), 8192), ReplayFor: long, KnownFor: long})
				k.check(err == nil, "Complete: %v", err)
			}
			for _, body := range kept {
				// Those listed late may have lost their body to the clock.
				k.check(len(body) == 0 || bytes.Equal(body, want), "bytes that a caller kept have changed: %s", quote(body))
			}
		}},
	}
}
