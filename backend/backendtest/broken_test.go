package backendtest_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/backendtest"
)

const (
	// brokenVariable names the broken store that a child process runs the suite on.
	brokenVariable = "BACKENDTEST_BROKEN"
	// fullVariable, if set, runs the whole suite on each broken store, and not only
	// the subtests of the rule that should catch it.
	fullVariable = "BACKENDTEST_FULL"
)

// forgive makes a store treat unreadable records as absent ones.
func (s *store) forgive(what error) {
	right := s.key
	s.key = func(id backend.ID) string {
		key := right(id)
		if errors.Is(s.spoiled[key], what) {
			delete(s.spoiled, key)
			delete(s.records, key)
		}
		return key
	}
}

// TestBrokenChild runs the suite on one broken store. It is not a test of its own:
// it fails, and TestSuiteRefusesBrokenStores looks at how.
func TestBrokenChild(t *testing.T) {
	name := os.Getenv(brokenVariable)
	if name == "" {
		t.Skip("only run by TestSuiteRefusesBrokenStores")
	}
	for _, b := range brokenStores() {
		if b.name == name {
			backendtest.RunTx(t, func(testing.TB) *backendtest.TxHarness[*storeTx] { return harness(b.alter) })
			return
		}
	}
	t.Fatalf("no broken store %q", name)
}

// The suite must fail on every broken store, in the subtest of the rule that the
// store breaks. Failing subtests would fail this test too, so each store has a
// process of its own.
func TestSuiteRefusesBrokenStores(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process for each broken store")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stores := brokenStores()
	if len(stores) < 18 {
		t.Fatalf("only %d broken stores", len(stores))
	}
	full := os.Getenv(fullVariable) != ""
	rows, all := make([]string, len(stores)), make([][]string, len(stores))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2)
	for i, b := range stores {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			failed, out := runBroken(t, exe, b, full)
			all[i] = failed
			if !slices.Contains(failed, b.rule) {
				t.Errorf("%s: %s did not fail; failed: %v\n%s", b.name, b.rule, failed, tail(out))
			}
			rows[i] = fmt.Sprintf("%-56s %s", b.name, b.rule)
			if full {
				rows[i] += fmt.Sprintf(" and %d more", len(failed)-1)
			}
		})
	}
	wg.Wait()
	t.Logf("%d broken stores\n%-56s %s\n%s", len(stores), "broken store", "caught by", strings.Join(rows, "\n"))
	if full {
		if idle := idle(slices.Concat(all...)); len(idle) > 0 {
			t.Errorf("subtests that fail on no broken store, and may be unable to: %v", idle)
		}
	}
}

// idle returns the subtests of the suite that are not among failed.
func idle(failed []string) []string {
	var names []string
	for _, name := range backendtest.Names() {
		if !slices.Contains(failed, name) {
			names = append(names, name)
		}
	}
	return names
}

// runBroken returns the names of the subtests that failed in a child.
func runBroken(t *testing.T, exe string, b broken, full bool) (failed []string, out string) {
	run := "-test.run=^TestBrokenChild$"
	if rule, name, _ := strings.Cut(b.rule, "/"); !full {
		run += "/^" + rule + "$/^" + name + "$"
	}
	cmd := exec.CommandContext(t.Context(), exe, run, "-test.v", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), brokenVariable+"="+b.name)
	cmd.WaitDelay = 5 * time.Second
	raw, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("%s: the suite passed", b.name)
	}
	for _, m := range regexp.MustCompile(`(?m)^    --- FAIL: TestBrokenChild/(\w+/\w+) `).FindAllStringSubmatch(string(raw), -1) {
		failed = append(failed, m[1])
	}
	return failed, string(raw)
}

func tail(s string) string { return s[max(0, len(s)-1500):] }
