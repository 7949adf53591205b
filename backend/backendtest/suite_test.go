package backendtest_test

import (
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

// harness returns a harness around a store that alter has made wrong; nil leaves
// it right.
func harness(alter func(s *store)) *backendtest.TxHarness[*storeTx] {
	clock := newTestClock()
	s := newStore(clock.Now)
	if alter != nil {
		alter(s)
	}
	spoil := func(err error) func(testing.TB, backend.ID) {
		return func(_ testing.TB, id backend.ID) {
			s.sem <- struct{}{}
			defer s.unlock()
			s.spoiled[s.key(id)] = err
		}
	}
	return &backendtest.TxHarness[*storeTx]{
		Open:                func(testing.TB) backend.Transactional[*storeTx] { return s },
		Advance:             clock.Advance,
		FenceOutlivesRecord: true,
		Put: func(_ testing.TB, r backend.Record) {
			s.sem <- struct{}{}
			defer s.unlock()
			s.records[s.key(r.ID)] = r
		},
		Damage:   spoil(backend.ErrCorruptRecord),
		Future:   spoil(&backend.VersionError{What: "record", Found: 9, Known: 1}),
		Effect:   func(_ testing.TB, tx *storeTx, name string) { tx.Effect(name) },
		Count:    func(_ testing.TB, name string) int { return s.committed(name) },
		InOwnTx:  func(_ testing.TB, do func(tx *storeTx) error) error { return s.ownTx(do) },
		EndEarly: func(tx *storeTx) bool { return tx.Commit() },
		LoseCommit: func(_ testing.TB, applied bool) {
			s.lose = &applied
		},
	}
}

// A suite that fails a right store would be as useless as one that passes a wrong
// one.
func TestSuiteAcceptsARightStore(t *testing.T) {
	backendtest.RunTx(t, func(testing.TB) *backendtest.TxHarness[*storeTx] { return harness(nil) })
}

// Stores whose clock cannot be moved run the suite too: it really waits, and says
// what it cannot look at.
func TestSuiteWithARealClock(t *testing.T) {
	if testing.Short() {
		t.Skip("really waits")
	}
	backendtest.RunTx(t, func(testing.TB) *backendtest.TxHarness[*storeTx] {
		h := harness(func(s *store) { s.now = time.Now })
		h.Advance, h.MaxAdvance, h.Unit, h.Tick, h.Parallel = time.Sleep, 2*time.Second, 150*time.Millisecond, time.Millisecond, true
		return h
	})
}
