package testdb

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstallScriptSaysWhatIsThere runs the script of make servers where Redis is absent, old or new.
// It looks only: no test installs anything.
func TestInstallScriptSaysWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, version, want string }{
		{"absent", "", "servers: Redis 7 or later is missing: the tests that need it will be skipped"},
		{"old", "6.2.6", "servers: Redis 7 or later is missing: the tests that need it will be skipped"},
		{"new", "8.0.1", "servers: Redis 8.0.1 at "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			bin := t.TempDir()
			for _, tool := range []string{"sh", "dirname", "head", "id"} {
				path, err := exec.LookPath(tool)
				if err != nil {
					t.Skipf("the machine lacks %s", tool)
				}
				if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
					t.Fatal(err)
				}
			}
			if tt.version != "" {
				script := fmt.Sprintf("#!/bin/sh\necho 'Redis server v=%s sha=00000000:0 malloc=libc'\n", tt.version)
				if err := os.WriteFile(filepath.Join(bin, "redis-server"), []byte(script), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("sh", "install.sh")
			cmd.Env = []string{"PATH=" + bin, "INSTALL=0"}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			if strings.Count(string(out), tt.want) != 1 {
				t.Errorf("it says\n%s\nwant %q", out, tt.want)
			}
			for line := range strings.Lines(string(out)) {
				if !strings.HasPrefix(line, "servers: ") {
					t.Errorf("a line that is not its own: %q", line)
				}
			}
			if missing := strings.Contains(string(out), "make test"); missing != (strings.Contains(string(out), "missing")) {
				t.Errorf("it says\n%s\nwant how to get what is missing, if something is", out)
			}
		})
	}
}
