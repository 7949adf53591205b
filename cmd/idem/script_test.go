package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// envEnded names what the program under test does between a command's end and the
// record of it: die, or sleep for a duration.
const envEnded = "IDEM_TEST_ENDED"

func TestMain(m *testing.M) {
	if do := os.Getenv(envEnded); do == "die" {
		testEnded = func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }
	} else if d, err := time.ParseDuration(do); err == nil {
		testEnded = func() { time.Sleep(d) }
	}
	if os.Getenv(envMain) != "" {
		os.Exit(realMain())
	}
	testscript.Main(m, map[string]func(){"idem": func() { os.Exit(realMain()) }})
}

// TestScript runs testdata/script. Each script has a folder and a store of its
// own. Besides what testscript offers there is
//
//	exits STATUS PROGRAM [ARGUMENT...]
//
// which runs a program and checks its exact exit status.
func TestScript(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("IDEM_UPDATE_SCRIPTS") != "",
		Setup: func(e *testscript.Env) error {
			e.Setenv("IDEM_STORE", filepath.Join(e.WorkDir, "state", "idem.db"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("TZ", "UTC")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS PROGRAM [ARGUMENT...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	var exit *exec.ExitError
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%s: %v", args[1], err)
	}
	if got != want {
		ts.Fatalf("%s ended with status %d, want %d", args[1], got, want)
	}
}
