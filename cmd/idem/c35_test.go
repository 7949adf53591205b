package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/bolt"
)

// envService makes the test binary a service that keeps the file open until its
// input ends.
const envService = "IDEM_TEST_SERVICE"

func init() {
	if path := os.Getenv(envService); path != "" {
		os.Exit(serve(path))
	}
}

// serve is that service.
func serve(path string) int {
	db, err := bolt.Open(path, nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := db.Close(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// service starts a process that keeps the shell's store to itself, and returns its
// process ID and what ends it.
func (s *shell) service() (pid int, stop func()) {
	s.t.Helper()
	cmd := s.command()
	cmd.Env = append(cmd.Env, envService+"="+s.store())
	in, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	said := make([]byte, 200)
	n, _ := out.Read(said)
	if string(said[:n]) != "open\n" {
		s.t.Fatalf("the service said %q", said[:n])
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				s.t.Errorf("the service: %v", err)
			}
		})
	}
	s.t.Cleanup(stop)
	return cmd.Process.Pid, stop
}

func (s *shell) store() string { return filepath.Join(s.dir, "state", "idem.db") }

// everyCommand is one call of each command that opens the store.
func everyCommand() map[string][]string {
	return map[string][]string{
		"run":     {"run", "--op", "test.op", "--key", "new", "--", "sh", "-c", "echo ran >> ledger.txt"},
		"get":     {"get", "--op", "test.op", "--key", "k"},
		"list":    {"list"},
		"watch":   {"watch", "--once"},
		"stats":   {"stats"},
		"doctor":  {"doctor"},
		"check":   {"check"},
		"export":  {"export"},
		"resolve": {"resolve", "--op", "test.op", "--key", "k", "--applied", "--evidence", "x"},
		"forget":  {"forget", "--op", "test.op", "--key", "k"},
		"sweep":   {"sweep"},
		"prune":   {"prune", "--older-than", "1s", "--yes"},
		"compact": {"compact"},
		"import":  {"import", os.DevNull},
	}
}

// creating are the commands that make a store where there is none.
func creating(name string) bool { return name == "run" || name == "import" }

// Every command that opens the store belongs to the cases below.
func TestCaseC35_EveryCommandIsCovered(t *testing.T) {
	t.Parallel()
	covered := everyCommand()
	covered["each"] = nil // its own tests
	// They open no file, or one of their own.
	covered["policy"], covered["migrate"], covered["bench"] = nil, nil, nil
	for _, c := range newRoot().Commands() {
		if _, ok := covered[c.Name()]; c.GroupID != "" && !ok && c.Name() != "key" {
			t.Errorf("idem %s is in no case", c.Name())
		}
	}
}

func TestCaseC35_ServiceHoldsTheFile(t *testing.T) {
	s := newShell(t)
	s.run("k", "true")
	before, err := os.ReadFile(s.store())
	if err != nil {
		t.Fatal(err)
	}
	pid, stop := s.service()
	var all sync.WaitGroup
	for name, args := range everyCommand() {
		all.Go(func() {
			began := time.Now()
			e := s.idem(args...)
			took := time.Since(began)
			if e.status != exitStore || e.stdout != "" {
				t.Errorf("%s: %+v", name, e)
			}
			if !strings.Contains(e.stderr, s.store()+": file is locked by process "+fmt.Sprint(pid)) || !strings.Contains(e.stderr, "--lock-wait") {
				t.Errorf("%s: the message does not name file, holder and remedy: %s", name, e.stderr)
			}
			// Fourteen at once on two cores: the bound of 2 s is for one alone.
			if took > 5*time.Second {
				t.Errorf("%s: took %v", name, took)
			}
		})
	}
	all.Wait()
	began := time.Now()
	if e := s.idem("list"); e.status != exitStore || time.Since(began) > 2*time.Second {
		t.Errorf("alone: %v, %+v", time.Since(began), e)
	}
	began = time.Now()
	if e := s.idem("list", "--lock-wait", "50ms"); e.status != exitStore || time.Since(began) > time.Second {
		t.Errorf("with a short wait: %v, %+v", time.Since(began), e)
	}
	// Who waits long enough gets its turn.
	var patient ended
	all.Go(func() { patient = s.idem("list", "--lock-wait", "30s") })
	time.Sleep(200 * time.Millisecond)
	stop()
	all.Wait()
	if patient.status != 0 || !strings.Contains(patient.stdout, "completed") {
		t.Errorf("with a long wait: %+v", patient)
	}
	if s.lines("ledger.txt") != 0 {
		t.Error("a command ran without its record")
	}
	after, err := os.ReadFile(s.store())
	if err != nil || len(after) < len(before) {
		t.Errorf("the file had %d bytes and has %d: %v", len(before), len(after), err)
	}
}

// A command that holds the file does not hang the service: its error is typed.
func TestCaseC35_CommandHoldsTheFileAndTheServiceStarts(t *testing.T) {
	s := newShell(t)
	s.run("k", "true")
	s.service()
	began := time.Now()
	_, err := bolt.Open(s.store(), nil)
	var locked *bolt.LockError
	if !errors.Is(err, bolt.ErrLocked) || !errors.As(err, &locked) || locked.Path != s.store() {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestCaseC35_MistypedPath(t *testing.T) {
	s := newShell(t)
	for name, args := range everyCommand() {
		if creating(name) {
			continue
		}
		e := s.idem(append([]string{"--store", "typo/idem.db"}, args...)...)
		if e.status != exitStore || e.stdout != "" || !strings.HasPrefix(e.stderr, "idem: there is no store at typo/idem.db; nothing was created\nnext: ") {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "typo")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder was made: %v", err)
	}
}

// What is no store of ours is refused by every command, and not touched.
func TestCaseC35_NotAStore(t *testing.T) {
	s := newShell(t)
	s.run("k", "true")
	sound, err := os.ReadFile(s.store())
	if err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(s.dir, "foreign.db")
	db, err := bbolt.Open(foreign, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("theirs"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(foreign)
	if err != nil {
		t.Fatal(err)
	}
	headless := bytes.Clone(sound)
	clear(headless[:8192])
	for _, c := range []struct {
		name   string
		data   []byte
		status int
		text   string
	}{
		{"empty", nil, exitStore, "not an idem store"},
		{"text", []byte("this is no database\n"), exitStore, "not an idem store"},
		{"zeros", make([]byte, 32768), exitStore, "not an idem store"},
		{"foreign", theirs, exitStore, `not an idem store: its bucket "idem" is missing`},
		{"cut", sound[:12288], exitDamaged, "store file is damaged"},
		{"headless", headless, exitStore, "not an idem store"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(s.dir, c.name+".bin")
			if err := os.WriteFile(file, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			for name, args := range everyCommand() {
				e := s.idem(append([]string{"--store", file}, args...)...)
				if e.status != c.status || e.stdout != "" || !strings.Contains(e.stderr, c.text) || !strings.Contains(e.stderr, file) || strings.Contains(e.stderr, "panic") {
					t.Errorf("%s: %+v", name, e)
				}
				if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, c.data) {
					t.Errorf("%s: the file was touched: %v", name, err)
				}
			}
		})
	}
}

func TestCaseC35_PathIsAFolder(t *testing.T) {
	s := newShell(t)
	for name, args := range everyCommand() {
		e := s.idem(append([]string{"--store", "."}, args...)...)
		if e.status != exitStore || e.stdout != "" || !strings.Contains(e.stderr, "not an idem store") {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// Damage inside of a file is found by check, and is no panic anywhere.
func TestCaseC35_DamagedPages(t *testing.T) {
	s := newShell(t)
	for i := range 20 {
		s.run(fmt.Sprint("k", i), "echo", strings.Repeat("x", 500))
	}
	sound, err := os.ReadFile(s.store())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.dir, "damaged.db")
	found := 0
	for page := 2; page < min(len(sound)/4096, 12); page++ {
		bad := bytes.Clone(sound)
		for i := range 4096 {
			bad[page*4096+i] = 0xA5
		}
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"check"}, {"list"}, {"stats"}, {"export"}, {"get", "--op", "test.op", "--key", "k3"}} {
			e := s.idem(append([]string{"--store", file}, args...)...)
			if strings.Contains(e.stderr, "panic") || strings.Contains(e.stderr, "goroutine") || strings.Contains(e.stderr, "SIG") || e.status > 100 || e.status < 0 {
				t.Errorf("page %d, %s: %+v", page, args[0], e)
			}
			if args[0] == "check" && e.status == exitDamaged {
				found++
			}
		}
	}
	if found == 0 {
		t.Error("check found no damage at all")
	}
}

// A folder that cannot be written to is enough for looking.
func TestCaseC35_ReadOnlyFolder(t *testing.T) {
	s := newShell(t)
	s.run("k", "true")
	folder := filepath.Dir(s.store())
	for path, mode := range map[string]os.FileMode{s.store(): 0o400, folder: 0o500} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(folder, 0o700) })
	for name, args := range everyCommand() {
		switch name {
		case "get", "list", "stats", "doctor", "check", "export":
			if e := s.idem(args...); e.status != 0 {
				t.Errorf("%s: %+v", name, e)
			}
		}
	}
	if os.Geteuid() == 0 {
		t.Skip("root writes everywhere: what cannot be written is not tested")
	}
	for _, name := range []string{"run", "forget", "import"} {
		if e := s.idem(everyCommand()[name]...); e.status != exitStore {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// Two that only look share the file.
func TestCaseC35_TwoReadersAtOnce(t *testing.T) {
	s := newShell(t)
	s.run("k", "true")
	reader, err := bolt.Open(s.store(), &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	// bbolt's own read-only lock, held for as long as the commands look.
	held, err := bbolt.Open(s.store(), 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	var all sync.WaitGroup
	for name, args := range everyCommand() {
		switch name {
		case "get", "list", "stats", "doctor", "check", "export":
			all.Go(func() {
				if e := s.idem(args...); e.status != 0 {
					t.Errorf("%s: %+v", name, e)
				}
			})
		}
	}
	all.Wait()
}

// watch goes on when a service takes the file while it looks.
func TestCaseC35_WatchOutlivesAService(t *testing.T) {
	s := newShell(t)
	s.run("k", "true")
	cmd := s.command("watch", "--interval", "100ms", "--lock-wait", "100ms")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	_, stop := s.service()
	time.Sleep(time.Second)
	stop()
	time.Sleep(500 * time.Millisecond)
	_ = cmd.Process.Signal(os.Interrupt)
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		t.Errorf("it ended with status %d: %s", exit.ExitCode(), stderr.String())
	}
	if !strings.Contains(stderr.String(), "file is locked by process") || strings.Count(stdout.String(), "0 in flight") < 3 {
		t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
	}
}
