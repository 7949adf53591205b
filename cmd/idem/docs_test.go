package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// envUpdateDocs makes the tests of this file write the pages anew:
//
//	IDEM_UPDATE_DOCS=1 go test ./cmd/idem -run 'TestReference|TestFirstHour'
const envUpdateDocs = "IDEM_UPDATE_DOCS"

// commands returns all commands of idem but help, depth first.
func commands(root *cobra.Command) (all []*cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			continue
		}
		all = append(append(all, c), commands(c)...)
	}
	return all
}

func TestEveryCommandExplainsItself(t *testing.T) {
	t.Parallel()
	root := newRoot()
	for _, c := range append(commands(root), root) {
		if c.Short == "" || c.Long == "" || c.Example == "" {
			t.Errorf("%s: it needs Short, Long and Example", c.CommandPath())
		}
		if strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: Short ends with a full stop", c.CommandPath())
		}
		for line := range strings.SplitSeq(c.Long, "\n") {
			if len(line) > 140 {
				t.Errorf("%s: a line of %d bytes does not fit a terminal: %s", c.CommandPath(), len(line), line)
			}
		}
		looks := c.GroupID == groupLook || c.GroupID == groupMend
		if looks && c.Flag("json") == nil {
			t.Errorf("%s: it has no --json", c.CommandPath())
		}
	}
}

func TestReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# The command line\n\nMade from the help of the commands by a test; see " + envUpdateDocs + " in cmd/idem/docs_test.go.\n")
	root := newRoot()
	for _, c := range append([]*cobra.Command{root}, commands(root)...) {
		c.InitDefaultHelpFlag()
		if jobs := c.Flag("jobs"); jobs != nil {
			jobs.DefValue = "0" // it depends on the machine
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n    %s\n", c.CommandPath(), paragraphs(c.Long), c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(&b, "\nExamples:\n\n%s\n", indent(c.Example))
		}
		if f := c.LocalFlags().FlagUsages(); f != "" {
			fmt.Fprintf(&b, "\nFlags:\n\n%s\n", indent(strings.TrimRight(f, "\n")))
		}
	}
	compareDoc(t, "cli.md", b.String())
}

// paragraphs keeps the lines of a help text, indented ones as code.
func paragraphs(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") {
			lines[i] = "    " + strings.TrimPrefix(line, "  ")
		}
	}
	return strings.Join(lines, "\n")
}

func indent(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = "    " + strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}

func compareDoc(t *testing.T, name, want string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", name)
	if os.Getenv(envUpdateDocs) != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) == want {
		return
	}
	a, b := strings.Split(string(have), "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Fatalf("docs/%s is not current, line %d:\n%s\nit should be:\n%s\nwrite it anew: %s=1 go test ./cmd/idem", name, i+1, a[i], b[i], envUpdateDocs)
		}
	}
	t.Fatalf("docs/%s is not current: it has %d lines and should have %d; write it anew: %s=1 go test ./cmd/idem", name, len(a), len(b), envUpdateDocs)
}

// TestFirstHour types what docs/first-hour.md shows behind each $ and compares what
// comes back. Times, processes, hosts and random keys are made alike first.
func TestFirstHour(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "first-hour.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, filepath.Join(bin, "idem")); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	env := append(os.Environ(), envMain+"=1", "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir, "TZ=UTC",
		"IDEM_STORE=store.db", "IDEM_CONFIG=", "NO_COLOR=1", "XDG_STATE_HOME=")

	var out strings.Builder
	lines := strings.SplitAfter(string(page), "\n")
	for i := 0; i < len(lines); i++ {
		out.WriteString(lines[i])
		if lines[i] != "```console\n" {
			continue
		}
		for i++; i < len(lines) && lines[i] != "```\n"; i++ {
			typed, isCommand := strings.CutPrefix(lines[i], "$ ")
			if !isCommand {
				continue // what came back the last time
			}
			out.WriteString(lines[i])
			for strings.HasSuffix(typed, "\\\n") && i+1 < len(lines) {
				i++
				typed += lines[i]
				out.WriteString(lines[i])
			}
			cmd := exec.CommandContext(t.Context(), "bash", "-c", typed)
			cmd.Dir, cmd.Env = work, env
			said, _ := cmd.CombinedOutput() // statuses are shown by the page itself
			said = regexp.MustCompile(`(?m)^bash: line \d+: +\d+ Killed .*$`).ReplaceAll(said, []byte("Killed"))
			out.WriteString(alike(string(bytes.ReplaceAll(said, []byte(host+", process"), []byte("host, process")))))
		}
		if i < len(lines) {
			out.WriteString(lines[i])
		}
	}
	compareDoc(t, "first-hour.md", out.String())
}

// alike replaces what is different each time.
func alike(text string) string {
	for _, r := range []struct{ pattern, with string }{
		{`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?`, "2026-11-30 09:00:00"},
		{`process \d+`, "process 4711"},
		{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, "01930000-0000-7000-8000-000000000000"},
		{`\(\d+(ms|s|m\d\ds) ago\)`, "(1s ago)"},
		{`\d+(ms|s) ago +`, "1s ago  "},
		{`BEGAN +`, "BEGAN"},
		{`lease \d+(ms|s) left`, "lease 4s left"},
		{`lease over for \d+(ms|s)`, "lease over for 1s"},
		{`ends in [0-9.]+m?s`, "ends in 4.9s"},
		{`\(in \d+s\)`, "(in 29s)"},
		{`\d+(\.\d+)?/s`, "100/s"},
		{`; \d+(\.\d+)?m?s,`, "; 20ms,"},
		{`size( +)[0-9.]+ .iB, of which [0-9.]+ .iB`, "size${1}64.0 KiB, of which 20.0 KiB"},
		{`began \d+m?s ago`, "began 9s ago"},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.with)
	}
	return text
}

// Every status of the page is one that idem ends with, and the other way round.
func TestEveryExitCode(t *testing.T) {
	s := newShell(t)
	s.run("done", "true")
	gone := "head -c 3000 /dev/zero"
	s.idem("run", "--op", "test.op", "--key", "long", "--max-output", "100", "--", "sh", "-c", gone)
	dies := s.command("run", "--op", "test.op", "--key", "live", "--lease", "1m", "--", "true")
	dies.Env = append(dies.Env, envEnded+"=die")
	_ = dies.Run()
	dies = s.command("run", "--op", "test.op", "--key", "held", "--lease", "2s", "--on-abandoned", "hold", "--", "true")
	dies.Env = append(dies.Env, envEnded+"=die")
	_ = dies.Run()
	_ = exec.Command("sleep", "2.3").Run()
	if err := os.WriteFile(filepath.Join(s.dir, "bad.yaml"), []byte("no: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(s.store())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "cut.db"), data[:12288], 0o600); err != nil {
		t.Fatal(err)
	}

	run := func(key string, more ...string) []string {
		return append([]string{"run", "--op", "test.op", "--key", key}, more...)
	}
	calls := map[int][][]string{
		0:               {{"version"}, run("done", "--", "true"), {"list"}},
		1:               {{"each", "--op", "test.each", "--key", "{{.line}}", "lines.txt", "--", "false"}},
		exitUsage:       {{"list", "--oops"}, run("", "--", "true"), {"walk"}},
		exitMismatch:    {run("done", "--", "false")},
		exitNotFound:    {{"get", "--op", "test.op", "--key", "never"}},
		exitStore:       {{"list", "--store", "nowhere.db"}, {"list", "--store", "bad.yaml"}},
		exitDamaged:     {{"check", "--store", "cut.db"}},
		exitStale:       {{"forget", "--op", "test.op", "--key", "done", "--fence", "999"}},
		exitGone:        {run("long", "--", "sh", "-c", gone)},
		exitInFlight:    {run("live", "--", "true"), {"forget", "--op", "test.op", "--key", "live"}},
		exitUnresolved:  {run("held", "--", "true")},
		exitConfig:      {{"--config", "bad.yaml", "run", "--op", "o", "--key", "k", "--", "true"}, {"doctor", "--require-atomic"}},
		exitTimeout:     {run("slow", "--timeout", "100ms", "--", "sleep", "30")},
		exitNoCommand:   {run("none", "--", "./does-not-exist")},
		exitInternal:    nil, // by its nature
		exitInterrupted: nil, // see the tests that send signals
	}
	if err := os.WriteFile(filepath.Join(s.dir, "lines.txt"), []byte("a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for code, all := range calls {
		for _, args := range all {
			e := s.idem(args...)
			if e.status != code {
				t.Errorf("%v: want status %d, got %+v", args, code, e)
			}
			if code > 1 && (!strings.HasPrefix(e.stderr, "idem: ") || strings.Count(e.stderr, "\n") > 2) {
				t.Errorf("%v: not one clear line and what to type next: %s", args, e.stderr)
			}
		}
	}
	if exitStatus(fmt.Errorf("idem: something else")) != exitInternal {
		t.Error("an unknown error has another status")
	}
	documented := make(map[int]bool)
	for _, c := range exitCodes() {
		documented[c.Code] = true
		if _, ok := calls[c.Code]; !ok {
			t.Errorf("status %d is documented and has no test", c.Code)
		}
	}
	var missing []int
	for code := range calls {
		if !documented[code] {
			missing = append(missing, code)
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("statuses %v are not documented", missing)
	}
}
