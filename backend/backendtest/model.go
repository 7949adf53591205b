package backendtest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/goidem/idem/backend"
)

// SeedVariable names an environment variable that fixes the seed of the random
// subtests, to repeat a failure.
const SeedVariable = "BACKENDTEST_SEED"

// model is what the contract says, and nothing else: the pure decisions over a
// map. It shares no code with any backend.
type model struct {
	records map[backend.ID]backend.Record
	now     time.Time
	fence   uint64
}

func (m *model) step(id backend.ID, decide func(cur backend.Record) (backend.Step, error)) error {
	s, err := decide(m.records[id])
	if err != nil || !s.Changed {
		return err
	}
	if s.Next.State == 0 {
		delete(m.records, id)
		return nil
	}
	m.fence = max(m.fence, s.Next.Fence)
	m.records[id] = s.Next.Clone()
	return nil
}

func (m *model) Reserve(_ context.Context, r backend.ReserveRequest) (res backend.Reservation, err error) {
	err = m.step(r.ID, func(cur backend.Record) (s backend.Step, err error) {
		s, res, err = r.Apply(cur, m.now, m.fence+1)
		return s, err
	})
	return res, err
}

func (m *model) Complete(_ context.Context, r backend.CompleteRequest) (rec backend.Record, err error) {
	err = m.step(r.ID, func(cur backend.Record) (s backend.Step, err error) {
		s, rec, err = r.Apply(cur, m.now)
		return s, err
	})
	return rec, err
}

func (m *model) Release(_ context.Context, ref backend.Ref) error {
	return m.step(ref.ID, func(cur backend.Record) (backend.Step, error) { return ref.ApplyRelease(cur, m.now) })
}

func (m *model) Renew(_ context.Context, ref backend.Ref, ttl time.Duration) error {
	return m.step(ref.ID, func(cur backend.Record) (backend.Step, error) { return ref.ApplyRenew(cur, m.now, ttl) })
}

func (m *model) Resolve(_ context.Context, r backend.ResolveRequest) (rec backend.Record, err error) {
	err = m.step(r.ID, func(cur backend.Record) (s backend.Step, err error) {
		s, rec, err = r.Apply(cur, m.now)
		return s, err
	})
	return rec, err
}

func (m *model) Forget(_ context.Context, r backend.ForgetRequest) error {
	return m.step(r.ID, func(cur backend.Record) (backend.Step, error) { return r.Apply(cur, m.now) })
}

func (m *model) Get(_ context.Context, id backend.ID) (backend.Record, error) {
	cur := m.records[id]
	if rec := cur.At(m.now); rec.State != 0 {
		return rec, nil
	}
	return backend.Record{}, backend.ErrNotFound
}

func (m *model) Expire(context.Context, backend.ExpireRequest) (done backend.ExpireResult, err error) {
	for id, cur := range m.records {
		if s := backend.ApplyExpire(cur, m.now); s.Changed && s.Next.State == 0 {
			delete(m.records, id)
		}
	}
	return done, nil
}

func (m *model) List(context.Context, backend.Filter) iter.Seq2[backend.Record, error] { return nil }
func (m *model) Guarantees() (g backend.Guarantees)                                    { return g }

// pair runs the same requests against the model and the store and compares.
type pair struct {
	k         *kit
	rng       *rand.Rand
	model     *model
	base      time.Time // the store's time at which the model's was the same
	began     time.Time // when that was, by this machine's clock
	keys      []backend.ID
	requests  []backend.ReserveRequest   // made so far, for copies and late moves
	fences    map[backend.ID][]fencePair // given so far
	lastFence map[backend.ID]uint64      // the store's
	seed      uint64
	log       []string
}

// fencePair is the fence of one attempt in the model and in the store, which may
// count differently.
type fencePair struct{ model, store uint64 }

// modelChecks: random operations.
func modelChecks() []check {
	return []check{
		{"Model/RandomOperations", "Whatever the order of moves: the answers, states, fences and windows of the contract's own decisions.", func(k *kit) {
			seed := uint64(wallClock().UnixNano())
			rounds := 20
			if s, err := strconv.ParseUint(os.Getenv(SeedVariable), 10, 64); err == nil {
				seed, rounds = s, 1
			}
			for i := range rounds {
				k.each(fmt.Sprint("seed ", seed+uint64(i)), func(k *kit) { newPair(k, seed+uint64(i)).run(150) })
			}
		}},
	}
}

func newPair(k *kit, seed uint64) *pair {
	p := &pair{k: k, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), fences: make(map[backend.ID][]fencePair), lastFence: make(map[backend.ID]uint64)}
	for i := range 4 {
		p.keys = append(p.keys, k.key(fmt.Sprint("key-", i)))
	}
	// The machine's clock is read first: however slow the answer, what has really
	// passed since the store read its own is not more than what is allowed for.
	p.began = wallClock()
	p.base = k.reserve(k.request(k.key("clock"))).Now
	p.model = &model{records: make(map[backend.ID]backend.Record), now: p.base}
	return p
}

// fail reports a difference with everything that led to it.
func (p *pair) fail(format string, args ...any) {
	p.k.t.Helper()
	log := ""
	for _, line := range p.log {
		log += "\n\t" + line
	}
	p.k.fail("%s\n\trepeat with %s=%d; what was done:%s", fmt.Sprintf(format, args...), SeedVariable, p.seed, log)
}

func (p *pair) run(steps int) {
	p.k.t.Helper()
	for i := range steps {
		if real := wallClock().Sub(p.began); p.k.h.MaxAdvance == 0 && real > p.k.unit/4 {
			p.k.t.Logf("stopped after %d steps: %v have really passed, which a moving clock would confuse with leases", i, real)
			return
		}
		p.step()
	}
	for _, id := range p.keys {
		p.sameRecord(id)
	}
}

// halves returns a random multiple of half a unit: ends never fall between the
// two clocks.
func (p *pair) halves(low, high int) time.Duration {
	if p.k.h.MaxAdvance > 0 {
		return long
	}
	return time.Duration(low+p.rng.IntN(high-low+1)) * p.k.unit / 2
}

// visible reports whether the model's readers see a record.
func (p *pair) visible(id backend.ID) bool {
	_, err := p.model.Get(p.k.ctx, id)
	return err == nil
}

func (p *pair) step() {
	p.k.t.Helper()
	k, id := p.k, p.keys[p.rng.IntN(len(p.keys))]
	b := k.open()
	switch n := p.rng.IntN(100); {
	case n < 25:
		p.reserve(b, p.newRequest(id))
	case n < 32:
		if p.visible(id) { // a takeover of whatever fence, seen at some time
			r := p.newRequest(id)
			p.takeOver(b, r, p.anyFence(id))
		}
	case n < 40:
		if r, ok := p.anyRequest(id); ok && p.visible(id) { // a late copy
			p.takeOver(b, r, fencePair{})
		}
	case n < 58:
		r, ok := p.anyRequest(id)
		if !ok {
			return
		}
		c := backend.CompleteRequest{Ref: r.Ref, State: []backend.State{backend.Completed, backend.Completed, backend.Failed, backend.Uncertain}[p.rng.IntN(4)], Body: fmt.Appendf(nil, "body %d", p.rng.IntN(100))}
		c.ReplayFor = p.halves(1, 6)
		c.KnownFor = c.ReplayFor + p.halves(0, 6)
		p.say("complete %s to %v, windows %v, %v", p.name(r), c.State, c.ReplayFor, c.KnownFor)
		want, werr := p.model.Complete(k.ctx, c)
		got, gerr := b.Complete(k.ctx, c)
		p.sameError(werr, gerr)
		p.same(want, got, "Complete")
	case n < 66:
		if r, ok := p.anyRequest(id); ok {
			p.say("release %s", p.name(r))
			p.sameError(p.model.Release(k.ctx, r.Ref), b.Release(k.ctx, r.Ref))
		}
	case n < 76:
		if r, ok := p.anyRequest(id); ok {
			ttl := p.halves(1, 8)
			p.say("renew %s for %v", p.name(r), ttl)
			p.sameError(p.model.Renew(k.ctx, r.Ref, ttl), b.Renew(k.ctx, r.Ref, ttl))
		}
	case n < 81:
		f := p.anyFence(id)
		r := backend.ResolveRequest{ID: id, Applied: p.rng.IntN(2) == 0, Body: []byte("by hand"), ReplayFor: p.halves(1, 4), Evidence: "seen"}
		r.KnownFor = r.ReplayFor
		p.say("resolve %.5s, fence %d/%d, applied %v", id.Key, f.model, f.store, r.Applied)
		r.Fence = f.model
		want, werr := p.model.Resolve(k.ctx, r)
		r.Fence = f.store
		got, gerr := b.Resolve(k.ctx, r)
		p.sameError(werr, gerr)
		p.same(want, got, "Resolve")
	case n < 84:
		f, force := p.anyFence(id), p.rng.IntN(2) == 0
		p.say("forget %.5s, fence %d/%d, forced %v", id.Key, f.model, f.store, force)
		p.sameError(p.model.Forget(k.ctx, backend.ForgetRequest{ID: id, Fence: f.model, Force: force}), b.Forget(k.ctx, backend.ForgetRequest{ID: id, Fence: f.store, Force: force}))
	case n < 88:
		p.say("expire")
		_, _ = p.model.Expire(k.ctx, backend.ExpireRequest{})
		_, err := b.Expire(k.ctx, backend.ExpireRequest{})
		p.sameError(nil, err)
	case k.h.MaxAdvance == 0:
		d := p.halves(1, 5)
		p.say("advance %v", d)
		p.model.now = p.model.now.Add(d)
		k.advance(d)
	}
	p.sameRecord(id)
}

func (p *pair) newRequest(id backend.ID) backend.ReserveRequest {
	r := p.k.request(id)
	r.TTL, r.KnownFor = p.halves(1, 6), p.halves(1, 8)
	r.OnAbandoned = backend.Abandoned(1 + p.rng.IntN(3))
	r.Recovered = p.rng.IntN(2) == 0
	r.Holder.PID = p.rng.IntN(1000)
	if p.rng.IntN(6) == 0 {
		r.Fingerprint = [][]byte{nil, digests("amount 999"), digests("amount 100", 2, 1)}[p.rng.IntN(3)]
	}
	p.requests = append(p.requests, r)
	return r
}

// reserve takes the key as the core does. How a record that is over is told from
// one that is gone is the store's own affair, so only the outcome counts.
func (p *pair) reserve(b backend.Backend, r backend.ReserveRequest) {
	p.k.t.Helper()
	p.say("reserve %s, %v, lease %v, window %v, recovered %v", p.name(r), r.OnAbandoned, r.TTL, r.KnownFor, r.Recovered)
	if !p.visible(r.ID) && !p.k.h.FenceOutlivesRecord {
		p.fences[r.ID], p.lastFence[r.ID] = nil, 0
	}
	want, werr := p.k.take(p.model, r)
	got, gerr := p.k.take(b, r)
	p.sameReservation(want, got, werr, gerr)
}

func (p *pair) takeOver(b backend.Backend, r backend.ReserveRequest, f fencePair) {
	p.k.t.Helper()
	p.say("reserve %s, %v, take over %d/%d, recovered %v", p.name(r), r.OnAbandoned, f.model, f.store, r.Recovered)
	r.TakeOver = f.model
	want, werr := p.model.Reserve(p.k.ctx, r)
	r.TakeOver = f.store
	got, gerr := b.Reserve(p.k.ctx, r)
	p.sameReservation(want, got, werr, gerr)
}

func (p *pair) sameReservation(want, got backend.Reservation, werr, gerr error) {
	p.k.t.Helper()
	p.sameError(werr, gerr)
	if want.Outcome != got.Outcome {
		p.fail("the store answered %v over %s; want %v over %s", got.Outcome, show(got.Record), want.Outcome, show(want.Record))
	}
	if want.Outcome == backend.Acquired {
		p.given(want.Record, got.Record)
	}
	p.same(want.Record, got.Record, "Reserve")
}

// given notes the fence of an attempt, which must be new and higher.
func (p *pair) given(want, got backend.Record) {
	p.k.t.Helper()
	for _, f := range p.fences[want.ID] {
		if f.model == want.Fence {
			return // a copy
		}
	}
	if got.Fence <= p.lastFence[want.ID] {
		p.fail("a new attempt got the fence %d after %d; it must grow", got.Fence, p.lastFence[want.ID])
	}
	p.lastFence[want.ID] = got.Fence
	p.fences[want.ID] = append(p.fences[want.ID], fencePair{want.Fence, got.Fence})
}

// same compares two records, with fences and times translated.
func (p *pair) same(want, got backend.Record, what string) {
	p.k.t.Helper()
	for _, f := range p.fences[want.ID] {
		if want.Fence == f.model {
			want.Fence = f.store
			break
		}
	}
	// Where the store's clock moves by itself, it is ahead by what has really
	// passed.
	slack := 2*p.k.h.Tick + wallClock().Sub(p.began)
	if d := diff(want, got, slack); d != "" {
		p.fail("%s (want, then got): %s", what, d)
	}
}

func (p *pair) sameRecord(id backend.ID) {
	p.k.t.Helper()
	want, werr := p.model.Get(p.k.ctx, id)
	got, gerr := p.k.open().Get(p.k.ctx, id)
	p.sameError(werr, gerr)
	p.same(want, got, "afterwards Get")
}

func (p *pair) sameError(want, got error) {
	p.k.t.Helper()
	if want == nil && got == nil || want != nil && errors.Is(got, want) {
		return
	}
	if v := (*backend.VersionError)(nil); errors.As(want, &v) && errors.Is(got, backend.ErrUnknownVersion) {
		return
	}
	p.fail("the store's error is %v; want %v", got, want)
}

func (p *pair) say(format string, args ...any) {
	at := p.model.now.Sub(p.base)
	p.log = append(p.log, fmt.Sprintf("%8v  ", at)+fmt.Sprintf(format, args...))
}

func (p *pair) name(r backend.ReserveRequest) string {
	return fmt.Sprintf("%.5s by %x", r.ID.Key, r.Owner[:2])
}

// anyRequest returns one of the last requests on id.
func (p *pair) anyRequest(id backend.ID) (backend.ReserveRequest, bool) {
	var of []backend.ReserveRequest
	for _, r := range p.requests {
		if r.ID == id {
			of = append(of, r)
		}
	}
	if len(of) == 0 {
		return backend.ReserveRequest{}, false
	}
	of = of[max(0, len(of)-3):]
	return of[p.rng.IntN(len(of))], true
}

// anyFence returns mostly the latest fence, sometimes an older one.
func (p *pair) anyFence(id backend.ID) fencePair {
	fs := p.fences[id]
	if len(fs) == 0 {
		return fencePair{1 << 40, 1 << 40}
	}
	if p.rng.IntN(4) == 0 {
		return fs[p.rng.IntN(len(fs))]
	}
	return fs[len(fs)-1]
}
