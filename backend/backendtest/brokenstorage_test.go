package backendtest_test

import (
	"path"
	"strings"
	"time"

	"github.com/goidem/idem/backend"
)

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
