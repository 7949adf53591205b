package backendtest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

// heldUpVariable names a part of TestHeldUpChild that a child process runs.
const heldUpVariable = "BACKENDTEST_HELD_UP"

// byAge needs an attempt that is younger than four units.
const byAge = "R05/ListFiltersByStateAndAge"

// slow returns harnesses around stores with a running clock. The first times
// stores stand still, while the attempt that must be young is made, for longer
// than it stays young.
func slow(times int, alter func(s *store)) func(testing.TB) *backendtest.Harness {
	const unit = 50 * time.Millisecond
	return func(testing.TB) *backendtest.Harness {
		times--
		still := times >= 0
		h := harness(func(s *store) {
			s.now = time.Now
			right := s.reserve
			s.reserve = func(r *reserve, cur record, now time.Time, seed uint64) (step, backend.Reservation, error) {
				if still && strings.HasPrefix(r.ID.Key, "young") {
					defer time.Sleep(6 * unit)
				}
				return right(r, cur, now, seed)
			}
			if alter != nil {
				alter(s)
			}
		})
		return &backendtest.Harness{
			Open:    func(t testing.TB) backend.Backend { return h.Open(t) },
			Advance: time.Sleep, MaxAdvance: 2 * time.Second, Unit: unit, Tick: time.Millisecond,
		}
	}
}

// ageless is a mistake in List that the check must find.
func ageless(s *store) {
	s.match = func(f *backend.Filter, r *record, now time.Time) bool {
		any := *f
		any.OlderThan = 0
		return any.Match(r, now)
	}
}

// A machine that stands still is no fault of the store.
func TestACheckThatWasHeldUpIsPlayedAgain(t *testing.T) {
	backendtest.RunOne(t, byAge, slow(2, nil))
}

// TestHeldUpChild is not a test of its own: it fails, and the test after it looks
// at how.
func TestHeldUpChild(t *testing.T) {
	switch os.Getenv(heldUpVariable) {
	case "wrong and slow":
		backendtest.RunOne(t, byAge, slow(9, ageless))
	case "wrong":
		backendtest.RunOne(t, byAge, slow(0, ageless))
	case "right and always slow":
		backendtest.RunOne(t, byAge, slow(9, nil))
	default:
		t.Skip("only run by TestBeingHeldUpExcusesNoWrongStore")
	}
}

// Neither a fault on a slow machine nor one on a fast machine is explained away,
// and a check that is always held up fails rather than passing unseen.
func TestBeingHeldUpExcusesNoWrongStore(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for part, tries := range map[string]int{"wrong and slow": 3, "wrong": 1, "right and always slow": 3} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestHeldUpChild$", "-test.v", "-test.timeout=60s")
			cmd.Env = append(os.Environ(), heldUpVariable+"="+part)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestHeldUpChild/"+byAge) {
				t.Errorf("the check passed: %v\n%s", err, tail(string(out)))
			}
			// The machine may really hold up the one that is to fail at once.
			if got := strings.Count(string(out), "HELD UP"); got != tries-1 && (part != "wrong" || got >= 3) {
				t.Errorf("it was played %d times; want %d\n%s", got+1, tries, tail(string(out)))
			}
		})
	}
}
