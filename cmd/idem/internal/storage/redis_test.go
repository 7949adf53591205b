package storage

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goidem/idem/internal/testdb"
)

// Every command does on Redis what it does on a file, or says that it is for files.
func TestCommandsOnRedis(t *testing.T) {
	server := testdb.StartRedis(t, "--requirepass", secret)
	idem := program(t)
	url := strings.Replace(server.URL(), "redis://", "redis://:"+secret+"@", 1)
	if strings.Contains(server.URL(), "@") {
		url = server.URL()
	}
	url += "?idem_prefix=cli:"
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
	do(64, "needs no migration", "migrate")
	do(66, "", with("get")...)
	do(0, "hello", with("run", "--", "sh", "-c", "echo hello")...)
	do(0, "replayed", with("run", "--", "sh", "-c", "echo hello")...)
	do(65, "", with("run", "--", "sh", "-c", "echo another")...)
	do(0, "completed", with("get")...)
	do(0, "close", "list")
	do(0, "close", "stats")
	do(0, "sound", "check")
	do(0, "maxmemory-policy", "doctor")
	do(78, "required", "doctor", "--require-atomic")
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
	do(0, "restored", "import", file)
	do(0, "hello", with("run", "--", "sh", "-c", "echo hello")...)
	do(0, "would forget", "prune", "--older-than", "1s")
	do(0, "removed 0 expired records", "sweep")
	do(64, "by itself", "sweep", "--dry-run")
	do(64, "by itself", "compact")
	items := filepath.Join(t.TempDir(), "items")
	if err := os.WriteFile(items, []byte("a\nb\nc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	do(0, "", "each", "--op", "mail", "--key", "{{.line}}", items, "--", "echo", "{{.line}}")
	do(0, "mail", "list", "--op", "mail")
}

// A policy that may lose records is refused until it is named.
func TestEvictingRedisIsAcceptedByName(t *testing.T) {
	server := testdb.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	idem := program(t)
	status, _, errs := idem(server.URL(), "list")
	if status != 78 || !strings.Contains(errs, "allkeys-lru") {
		t.Errorf("status %d: %s", status, errs)
	}
	if status, _, errs := idem(server.URL()+"?idem_accept_eviction=allkeys-lru", "list"); status != 0 {
		t.Errorf("accepted by name: status %d: %s", status, errs)
	}
	if status, _, errs := idem(server.URL()+"?idem_ack_replicas=many", "list"); status != 64 || !strings.Contains(errs, "idem_ack_replicas") {
		t.Errorf("a wrong number: status %d: %s", status, errs)
	}
}

// list scans every master of a Cluster.
func TestListOnACluster(t *testing.T) {
	nodes := testdb.StartCluster(t, 3)
	idem := program(t)
	url := "redis://" + nodes[0]
	items := filepath.Join(t.TempDir(), "items")
	if err := os.WriteFile(items, []byte("a\nb\nc\nd\ne\nf\ng\nh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, errs := idem(url, "each", "--op", "mail", "--key", "{{.line}}", items, "--", "true"); status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	status, out, errs := idem(url, "list", "--json", "--limit", "0")
	if n := strings.Count(out, `"key"`); status != 0 || n != 8 {
		t.Errorf("status %d, %d records of 8: %s%s", status, n, out, errs)
	}
}
