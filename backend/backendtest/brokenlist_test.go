package backendtest_test

import (
	"bytes"
	"path"
	"strings"
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

func brokenEnds() []broken {
	type completeFunc = func(r *settle, cur record, now time.Time) (step, record, error)
	completing := func(alter func(was completeFunc) completeFunc) func(s *store) {
		return func(s *store) { s.complete = alter(s.complete) }
	}
	return []broken{
		{"resolve of uncertain records only", "R13/ResolveOfAnAbandonedAttempt", func(s *store) {
			was := s.resolve
			s.resolve = func(r *backend.ResolveRequest, cur record, now time.Time) (step, record, error) {
				if cur.IsAbandoned(now) {
					return step{}, record{}, backend.ErrStale
				}
				return was(r, cur, now)
			}
		}},
		{"results written to the wrong key", "R15/ResultsStayWithTheirKeys", func(s *store) {
			was := s.complete
			var last []byte
			s.complete = func(r *settle, cur record, now time.Time) (step, record, error) {
				st, rec, err := was(r, cur, now)
				if st.Changed {
					st.Next.Body, last = last, st.Next.Body
				}
				return st, rec, err
			}
		}},
		{"large results cut short", "R05/TheLargestResultIsKept", func(s *store) {
			was := s.complete
			s.complete = func(r *settle, cur record, now time.Time) (step, record, error) {
				st, rec, err := was(r, cur, now)
				st.Next.Body = st.Next.Body[:min(len(st.Next.Body), 8<<20)]
				return st, rec, err
			}
		}},
		{"constant owner token", "R03/StrangerOwnsNothing", func(s *store) {
			constant := [16]byte{1}
			reserve, complete, release, renew := s.reserve, s.complete, s.release, s.renew
			s.reserve = func(r *backend.ReserveRequest, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				same := *r
				same.Owner = constant
				st, res, err := reserve(&same, cur, now, seed)
				if res.Outcome == backend.Acquired {
					res.Record.Owner = r.Owner
				}
				return st, res, err
			}
			s.complete = func(r *settle, cur record, now time.Time) (step, record, error) {
				same := *r
				same.Owner = constant
				return complete(&same, cur, now)
			}
			s.release = func(ref backend.Ref, cur record, now time.Time) (step, error) {
				ref.Owner = constant
				return release(ref, cur, now)
			}
			s.renew = func(ref backend.Ref, cur record, now time.Time, ttl time.Duration) (step, error) {
				ref.Owner = constant
				return renew(ref, cur, now, ttl)
			}
		}},
		{"complete without owner check", "R12/CompleteByAStrangerChangesNothing", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				own := *r
				if cur.State != 0 {
					own.Owner = cur.Owner
				}
				return was(&own, cur, now)
			}
		})},
		{"complete is an upsert", "R12/CompleteNeverCreates", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				if cur.State == 0 {
					cur = record{Ref: r.Ref, State: backend.InFlight, Fence: 1, Attempt: 1, OnAbandoned: backend.Rerun, LeaseUntil: now}
				}
				return was(r, cur, now)
			}
		})},
		{"complete loses the fingerprint", "R02/FingerprintSurvivesCompletion", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				s, rec, err := was(r, cur, now)
				s.Next.Fingerprint, rec.Fingerprint = nil, nil
				return s, rec, err
			}
		})},
		{"complete refused once the lease is over", "R12/CompleteAfterTheLeaseIsAccepted", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				if cur.IsAbandoned(now) {
					return step{}, record{}, backend.ErrLeaseLost
				}
				return was(r, cur, now)
			}
		})},
		{"complete of an uncertain record refused", "R13/LateCompletionSettlesAHeldRecord", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				if cur.State == backend.Uncertain {
					return step{}, record{}, backend.ErrLeaseLost
				}
				return was(r, cur, now)
			}
		})},
		{"repeated complete refused", "R03/RepeatedCompleteSucceeds", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				if cur.State == backend.Completed {
					return step{}, record{}, backend.ErrLeaseLost
				}
				return was(r, cur, now)
			}
		})},
		{"repeated complete writes again", "R03/RepeatedCompleteSucceeds", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				if cur.State == backend.Completed && cur.Owner == r.Owner {
					cur.State = backend.InFlight
				}
				return was(r, cur, now)
			}
		})},
		{"complete drops the token", "R03/CompletedRecordsKeepTheTokenForTheDedupWindow", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				s, rec, err := was(r, cur, now)
				if s.Changed && s.Next.State == backend.Completed {
					s.Next.Owner = [16]byte{}
				}
				return s, rec, err
			}
		})},
		{"windows counted from the reserve", "R22/WindowsCountFromCompletion", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				return was(r, cur, cur.ReservedAt)
			}
		})},
		{"failures dated from the old lease", "R22/FailureAfterTheLeaseLivesItsTime", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				if r.State == backend.Failed && cur.IsAbandoned(now) {
					now = cur.LeaseUntil
				}
				return was(r, cur, now)
			}
		})},
		{"uncertain records have a window", "R22/HeldRecoveringAndUncertainHaveNoWindow", completing(func(was completeFunc) completeFunc {
			return func(r *settle, cur record, now time.Time) (step, record, error) {
				s, rec, err := was(r, cur, now)
				if s.Next.State == backend.Uncertain {
					s.Next.KnownUntil = cur.KnownUntil
				}
				return s, rec, err
			}
		})},
		{"release ignores the owner", "R03/StrangerOwnsNothing", func(s *store) {
			was := s.release
			s.release = func(ref backend.Ref, cur record, now time.Time) (step, error) {
				ref.Owner = cur.Owner
				return was(ref, cur, now)
			}
		}},
		{"release keeps the fingerprint bound", "R02/ReleaseUnbindsTheFingerprint", func(s *store) {
			release, reserve := s.release, s.reserve
			s.release = func(ref backend.Ref, cur record, now time.Time) (step, error) {
				st, err := release(ref, cur, now)
				st.Next.Fingerprint = cur.Fingerprint
				return st, err
			}
			s.reserve = func(r *backend.ReserveRequest, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if cur.State == backend.Open && !bytes.Equal(cur.Fingerprint, r.Fingerprint) {
					return step{}, backend.Reservation{Outcome: backend.Mismatch, Now: now}, nil
				}
				return reserve(r, cur, now, seed)
			}
		}},
		{"fence reset on release", "R04/FenceIsKeptThroughReleaseAndCompletion", func(s *store) {
			was := s.release
			s.release = func(ref backend.Ref, cur record, now time.Time) (step, error) {
				st, err := was(ref, cur, now)
				if st.Changed {
					st.Next.Fence = 1 << 20
				}
				return st, err
			}
		}},
		{"release deletes the record", "R03/ReleaseKeepsFenceAttemptAndToken", func(s *store) {
			was := s.release
			s.release = func(ref backend.Ref, cur record, now time.Time) (step, error) {
				st, err := was(ref, cur, now)
				if st.Changed {
					st.Next = record{}
				}
				return st, err
			}
		}},
		{"release opens an uncertain key", "R03/ReleaseOfAnUncertainAttemptIsRefused", func(s *store) {
			was := s.release
			s.release = func(ref backend.Ref, cur record, now time.Time) (step, error) {
				if cur.State == backend.Uncertain {
					cur.State = backend.InFlight
				}
				return was(ref, cur, now)
			}
		}},
		{"forget without fence", "R03/ForgetComparesTheFence", func(s *store) {
			was := s.forget
			s.forget = func(r *backend.ForgetRequest, cur record, now time.Time) (step, error) {
				any := *r
				any.Fence = cur.Fence
				return was(&any, cur, now)
			}
		}},
		{"forget of a live attempt", "R03/ForgetComparesTheFence", func(s *store) {
			was := s.forget
			s.forget = func(r *backend.ForgetRequest, cur record, now time.Time) (step, error) {
				any := *r
				any.Force = true
				return was(&any, cur, now)
			}
		}},
		{"resolve without fence", "R03/ResolveComparesTheFence", func(s *store) {
			was := s.resolve
			s.resolve = func(r *backend.ResolveRequest, cur record, now time.Time) (step, record, error) {
				any := *r
				any.Fence = cur.Fence
				return was(&any, cur, now)
			}
		}},
		{"resolve of a live attempt", "R13/ResolveRefusesALiveAttempt", func(s *store) {
			was := s.resolve
			s.resolve = func(r *backend.ResolveRequest, cur record, now time.Time) (step, record, error) {
				if cur.State == backend.InFlight {
					cur.State = backend.Uncertain
				}
				return was(r, cur, now)
			}
		}},
		{"resolve keeps the token", "R13/ResolveApplied", func(s *store) {
			was := s.resolve
			s.resolve = func(r *backend.ResolveRequest, cur record, now time.Time) (step, record, error) {
				st, rec, err := was(r, cur, now)
				if st.Changed {
					st.Next.Owner, rec.Owner = cur.Owner, cur.Owner
				}
				return st, rec, err
			}
		}},
	}
}

func brokenLeases() []broken {
	noDeadline := func(cur record) bool { return cur.State == backend.InFlight && cur.LeaseUntil.IsZero() }
	return []broken{
		{"missing lease taken for over", "R14/MissingDeadlineIsNeverOver", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if noDeadline(cur) {
					cur.LeaseUntil = time.Unix(0, 0)
				}
				return was(r, cur, now, seed)
			}
		})},
		{"missing lease taken for free", "R14/MissingDeadlineIsNeverOver", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if noDeadline(cur) && cur.Owner != r.Owner {
					return create(r, cur, now, seed)
				}
				return was(r, cur, now, seed)
			}
		})},
		{"missing lease held for ever", "R14/MissingDeadlineEndsByResolve", func(s *store) {
			was := s.resolve
			s.resolve = func(r *backend.ResolveRequest, cur record, now time.Time) (step, record, error) {
				if noDeadline(cur) {
					return step{}, record{}, backend.ErrInFlight
				}
				return was(r, cur, now)
			}
		}},
		{"expiry judged by zero time", "R14/MissingDeadlineIsNeverOver", func(s *store) {
			was := s.expire
			s.expire = func(cur record, now time.Time) step {
				if cur.State != 0 && cur.LeaseUntil.Before(now) && cur.KnownUntil.Before(now) && cur.State == backend.InFlight && cur.OnAbandoned != backend.Hold {
					return step{Changed: true}
				}
				return was(cur, now)
			}
		}},
		{"long windows wrap around", "R14/TheLongestDurationIsNotOver", func(s *store) {
			was := s.complete
			s.complete = func(r *settle, cur record, now time.Time) (step, record, error) {
				st, rec, err := was(r, cur, now)
				if st.Changed && !st.Next.KnownUntil.IsZero() {
					st.Next.KnownUntil = time.Unix(0, st.Next.KnownUntil.UnixNano())
				}
				return st, rec, err
			}
		}},
		{"late renewal steals", "R08/LateRenewalStealsNothing", func(s *store) {
			was := s.renew
			s.renew = func(ref backend.Ref, cur record, now time.Time, ttl time.Duration) (step, error) {
				if cur.State == backend.InFlight {
					cur.Owner = ref.Owner
				}
				return was(ref, cur, now, ttl)
			}
		}},
		{"renewal resurrects an open record", "R03/RenewActsInFlightOnly", func(s *store) {
			was := s.renew
			s.renew = func(ref backend.Ref, cur record, now time.Time, ttl time.Duration) (step, error) {
				if cur.State == backend.Open && cur.Owner == ref.Owner {
					cur.State, cur.LeaseUntil, cur.KnownUntil = backend.InFlight, now, now.Add(time.Hour)
				}
				return was(ref, cur, now, ttl)
			}
		}},
		{"renewal shortens", "R08/RenewNeverShortens", func(s *store) {
			was := s.renew
			s.renew = func(ref backend.Ref, cur record, now time.Time, ttl time.Duration) (step, error) {
				st, err := was(ref, cur, now, ttl)
				if err == nil {
					st.Changed, st.Next.LeaseUntil = true, now.Add(ttl)
				}
				return st, err
			}
		}},
		{"renewal leaves the record's end behind", "R08/RenewMovesTheAbandonedWindow", func(s *store) {
			was := s.renew
			s.renew = func(ref backend.Ref, cur record, now time.Time, ttl time.Duration) (step, error) {
				st, err := was(ref, cur, now, ttl)
				st.Next.KnownUntil = cur.KnownUntil
				return st, err
			}
		}},
		{"renewal refused after the lease though nobody took over", "R08/RenewAfterTheLeaseKeepsAnAttemptThatNobodyTook", func(s *store) {
			was := s.renew
			s.renew = func(ref backend.Ref, cur record, now time.Time, ttl time.Duration) (step, error) {
				if cur.IsAbandoned(now) {
					return step{}, backend.ErrLeaseLost
				}
				return was(ref, cur, now, ttl)
			}
		}},
		{"hold ignored", "R13/TheStricterPolicyWins", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				any := *r
				cur.OnAbandoned = min(cur.OnAbandoned, backend.Recover)
				any.OnAbandoned, any.Recovered = min(r.OnAbandoned, backend.Recover), true
				return was(&any, cur, now, seed)
			}
		})},
		{"only the caller's policy counts", "R13/TheStricterPolicyWins", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if cur.State != 0 {
					cur.OnAbandoned = backend.Rerun
				}
				return was(r, cur, now, seed)
			}
		})},
		{"policy is not passed on by a takeover", "R13/TheInheritedPolicyHoldsForTheNextTakeOver", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				s, res, err := was(r, cur, now, seed)
				if s.Changed && res.Outcome == backend.Acquired {
					s.Next.OnAbandoned = r.OnAbandoned
					s.Next.KnownUntil = s.Next.LeaseUntil.Add(r.KnownFor)
				}
				return s, res, err
			}
		})},
		{"held record loses its fingerprint", "R02/FingerprintSurvivesHold", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				s, res, err := was(r, cur, now, seed)
				if s.Changed && s.Next.State == backend.Uncertain {
					s.Next.Fingerprint = r.Fingerprint[:0]
				}
				return s, res, err
			}
		})},
		{"held record keeps the window it had", "R13/HoldOfARerunRecordHasNoWindow", reserving(func(was reserveFunc) reserveFunc {
			return func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				s, res, err := was(r, cur, now, seed)
				if s.Changed && s.Next.State == backend.Uncertain {
					s.Next.KnownUntil = cur.KnownUntil
				}
				return s, res, err
			}
		})},
	}
}

func brokenStorage() []broken {
	return []broken{
		{"reads alias the store", "R27/ReturnedBytesAreCopies", func(s *store) { s.aliasOut = true }},
		{"reads share one buffer", "R27/KeptBytesOutliveTheRecord", func(s *store) { s.arena = make([]byte, 1<<20) }},
		{"sweeper fails on a new store", "R24/SweepOfAnEmptyStore", func(s *store) { s.sweepNew = true }},
		{"sweeper counts twice", "R24/SweepRemovesWhatIsDue", func(s *store) { s.miscount = true }},
		{"guarantees left out", "R07/GuaranteesAreStated", func(s *store) { s.silent = true }},
		{"writes alias the caller", "R27/StoredBytesAreCopied", func(s *store) {
			was := s.complete
			s.complete = func(r *settle, cur record, now time.Time) (step, record, error) {
				st, rec, err := was(r, cur, now)
				if st.Changed {
					st.Next.Body = r.Body
				}
				return st, rec, err
			}
		}},
		{"sweeper deletes by a stale selection", "R24/SweepRacesWithNewOwners", func(s *store) { s.staleSweep = true }},
		{"sweeper goes by the age of the attempt", "R24/SweepSparesEverythingThatIsNotDue", func(s *store) {
			was := s.expire
			s.expire = func(cur record, now time.Time) step {
				if cur.State == backend.InFlight && now.Sub(cur.ReservedAt) > 3*time.Minute {
					return step{Changed: true}
				}
				return was(cur, now)
			}
		}},
		{"sweeper deletes uncertain records", "R22/HeldRecoveringAndUncertainHaveNoWindow", func(s *store) {
			was := s.expire
			s.expire = func(cur record, now time.Time) step {
				if cur.State == backend.Uncertain && now.After(cur.LeaseUntil) {
					return step{Changed: true}
				}
				return was(cur, now)
			}
		}},
		{"sweeper deletes the record with its body", "R24/SweepDropsBodiesAndKeepsRecords", func(s *store) {
			was := s.expire
			s.expire = func(cur record, now time.Time) step {
				st := was(cur, now)
				st.Next = record{}
				return st
			}
		}},
		{"expired record visible until swept", "R22/ExpiredReadsAsAbsent", func(s *store) {
			s.read = func(cur record, now time.Time) record { return cur }
		}},
		{"body returned after the replay window", "R22/AfterTheReplayWindowOnlyTheBodyIsGone", func(s *store) {
			s.read = func(cur record, now time.Time) record {
				cur.ReplayUntil = cur.KnownUntil
				return cur.At(now)
			}
		}},
		{"list matches prefixes", "R05/ListComparesScopesAsTheyAre", func(s *store) {
			s.match = func(f *backend.Filter, r *record, now time.Time) bool {
				any := *f
				any.Tenant = ""
				return strings.HasPrefix(r.ID.Tenant, f.Tenant) && any.Match(r, now)
			}
		}},
		{"list matches patterns", "R05/ListComparesScopesAsTheyAre", func(s *store) {
			s.match = func(f *backend.Filter, r *record, now time.Time) bool {
				any := *f
				any.Operation = ""
				ok, _ := path.Match(f.Operation, r.ID.Operation)
				return (f.Operation == "" || ok) && any.Match(r, now)
			}
		}},
		{"list folds case", "R05/ListComparesScopesAsTheyAre", func(s *store) {
			s.match = func(f *backend.Filter, r *record, now time.Time) bool {
				any := *f
				any.Tenant = ""
				return (f.Tenant == "" || strings.EqualFold(f.Tenant, r.ID.Tenant)) && any.Match(r, now)
			}
		}},
		{"list holds the store between yields", "List/HoldsNothingBetweenYields", func(s *store) { s.holdList = true }},
		{"keys glued with a separator", "R05/LookAlikesAreApart", func(s *store) {
			s.key = func(id backend.ID) string { return id.Tenant + ":" + id.Operation + ":" + id.Key }
		}},
		{"keys without their tenant", "R05/LookAlikesAreApart", func(s *store) {
			s.key = func(id backend.ID) string { return id.Operation + "\x00" + id.Key }
		}},
		{"keys fold case", "R05/LookAlikesAreApart", func(s *store) {
			s.key = func(id backend.ID) string { return strings.ToLower(string(id.AppendTo(nil))) }
		}},
		{"keys trimmed", "R05/LookAlikesAreApart", func(s *store) {
			s.key = func(id backend.ID) string { return strings.TrimSpace(string(id.AppendTo(nil))) }
		}},
		{"limits not checked", "R05/EverythingBeyondTheLimitsIsRefused", func(s *store) { s.unchecked = true }},
		{"dead context ignored", "R25/DeadContextReservesNothing", func(s *store) { s.deaf = true }},
		{"unknown version taken for absent", "R28/UnknownRecordVersion", func(s *store) { s.forgive(backend.ErrUnknownVersion) }},
		{"corrupt record taken for absent", "R07/CorruptRecordIsNoAnswer", func(s *store) { s.forgive(backend.ErrCorruptRecord) }},
	}
}

func brokenTransactions() []broken {
	return []broken{
		{"effects stay when work fails", "R17/ErrorOfWorkRollsBackBoth", func(s *store) { s.keepEffects = true }},
		{"effects commit before the record", "R17/ErrorOfWorkRollsBackBoth", func(s *store) { s.earlyEffects = true }},
		{"undo ignored", "R17/UndoStoresOnlyTheOutcome", func(s *store) { s.ignoreUndo = true }},
		{"work runs for duplicates", "R17/DuplicateRunsNothing", func(s *store) { s.runDuplicates = true }},
		{"panic of work swallowed", "R17/PanicOfWorkRollsBackBoth", func(s *store) { s.swallow = true }},
		{"lost commit reported as a failure", "R18/LostCommitIsSettled", func(s *store) { s.failLostCommit = true }},
		{"commit reported as cancelled", "R25/ContextThatEndsInWork", func(s *store) { s.ctxCommit = true }},
		{"early commit not noticed", "R19/WorkCannotCommitByItself", func(s *store) { s.ignoreEarly = true }},
		{"duplicates wait for ever", "R20/DuplicateOfAnOpenTransactionFailsFast", func(s *store) { s.waitForEver = true }},
		{"join keeps the effects of failed work", "R21/ErrorOfWorkLeavesTheCallersTransactionUsable", func(s *store) { s.joinKeeps = true }},
		{"join breaks the caller's transaction", "R21/DuplicateLeavesTheCallersTransactionUsable", func(s *store) { s.joinBreaks = true }},
		{"finish without lease check", "R12/FinishAfterALossCommitsNothing", func(s *store) { s.blindFinish = true }},
		{"repeated finish has a second effect", "R12/RepeatedFinishHasOneEffect", func(s *store) { s.repeatFinish = true }},
	}
}
