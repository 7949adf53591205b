package bolt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// At whatever moment of a compaction Close comes: the attempts that it has
// written are in the file that stays.
func TestR14_CloseBesideCompactKeepsLiveAttempts(t *testing.T) {
	for i := 0; i < 10; i += 2 {
		path := filepath.Join(t.TempDir(), "store.idem")
		db, err := Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		together(64, func(i int) { run(t, db, string(rune('a'+i)), make([]byte, 100_000)) })
		acquire(t, db, reserving("live"))
		compacted := make(chan error, 1)
		go func() { compacted <- db.Compact(context.Background()) }()
		time.Sleep(time.Duration(i) * time.Millisecond)
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-compacted; err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("Compact: %v; want nil or ErrClosed", err)
		}
		again := openAt(t, path, nil)
		if res, err := again.Reserve(t.Context(), reserving("live")); err != nil || res.Outcome != backend.Existing {
			t.Fatalf("after %d ms: %v, %v; want existing: the attempt is alive", i, res.Outcome, err)
		}
		replay(t, again, "a")
	}
}

func TestR01_CompactThroughASymlinkKeepsOneStore(t *testing.T) {
	for name, o := range map[string]*Options{"exclusive": nil, "per call": {PerCall: true}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
			if err := os.Symlink(path, link); err != nil {
				t.Skip(err)
			}
			first, err := Open(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			db := openAt(t, link, o)
			if err := db.Compact(t.Context()); err != nil {
				t.Fatal(err)
			}
			run(t, db, "k", []byte("1"))
			if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
				t.Errorf("the link is a link no more: %v, %v", info, err)
			}
			if o == nil {
				if second, err := Open(path, &Options{OpenTimeout: 10 * time.Millisecond}); !errors.Is(err, ErrLocked) {
					t.Errorf("Open under the other name: %v; want ErrLocked", err)
					_ = second.Close()
				}
				return
			}
			replay(t, openAt(t, path, nil), "k")
		})
	}
}

// With a second name, the copy would take the place of one of the two only.
func TestR01_CompactRefusesAFileWithTwoNames(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "store.idem"), filepath.Join(dir, "other")
	db := openAt(t, path, nil)
	run(t, db, "k", nil)
	if err := os.Link(path, other); err != nil {
		t.Skip(err)
	}
	if err := db.Compact(t.Context()); err == nil {
		t.Error("Compact has given a file with two names a copy under one of them")
	}
	run(t, db, "k2", nil)
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := db.Compact(t.Context()); err != nil {
		t.Errorf("Compact of the file with one name: %v", err)
	}
}

// Somebody has put another file in the place of the open one: that is not the
// store's to replace.
func TestR01_CompactRefusesWhenTheNameMeansAnotherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	db := openAt(t, path, nil)
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := db.Compact(t.Context()); err == nil {
		t.Error("Compact has put a file where there was none")
	}
	if err := os.WriteFile(path, []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := db.Compact(t.Context()); err == nil {
		t.Error("Compact has replaced somebody else's file")
	}
	if err := os.Rename(path+".moved", path); err != nil {
		t.Fatal(err)
	}
}

func TestCompactKeepsModeAndOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	db := openAt(t, path, &Options{PerCall: true})
	run(t, db, "k", nil)
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	chowned := os.Chown(path, 1234, 1235) == nil // root alone may
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if os.SameFile(before, after) {
		t.Error("the file was not rewritten")
	}
	if after.Mode() != before.Mode() {
		t.Errorf("mode %v after Compact; want %v", after.Mode(), before.Mode())
	}
	if uid, gid := ownerOf(after); chowned && (uid != 1234 || gid != 1235) {
		t.Errorf("owner %d:%d after Compact; want 1234:1235", uid, gid)
	}
}

// A folder that can be written and not read cannot be synced: found out before
// anything is changed.
func TestR25_FolderThatCannotBeSynced(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads every folder")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "store.idem")
	db := openAt(t, path, nil)
	if err := os.Chmod(dir, 0o300); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
	if err := db.Compact(t.Context()); err == nil {
		t.Error("Compact: nil; it cannot know whether the new name is on disk")
	}
	r := reserving("k")
	r.Durable = true
	acquire(t, db, r)
	if _, err := Open(filepath.Join(dir, "new"), nil); err == nil {
		t.Error("Open of a new store: nil; it cannot know whether its name is on disk")
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("Open has failed and left a file")
	}
}

// The name of the new file may not be on disk: what is written from now on could
// be gone after a crash of the machine, so nothing is.
func TestR25_CompactPoisonsWhenItsNameMayNotBeOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.idem")
	db, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	run(t, db, "k", []byte("1"))
	broken := errors.New("sync of the folder failed")
	syncs := 0
	db.excl.syncDir = func(f *os.File) error {
		if syncs++; syncs > 1 {
			return broken
		}
		return syncFolder(f)
	}
	if err := db.Compact(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Compact: %v; want the error of the sync", err)
	}
	if _, err := db.Reserve(t.Context(), reserving("k2")); !errors.Is(err, ErrPoisoned) {
		t.Errorf("Reserve: %v; want ErrPoisoned", err)
	}
	if err := db.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	replay(t, openAt(t, path, nil), "k")
}

// Whoever opens the file alone clears away what killed processes have left of
// it, and nothing else.
func TestOpenRemovesLeftovers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "store.idem")
	first, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	gone := []string{".store.idem.ABCDEFGH.compact", ".store.idem.AAAA2222.new", ".store.idem.SAMEFILE.new"}
	kept := []string{
		".store.idem.abcdefgh.compact",          // not our letters
		".store.idem.ABCDEFGHI.compact",         // not our length
		".store.idem.ABCDEFGH.ABCDEFGH.compact", // of store.idem.ABCDEFGH
		".other.ABCDEFGH.compact",
		"store.idem.ABCDEFGH.compact",
		".store.idem.ABCDEFGH.bak",
	}
	for _, name := range append(append([]string{}, gone[:2]...), kept...) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("left over"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Killed between giving the new file its name and removing the first one.
	if err := os.Link(path, filepath.Join(dir, gone[2])); err != nil {
		t.Skip(err)
	}
	// One that somebody is using, and a folder.
	busy := filepath.Join(dir, ".store.idem.BUSYBUSY.new")
	user, err := os.Create(busy)
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	if ok, err := tryLock(user, true); !ok || err != nil {
		t.Fatal(ok, err)
	}
	folder := filepath.Join(dir, ".store.idem.FOLDERAA.compact")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	kept = append(kept, filepath.Base(busy), filepath.Base(folder))

	db := openAt(t, path, nil)
	for _, name := range gone {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range kept {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s was removed: %v", name, err)
		}
	}
	if err := db.Compact(t.Context()); err != nil {
		t.Errorf("Compact: %v", err)
	}
}
