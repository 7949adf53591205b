package bolt

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// childHold keeps the store open until its standard input ends.
func childHold() error {
	db, err := Open(os.Getenv("IDEM_FILE"), nil)
	if err != nil {
		return err
	}
	fmt.Println("open")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return db.Close()
}

// holder starts a process that has the file open.
func holder(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	cmd := child(t, "hold", "IDEM_FILE="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the holder: %v: %s", err, stderrOf(cmd))
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("the holder did not start: %q, %v", line, err)
	}
	return cmd
}

// Whoever meets a file that somebody else has open gets an error soon, and the
// error says who.
func TestCaseC35_LockedFileIsRefusedSoonAndByName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	cmd := holder(t, path)
	for _, o := range []*Options{nil, {PerCall: true}, {ReadOnly: true}} {
		start := time.Now()
		_, err := Open(path, o)
		took := time.Since(start)
		var locked *LockError
		if !errors.Is(err, ErrLocked) || !errors.As(err, &locked) {
			t.Fatalf("%+v: %v; want a LockError", o, err)
		}
		if took > 2*time.Second {
			t.Errorf("%+v: refused after %v; want two seconds at most", o, took)
		}
		if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "locked") {
			t.Errorf("%q does not name the file and the lock", err)
		}
		if runtime.GOOS == "linux" && (locked.PID != cmd.Process.Pid || !strings.Contains(locked.Command, "TestChild")) {
			t.Errorf("the error names process %d (%s); the holder is %d", locked.PID, locked.Command, cmd.Process.Pid)
		}
	}
	// A move in per-call mode waits longer, for as long as it was told to.
	start := time.Now()
	p := &perCall{path: path, now: (&Options{Now: systemClock}).clock(), o: (&Options{PerCall: true, LockWait: 300 * time.Millisecond}).withDefaults()}
	if _, err := p.Get(t.Context(), id("k")); !errors.Is(err, ErrLocked) || time.Since(start) < 250*time.Millisecond {
		t.Errorf("Get: %v after %v; want a LockError after 300ms", err, time.Since(start))
	}
	// And not beyond its context.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Get(ctx, id("k")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get: %v; want the end of its context", err)
	}
}

// The other way round: a short-lived command has the file, and the service gets a
// typed error instead of hanging, or the file as soon as the command is done.
func TestCaseC35_ServiceStartsBesideCommand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	command := openAt(t, path, &Options{PerCall: true})
	run(t, command, "k1", []byte("by a command"))
	service := openAt(t, path, nil)
	if got := replay(t, service, "k1"); string(got.Body) != "by a command" {
		t.Errorf("the service reads %q", got.Body)
	}
	run(t, service, "k2", []byte("by the service"))
	if err := service.Close(); err != nil {
		t.Fatal(err)
	}
	if got := replay(t, command, "k2"); string(got.Body) != "by the service" {
		t.Errorf("the command reads %q", got.Body)
	}

	// Two handles in one process are no better than two processes.
	one := openAt(t, path, nil)
	_, err := Open(path, &Options{OpenTimeout: 50 * time.Millisecond})
	var locked *LockError
	if !errors.As(err, &locked) {
		t.Fatalf("a second handle: %v; want a LockError", err)
	}
	if runtime.GOOS == "linux" && locked.PID != os.Getpid() {
		t.Errorf("the error names process %d; the holder is this one, %d", locked.PID, os.Getpid())
	}
	_ = one
}

// Readers share the file, and create none.
func TestCaseC35_ReadersShareAndCreateNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store.idem")
	if _, err := Open(path, &Options{ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("reading a file that is not there: %v", err)
	}
	command := openAt(t, path, &Options{PerCall: true})
	if _, err := command.Get(t.Context(), id("k")); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("Get before the first reserve: %v", err)
	}
	if len(all(t, command, backend.Filter{})) != 0 {
		t.Error("an empty store lists records")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Fatalf("reading created %v", entries)
	}
	run(t, command, "k1", []byte("x"))

	// A reader in the middle of its step, and another beside it.
	inside := make(chan struct{})
	leave := make(chan struct{})
	reader := openAt(t, path, &Options{ReadOnly: true})
	p := reader.engine.(*perCall)
	result := make(chan error, 1)
	go func() {
		result <- p.read(context.Background(), func(*rows) error {
			close(inside)
			<-leave
			return nil
		})
	}()
	<-inside
	if got := replay(t, reader, "k1"); string(got.Body) != "x" {
		t.Errorf("a second reader sees %q", got.Body)
	}
	close(leave)
	if err := <-result; err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"Reserve": func() error { _, err := reader.Reserve(t.Context(), reserving("k2")); return err }(),
		"Release": reader.Release(t.Context(), reserving("k1").Ref),
		"Expire":  func() error { _, err := reader.Expire(t.Context(), backend.ExpireRequest{}); return err }(),
	} {
		if name != "Expire" && !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s on a read-only store: %v; want ErrReadOnly", name, err)
		}
	}
}

// What is not a store is refused by name, soon, untouched, and without a panic.
func TestCaseC35_NotAStore(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign := filepath.Join(dir, "foreign.db")
	other, err := bbolt.Open(foreign, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("theirs"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"a folder":             dir,
		"an empty file":        write("empty", nil),
		"a short text":         write("short", []byte("hello\n")),
		"a long text":          write("long", bytes.Repeat([]byte("hello\n"), 10_000)),
		"zeros":                write("zeros", make([]byte, 64<<10)),
		"somebody else's file": foreign,
	} {
		before, _ := os.ReadFile(path)
		for _, o := range []*Options{nil, {PerCall: true}, {ReadOnly: true}} {
			start := time.Now()
			_, err := Open(path, o)
			if !errors.Is(err, ErrNotStore) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s, %+v: %v; want ErrNotStore with the path", name, o, err)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("%s, %+v: refused after %v", name, o, took)
			}
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
			t.Errorf("%s was changed by being opened", name)
		}
	}
	missing := filepath.Join(dir, "no", "such", "folder.idem")
	if _, err := Open(missing, nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("in a folder that is not there: %v", err)
	}
	if leftovers, _ := filepath.Glob(filepath.Join(dir, ".*")); len(leftovers) != 0 {
		t.Errorf("left behind: %v", leftovers)
	}
}

// A file that is there is never replaced by a new one, also when two create it at
// once.
func TestNewFileIsCreatedOnce(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store.idem")
	commands := make([]*DB, 8)
	for i := range commands {
		commands[i] = openAt(t, path, &Options{PerCall: true})
	}
	together(len(commands), func(i int) { run(t, commands[i], fmt.Sprint("key-", i), nil) })
	if found := all(t, commands[0], backend.Filter{}); len(found) != len(commands) {
		t.Errorf("%d records; want %d: a file was replaced", len(found), len(commands))
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v; want 0600", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
}

// childPerCall makes a few executions, one of a key that all processes share.
func childPerCall() error {
	db, err := Open(os.Getenv("IDEM_FILE"), &Options{PerCall: true, LockWait: time.Minute})
	if err != nil {
		return err
	}
	ctx := context.Background()
	for i := range 5 {
		for _, key := range []string{fmt.Sprint("shared-", i), fmt.Sprint(os.Getpid(), "-", i)} {
			r := reserving(key)
			res, err := db.Reserve(ctx, r)
			if err != nil {
				return err
			}
			if res.Outcome != backend.Acquired {
				continue
			}
			fmt.Println(key) // the effect
			if _, err := db.Complete(ctx, completeWith(r.Ref, []byte(key))); err != nil {
				return err
			}
		}
	}
	return db.Close()
}

// Twenty commands at once on one file all get through, and a key that they share
// runs once.
func TestPerCallTwentyProcesses(t *testing.T) {
	const processes = 20
	path := filepath.Join(t.TempDir(), "store.idem")
	cmds := make([]*exec.Cmd, processes)
	outs := make([]bytes.Buffer, processes)
	for i := range cmds {
		cmds[i] = child(t, "percall", "IDEM_FILE="+path)
		cmds[i].Stdout = &outs[i]
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	effects := map[string]int{}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("process %d: %v: %s", i, err, stderrOf(cmd))
		}
		for _, key := range strings.Fields(outs[i].String()) {
			effects[key]++
		}
	}
	if len(effects) != 5*processes+5 {
		t.Errorf("%d keys ran; want %d", len(effects), 5*processes+5)
	}
	for key, n := range effects {
		if n != 1 {
			t.Errorf("%s ran %d times", key, n)
		}
	}
	db := openAt(t, path, nil)
	if found := all(t, db, backend.Filter{State: backend.Completed}); len(found) != len(effects) {
		t.Errorf("%d records are completed; want %d", len(found), len(effects))
	}
}
