package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goidem/idem/internal/crdbshim"
	"github.com/goidem/idem/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// program builds the command that is tested.
func program(t *testing.T) func(store string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "idem")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/goidem/idem/cmd/idem").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return func(store string, args ...string) (int, string, string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), bin, args...)
		cmd.Env = append(os.Environ(), Env+"="+store, "HOME="+t.TempDir())
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		cmd.Dir = t.TempDir()
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
	}
}

const secret = "correct-horse"

// Every command does on a server what it does on a file, or says that it is for
// files.
func TestCommandsOnServers(t *testing.T) {
	pg := testdb.Postgres(t)
	idem := program(t)
	shim := crdbshim.Start(t, pg.Database(t), crdbshim.Options{})
	for name, plain := range map[string]string{
		"postgres":  pg.Database(t),
		"cockroach": strings.Replace(shim.URL(), "postgres://", "cockroach://", 1),
	} {
		t.Run(name, func(t *testing.T) {
			url := strings.Replace(plain, "postgres@", "postgres:"+secret+"@", 1) + "&idem_schema=keys"
			do := func(status int, says string, args ...string) string {
				t.Helper()
				got, out, errs := idem(url, args...)
				if got != status || !strings.Contains(out+errs, says) {
					t.Errorf("idem %s: status %d, want %d; it should say %q\n%s%s", strings.Join(args, " "), got, status, says, out, errs)
				}
				if strings.Contains(out+errs, secret) {
					t.Errorf("idem %s shows the password:\n%s%s", strings.Join(args, " "), out, errs)
				}
				return out
			}
			key := []string{"--op", "close", "--key", "2026-11"}
			with := func(args ...string) []string {
				return append(args[:1:1], append(append([]string(nil), key...), args[1:]...)...)
			}

			do(69, "next: idem migrate --store '"+name+"://postgres@", "list")
			do(69, "idem_schema=keys", "list")
			do(0, "GRANT SELECT, INSERT, UPDATE, DELETE", "migrate", "--print")
			do(69, "no schema", "list") // printing made nothing
			do(0, "the tables are those of this program", "migrate")
			do(0, "the tables are those of this program", "migrate")
			do(0, "hello", with("run", "--", "sh", "-c", "echo hello; echo x >> $HOME/ran")...)
			do(0, "replayed", with("run", "--", "sh", "-c", "echo hello; echo x >> $HOME/ran")...)
			do(65, "", with("run", "--", "sh", "-c", "echo another")...)
			do(0, "completed", with("get")...)
			do(0, "close", "list")
			do(0, "close", "stats")
			do(0, "sound", "check")
			do(0, "server", "doctor")
			var report struct {
				Findings []struct{ Setting string }
			}
			if err := json.Unmarshal([]byte(do(0, "", "doctor", "--json", "--require-atomic", "--require-shared", "--require-server-clock")), &report); err != nil || len(report.Findings) < 3 {
				t.Errorf("doctor --json: %+v, %v", report, err)
			}
			do(0, "", "watch", "--once")
			file := filepath.Join(t.TempDir(), "export.jsonl")
			if err := os.WriteFile(file, []byte(do(0, "exported 1 record", "export")), 0o600); err != nil {
				t.Fatal(err)
			}
			var line struct{ Fence json.Number }
			if err := json.Unmarshal([]byte(do(0, "", with("get", "--json")...)), &line); err != nil {
				t.Fatal(err)
			}
			do(0, "", with("forget", "--fence", line.Fence.String())...)
			do(66, "", with("get")...)
			do(0, "1  restored", "import", file)
			do(0, "1  skipped: known already", "import", file)
			do(0, "hello", with("run", "--", "sh", "-c", "echo hello; echo x >> $HOME/ran")...)
			do(0, "would forget", "prune", "--older-than", "1s")
			do(0, "removed 0 expired records", "sweep")
			do(0, "would look at 0 records", "sweep", "--dry-run")
			do(64, "for stores in a file", "compact")
			items := filepath.Join(t.TempDir(), "items")
			if err := os.WriteFile(items, []byte("a\nb\nc\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			do(0, "", "each", "--op", "mail", "--key", "{{.line}}", items, "--", "echo", "{{.line}}")
			do(0, "mail", "list", "--op", "mail")
		})
	}
}

func TestServerErrorsOfTheCommand(t *testing.T) {
	idem := program(t)
	for _, tt := range []struct {
		url    string
		status int
		says   string
	}{
		{"postgres://anna:" + secret + "@127.0.0.1:1/db", 69, "nothing listens"},
		{"postgres://anna:" + secret + "@127.0.0.1:port/db", 64, "cannot be read"},
		{"postgres://anna:" + secret + "@host/db?sslmode=perhaps", 64, "no URL of a PostgreSQL database"},
		{"cockroach://anna:" + secret + "%zz@host/db", 64, "cannot be read"},
		{"mysql://anna:" + secret + "@host/db", 64, "mysql://"},
	} {
		status, out, errs := idem(tt.url, "list")
		if status != tt.status || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: status %d, want %d; it should say %q\n%s", tt.url, status, tt.status, tt.says, errs)
		}
		if strings.Contains(out+errs, secret) {
			t.Errorf("%s: it shows the password: %s", tt.url, errs)
		}
	}
	if status, _, errs := idem("", "migrate"); status != 64 || !strings.Contains(errs, "needs no migration") {
		t.Errorf("migrate of a file: %d, %s", status, errs)
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, scheme, shown, schema, prefix string }{
		{"postgres://anna:" + secret + "@h:1/db", "postgres", "postgres://anna@h:1/db", "", ""},
		{"postgresql://h/db?password=" + secret + "&sslmode=disable", "postgres", "postgres://h/db?sslmode=disable", "", ""},
		{"cockroachdb://h/db?idem_schema=s&idem_table_prefix=p_", "cockroach", "cockroach://h:26257/db?idem_schema=s&idem_table_prefix=p_", "s", "p_"},
	} {
		u, ok, err := ParseURL(tt.name)
		if err != nil || !ok || u.Scheme != tt.scheme || u.String() != tt.shown || u.Schema != tt.schema || u.TablePrefix != tt.prefix {
			t.Errorf("%s: %+v, %v, %v", tt.name, u, ok, err)
		}
	}
	for _, name := range []string{"file.db", "bolt:file.db", "bolt:///file.db", "/a/b"} {
		if _, ok, err := ParseURL(name); ok || err != nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}
