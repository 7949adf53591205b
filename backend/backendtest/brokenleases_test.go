package backendtest_test

import (
	"time"

	"github.com/goidem/idem/backend"
)

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
