package benchcmd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/goidem/idem/bench/result"
)

// syncTime is how long the disk's raw rate is measured.
const syncTime = 400 * time.Millisecond

// thisMachine describes where the run takes place, with the disk of dir.
func thisMachine(ctx context.Context, dir string) (result.Machine, error) {
	m := result.Machine{OS: runtime.GOOS, CPUs: runtime.NumCPU(), Memory: -1, Load: -1, Go: runtime.Version(), Module: module(ctx)}
	describe(&m, dir)
	var err error
	m.SyncRate, err = syncRate(dir)
	return m, err
}

// syncRate overwrites a page of a file and flushes it, for a while.
func syncRate(dir string) (float64, error) {
	f, err := os.CreateTemp(dir, "raw-*")
	if err != nil {
		return -1, fmt.Errorf("bench: the folder that is measured: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	page := make([]byte, 4096)
	const pages = 64 // written before, so that no flush makes the file longer
	for i := range int64(pages) {
		if _, err := f.WriteAt(page, i*4096); err != nil {
			return -1, fmt.Errorf("bench: the folder that is measured: %w", err)
		}
	}
	if err := f.Sync(); err != nil {
		return -1, fmt.Errorf("bench: the folder that is measured: %w", err)
	}
	begun, n := time.Now(), int64(0)
	for time.Since(begun) < syncTime {
		page[0] = byte(n)
		if _, err := f.WriteAt(page, n*7%pages*4096); err != nil {
			return -1, fmt.Errorf("bench: the folder that is measured: %w", err)
		}
		if err := flush(f); err != nil {
			return -1, fmt.Errorf("bench: the folder that is measured: %w", err)
		}
		n++
	}
	return float64(n) / time.Since(begun).Seconds(), nil
}

const modulePath = "github.com/goidem/idem"

// module is the version or the commit of idem that is measured.
func module(ctx context.Context) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, dep := range info.Deps { // the program is not of this module
		if dep.Path == modulePath {
			return dep.Version
		}
	}
	commit, dirty := "", false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if commit == "" {
		commit, dirty = checkout(ctx)
	}
	switch {
	case commit == "":
		return info.Main.Version
	case dirty:
		return short(commit) + " dirty"
	}
	return short(commit)
}

func short(commit string) string { return commit[:min(len(commit), 12)] }

// checkout asks git, for a program that was built without a stamp inside the module's own
// working tree, as go run does it.
func checkout(ctx context.Context) (commit string, dirty bool) {
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", args...).Output()
		return strings.TrimSpace(string(out)), err
	}
	top, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return "", false
	}
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	if err != nil || !strings.HasPrefix(string(mod), "module "+modulePath+"\n") {
		return "", false
	}
	if commit, err = git("rev-parse", "HEAD"); err != nil {
		return "", false
	}
	changed, err := git("status", "--porcelain", "--untracked-files=no")
	return commit, err != nil || changed != ""
}
