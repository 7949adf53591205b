package idem_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The README's program is built and run as it stands there.
func TestReadmeProgramRunsOnce(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	program, _, closed := strings.Cut(rest, "```")
	if !ok || !closed {
		t.Fatal("README.md has no Go program")
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "billing")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("the README's program does not build: %v\n%s", err, out)
	}
	run := func() string {
		cmd := exec.Command(binary)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("the README's program fails: %v\n%s", err, out)
		}
		return string(out)
	}
	first, second := run(), run()
	if !strings.HasPrefix(first, "charged as ") || !strings.HasSuffix(first, "replayed: false\n") {
		t.Errorf("first run printed %q", first)
	}
	if want := strings.Replace(first, "false", "true", 1); second != want {
		t.Errorf("second run printed %q, want %q", second, want)
	}
}
