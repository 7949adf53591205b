package idem

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/goidem/idem/backend"
)

// Attempt is one ownership of a key, as the running operation sees it.
type Attempt struct {
	Scope  Scope
	Key    Key
	Number int    // 1 on the first try of this intent
	Fence  uint64 // grows with every attempt on the key
	// TookOver: an abandoned attempt went before; its effect may have happened.
	// False does not prove that none did: a store that keeps reservations in memory
	// forgets them in a crash.
	TookOver bool

	lease *lease
}

// AttemptFrom returns the attempt that ctx belongs to, the innermost one where
// calls are nested. It is nil outside fn, and the methods of a nil Attempt panic:
// a zero attempt would share one derived key with everybody.
func AttemptFrom(ctx context.Context) *Attempt {
	if f := frameFrom(ctx); f != nil {
		return f.attempt
	}
	return nil
}

// derivedKeys is the name space of derived keys: a UUID drawn once, for idem.
const derivedKeys = "8f1d3c1e-52a4-4e0b-9c55-6a1f0e7b2d94"

// DeriveKey returns the idempotency key for one downstream call: the same for
// every attempt and every process that works on this intent, different for every
// step, scope and key. It has the form of a UUID (version 8), which fits the
// limits of payment providers.
func (a *Attempt) DeriveKey(step string) Key {
	data := backend.AppendScope(nil, a.Scope.Tenant, a.Scope.Operation)
	for _, part := range []string{string(a.Key), step} {
		data = binary.LittleEndian.AppendUint64(data, uint64(len(part)))
		data = append(data, part...)
	}
	return Key(uuid.NewHash(sha256.New(), uuid.MustParse(derivedKeys), data, 8).String())
}

// LeaseUntil returns when, on this process's clock, the lease ends unless it is
// renewed. It is zero inside a transaction, which needs no lease.
func (a *Attempt) LeaseUntil() time.Time {
	if a.lease == nil {
		return time.Time{}
	}
	return a.lease.until()
}

// frame is one link of the chain of calls that a context is inside of.
type frame struct {
	parent  *frame
	s       *Store
	id      backend.ID
	tx      bool
	attempt *Attempt
	ended   atomic.Bool // the call is over, although somebody kept its context
}

type frameKey struct{}

func frameFrom(ctx context.Context) *frame {
	f, _ := ctx.Value(frameKey{}).(*frame)
	return f
}

// fnContext is the context of a running operation: its parent with a frame on
// top, and answers for that one Value itself.
type fnContext struct {
	context.Context
	frame frame
}

func (c *fnContext) Value(key any) any {
	if _, ok := key.(frameKey); ok {
		return &c.frame
	}
	return c.Context.Value(key)
}

// enter makes into what the operation of c sees of ctx.
func (c *call) enter(into *fnContext, ctx context.Context, tx bool, a *Attempt) {
	into.Context = ctx
	f := &into.frame
	f.parent, f.s, f.id, f.tx, f.attempt = frameFrom(ctx), c.s, c.id, tx, a
}

// open reports whether f is a call in progress on the backend of s.
func (f *frame) open(s *Store) bool {
	return !f.ended.Load() && (f.s == s || s.comparable && f.s.comparable && f.s.b == s.b)
}

// checkNesting refuses what would wait for itself (R26): the same key anywhere
// up the chain, and, inside a transaction of this store, anything that needs a
// second one. joins says that the call brings the transaction along.
func (s *Store) checkNesting(ctx context.Context, scope Scope, id backend.ID, joins bool) error {
	for f := frameFrom(ctx); f != nil; f = f.parent {
		if !f.open(s) {
			continue
		}
		if f.id == id {
			return &InFlightError{Scope: scope}
		}
		if f.tx && !joins {
			return &callError{sentinel: ErrNested, scope: scope, reason: "it would wait for the transaction that it runs in; use ExecuteIn with that transaction"}
		}
	}
	return nil
}
