package backendtest_test

import (
	"bytes"
	"time"

	"github.com/goidem/idem/backend"
)

// broken is a store that is wrong in one way, and the subtest that must say so.
type broken struct {
	name, rule string
	alter      func(s *store)
}

type (
	record  = backend.Record
	step    = backend.Step
	reserve = backend.ReserveRequest
	settle  = backend.CompleteRequest
)

// brokenStores are the mistakes that a hurried implementation makes.
func brokenStores() []broken {
	list := append(brokenReserves(), brokenEnds()...)
	list = append(list, brokenLeases()...)
	list = append(list, brokenStorage()...)
	return append(list, brokenTransactions()...)
}

// reserving replaces the reserve decision; was is the right one.
func reserving(alter func(was reserveFunc) reserveFunc) func(s *store) {
	return func(s *store) { s.reserve = alter(s.reserve) }
}

type reserveFunc = func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error)

// create is a reserve that takes the place of whatever is there.
func create(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
	plain := *r
	plain.TakeOver = 0
	s, res, err := plain.Apply(record{}, now, max(seed, cur.Fence+1))
	s.Next.Attempt = cur.Attempt + 1
	res.Record.Attempt = s.Next.Attempt
	return s, res, err
}

func free(cur record, now time.Time) bool {
	return cur.State == backend.Open || cur.Expired(now) || cur.IsAbandoned(now)
}

func brokenReserves() []broken {
	return []broken{
		{"read, then write", "R01/OneWinnerAmongManyReserves", func(s *store) { s.racy = true }},
		{"read, then write, for takeovers", "R01/OneTakeOverOfTheSameFence", func(s *store) {
			s.racy = true
			right := s.reserve
			s.reserve = func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if cur.State == 0 { // creates in one step, as INSERT ON CONFLICT does
					cur = s.records[s.key(r.ID)]
				}
				return right(r, cur, now, seed)
			}
		}},
		{"plain reserve takes over", "R06/PlainReserveOnlyCreates", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if r.TakeOver == 0 && cur.State != 0 && cur.Owner != r.Owner && free(cur, now) {
					return create(r, cur, now, seed)
				}
				return was(r, cur, now, seed)
			}
		})},
		{"takeover without lease check", "R06/TakeOverChecksTheLease", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if cur.State == backend.InFlight && r.TakeOver == cur.Fence && cur.Owner != r.Owner {
					cur.LeaseUntil = now
				}
				return was(r, cur, now, seed)
			}
		})},
		{"takeover without state check", "R06/TakeOverChecksTheState", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if r.TakeOver != 0 && r.TakeOver == cur.Fence && cur.Owner != r.Owner {
					return create(r, cur, now, seed)
				}
				return was(r, cur, now, seed)
			}
		})},
		{"takeover without fence check", "R06/TakeOverComparesTheFence", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				any := *r
				if r.TakeOver != 0 && cur.State != 0 {
					any.TakeOver = cur.Fence
				}
				return was(&any, cur, now, seed)
			}
		})},
		{"takeover of nothing creates", "R06/TakeOverOfNothingCreatesNothing", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if cur.State == 0 {
					return create(r, cur, now, seed)
				}
				return was(r, cur, now, seed)
			}
		})},
		{"own winner refused after a lost reply", "R03/RepeatedReserveIsGrantedAgain", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				other := *r
				if cur.Owner == r.Owner {
					other.Owner[0]++
				}
				return was(&other, cur, now, seed)
			}
		})},
		{"repeated reserve extends its lease", "R03/RepeatedReserveIsGrantedAgain", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				s, res, err := was(r, cur, now, seed)
				if err == nil && res.Outcome == backend.Acquired && !s.Changed {
					s.Changed, s.Next.LeaseUntil = true, now.Add(r.TTL)
					res.Record = s.Next
				}
				return s, res, err
			}
		})},
		{"late copy of a reserve opens a released key", "R03/RepeatedReserveStartsNothingAnew", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if cur.State == backend.Open && cur.Owner == r.Owner {
					return create(r, cur, now, seed)
				}
				return was(r, cur, now, seed)
			}
		})},
		{"mismatch leaks the result", "R02/MismatchNeverCarriesTheResult", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				s, res, err := was(r, cur, now, seed)
				if res.Outcome == backend.Mismatch {
					res.Record.Body = cur.Body
				}
				return s, res, err
			}
		})},
		{"fingerprint compared in flight only", "R02/MismatchInEveryState", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				same := *r
				if cur.State != backend.InFlight && cur.State != backend.Open {
					same.Fingerprint = cur.Fingerprint
				}
				return was(&same, cur, now, seed)
			}
		})},
		{"no fingerprint matches everything", "R02/NoneMatchesOnlyNone", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				same := *r
				if len(cur.Fingerprint) == 0 && cur.State != backend.Open && cur.State != 0 {
					same.Fingerprint = nil
				}
				return was(&same, cur, now, seed)
			}
		})},
		{"fingerprints compared as bytes, versions ignored", "R28/FingerprintVersions", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if cur.State != 0 && cur.State != backend.Open && !cur.Expired(now) && !bytes.Equal(cur.Fingerprint, r.Fingerprint) {
					cur.Body = nil
					return step{Next: cur}, backend.Reservation{Outcome: backend.Mismatch, Record: cur, Now: now}, nil
				}
				return was(r, cur, now, seed)
			}
		})},
		{"expired record hands out its result", "R02/ExpiredRecordBindsNothing", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				s, res, err := was(r, cur, now, seed)
				if res.Outcome == backend.Existing && cur.Expired(now) {
					res.Record.Body = cur.Body
				}
				return s, res, err
			}
		})},
		{"fence starts again with each takeover", "R04/FenceGrowsWithEachAttempt", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				s, res, err := was(r, cur, now, seed)
				if err == nil && res.Outcome == backend.Acquired && s.Changed {
					s.Next.Fence = 1
					res.Record.Fence = 1
				}
				return s, res, err
			}
		})},
		{"fence forgotten with its record", "R04/FenceGrowsAfterCleanUp", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				return was(r, cur, now, 0)
			}
		})},
		{"attempt number never starts again", "R04/AttemptsAreCounted", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				s, res, err := was(r, cur, now, seed)
				if res.Outcome == backend.Acquired && s.Changed {
					s.Next.Attempt = cur.Attempt + 1
					res.Record.Attempt = s.Next.Attempt
				}
				return s, res, err
			}
		})},
		{"empty result taken for no result", "R15/EmptyResultsAreResults", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if cur.State == backend.Completed && len(cur.Body) == 0 && cur.Owner != r.Owner {
					cur.State = backend.InFlight
				}
				return was(r, cur, now, seed)
			}
		})},
	}
}
