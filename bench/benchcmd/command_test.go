package benchcmd

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goidem/idem/bench/report"
	"github.com/goidem/idem/bench/result"
)

func TestMain(m *testing.M) {
	Child()
	goleak.VerifyTestMain(m)
}

// call runs the command as a program does.
func call(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := New("bench")
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = cmd.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

// TestBadInput has one clear error for each wrong call, and no secret in any.
func TestBadInput(t *testing.T) {
	t.Parallel()
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := nobody.Addr().String()
	nobody.Close() // nothing listens there any more
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := []string{"--own-servers=false", "--workloads", "new-keys", "--experiments", "none", "--out", t.TempDir()}
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"1 an unknown strategy", []string{"--strategies", "bolt-leese"}, ExitUsage, `no strategy "bolt-leese"; there are none,`},
		{"2 an unknown workload", []string{"--workloads", "x"}, ExitUsage, `no workload "x"; there are new-keys`},
		{"3 an unknown experiment", []string{"--experiments", "x"}, ExitUsage, `no experiment "x"; there are duplicate storm`},
		{"4 an unknown profile", []string{"--profile", "slow"}, ExitUsage, `no profile "slow"; there are quick and full`},
		{"5 nothing to run", []string{"--workloads", "none", "--experiments", "none"}, ExitUsage, "nothing to run"},
		{"6 a stray argument", []string{"quick"}, ExitUsage, `unexpected argument "quick"`},
		{"7 an unknown flag", []string{"--fast"}, ExitUsage, "unknown flag: --fast"},
		{"8 a URL of another server", []string{"--redis", "postgres://u:s3cret@h/d"}, ExitUsage, `--redis has a URL of the scheme "postgres"`},
		{"9 no URL", []string{"--postgres", "postgres://u:s3cret@[h"}, ExitUsage, "--postgres is no URL"},
		{"10 a URL without a host", []string{"--redis", "redis:///0?password=s3cret"}, ExitUsage, "--redis has a URL without a host"},
		{"11 no PostgreSQL there", append(run, "--strategies", "pg-lease", "--postgres", "postgres://u:s3cret@"+closed+"/d"), ExitServer, "no postgres answers at postgres://u@" + closed + "/d: connection refused"},
		{"12 no Redis there", append(run, "--strategies", "redis-lease", "--redis", "redis://u:s3cret@"+closed+"/0"), ExitServer, "no redis answers at redis://u@" + closed + "/0: connection refused"},
		{"13 a server that is missing", append(run, "--strategies", "crdb-tx"), ExitServer, "crdb-tx cannot be run: it needs a CockroachDB: --cockroach URL"},
		{"14 a folder that is none", []string{"--dir", file}, ExitUsage, "--dir is " + file},
		{"15 no place for the report", append(run[:len(run)-1], file, "--strategies", "none"), ExitUsage, "the report has no place"},
		{"16 a negative limit", []string{"--limit", "-1s"}, ExitUsage, "--limit is negative"},
		{"17 one report to compare", []string{"compare", file}, ExitUsage, "compare needs two reports, and was given 1"},
		{"18 a report of another version", []string{"compare", file, file}, ExitVersion, "unknown schema version 0"},
		{"19 a report that is not there", []string{"compare", "/nowhere/a.json", file}, ExitUsage, "/nowhere/a.json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, err := call(t.Context(), tt.args...)
			var e *Error
			if !errors.As(err, &e) || e.Code != tt.code || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v; want status %d and %q", err, tt.code, tt.want)
			}
			if err != nil && strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("more than a line: %v", err)
			}
			if strings.Contains(stdout+stderr+err.Error(), "s3cret") {
				t.Errorf("a password is shown: %s%s%v", stdout, stderr, err)
			}
		})
	}
}

// small is a run that takes a second.
func small(out string, more ...string) []string {
	return append([]string{"--own-servers=false", "--strategies", "none,memory-lease", "--workloads", "retries", "--experiments", "none", "--limit", "10s", "--seed", "7", "--out", out}, more...)
}

func TestSmallRun(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	stdout, stderr, err := call(t.Context(), small(out)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	r, err := result.ReadFile(filepath.Join(out, report.JSONFile))
	if err != nil {
		t.Fatal(err)
	}
	if r.Partial || r.Reason != "" || len(r.Measurements) != 2 || r.Seed != 7 || r.Finished.Before(r.Started) {
		t.Errorf("partial %v (%s), %d measurements, seed %d", r.Partial, r.Reason, len(r.Measurements), r.Seed)
	}
	for _, m := range r.Measurements {
		if m.Throughput <= 0 || m.Workload.Callers != 8 || m.Workload.Seed != 7 {
			t.Errorf("%s: %v operations a second, %+v", m.Strategy, m.Throughput, m.Workload)
		}
		// Half of the requests are duplicates: whoever decides nothing does them again.
		if harmed := m.Duplicates > 0; harmed != (m.Strategy == "none") {
			t.Errorf("%s: %d effects twice", m.Strategy, m.Duplicates)
		}
	}
	if m := r.Machine; m.CPUs < 1 || m.SyncRate <= 0 || m.Go == "" || m.Module == "" || m.FileSystem == "" {
		t.Errorf("the machine is not described: %+v", m)
	}
	for _, name := range []string{report.HTMLFile, report.MarkdownFile, report.JSONFile} {
		if !strings.Contains(stdout, filepath.Join(out, name)) {
			t.Errorf("it does not say where %s is:\n%s", name, stdout)
		}
	}
	if strings.Contains(stderr, "\x1b") {
		t.Errorf("a bar where there is no terminal: %q", stderr)
	}
	same, _, err := call(t.Context(), "compare", filepath.Join(out, report.JSONFile), filepath.Join(out, report.JSONFile))
	if err != nil || strings.Contains(same, "Worse") {
		t.Errorf("compared with itself: %v\n%s", err, same)
	}
}

// TestCompareExitsOnWorse changes one figure of a report.
func TestCompareExitsOnWorse(t *testing.T) {
	t.Parallel()
	write := func(x float64) string {
		r := &result.Report{Measurements: []result.Measurement{{Strategy: "s", Workload: result.Workload{Name: "w"}, Rounds: 5, Throughput: x, ThroughputLow: x, ThroughputHigh: x}}}
		path := filepath.Join(t.TempDir(), "report.json")
		var b bytes.Buffer
		if err := errors.Join(r.Write(&b), os.WriteFile(path, b.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fast, slow := write(1000), write(500)
	out, _, err := call(t.Context(), "compare", fast, slow)
	var e *Error
	if !errors.As(err, &e) || e.Code != ExitFound || !strings.Contains(out, "0.50×") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = call(t.Context(), "compare", slow, fast); err != nil || !strings.Contains(out, "Better") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestInterruptedRunIsKept ends a run as Ctrl-C does, once its first workload is written.
func TestInterruptedRunIsKept(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	path := filepath.Join(out, report.JSONFile)
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(path); err == nil {
				cancel()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	args := small(out, "--workloads", "retries,new-keys,steady", "--limit", "60s")
	_, _, err := call(ctx, args...)
	var e *Error
	if !errors.As(err, &e) || e.Code != ExitInterrupted {
		t.Fatalf("%v; want status %d", err, ExitInterrupted)
	}
	r, err := result.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Partial || !strings.Contains(r.Reason, "signal") || len(r.Measurements) == 0 {
		t.Errorf("partial %v (%q), %d measurements", r.Partial, r.Reason, len(r.Measurements))
	}
	page, err := os.ReadFile(filepath.Join(out, report.HTMLFile))
	if err != nil || !bytes.Contains(page, []byte("Partial: the run was cut off")) {
		t.Errorf("the page does not say that it is partial: %v", err)
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	r := redactor{"hunter2", "p%40ss"}
	for _, tt := range []struct{ in, want string }{
		{"password hunter2 failed", "password xxxxx failed"},
		{"dial postgres://me:other@h/d:\n no", "dial postgres://me:xxxxx@h/d: no"},
		{"redis://:p%40ss@h", "redis://:xxxxx@h"},
		{"postgres://h/d?password=abc&x=1", "postgres://h/d?password=xxxxx&x=1"},
		{"nothing here", "nothing here"},
	} {
		if have := r.line(tt.in); have != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.in, have, tt.want)
		}
	}
	if have := shown("postgres://me:pw@h:1/d?password=x#y"); have != "postgres://me@h:1/d" {
		t.Errorf("shown: %s", have)
	}
}

func TestListNamesEverything(t *testing.T) {
	t.Parallel()
	out, _, err := call(t.Context(), "--list")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"bolt-tx", "floor bolt-batch", "needs postgres", "new-keys", "open loop", "duplicate storm"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not name %q:\n%s", want, out)
		}
	}
}

// TestScreenOfBadNumbers: what is shown never stops a run.
func TestScreenOfBadNumbers(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := newScreen(&b)
	s.last = time.Now().Add(-time.Hour)
	s.show(math.NaN(), "x")
	s.close()
	s.close()
	s.show(1, "after its end")
	if have := b.String(); !strings.Contains(have, "0 %") || strings.Contains(have, "after") {
		t.Errorf("%q", have)
	}
}
