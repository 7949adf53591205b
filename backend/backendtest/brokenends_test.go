package backendtest_test

import (
	"bytes"
	"time"

	"github.com/goidem/idem/backend"
)

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
