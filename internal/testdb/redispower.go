package testdb

import (
	_ "embed"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/goidem/idem/internal/throwaway"
)

// powerCut is a small library that notes what a process has synced.
//
//go:embed testdata/powercut.c
var powerCut []byte // lint:const embedded

// StartRedisWithPower is [StartRedis] for a server whose power the test cuts: the function kills it and
// takes from its append-only files what it had not synced, which a mere kill leaves with the kernel.
// Restart starts it on what is left. It needs Linux and a C compiler, and skips the test without them.
func StartRedisWithPower(tb testing.TB, args ...string) (*RedisServer, func()) {
	tb.Helper()
	need(tb, "redis", throwaway.RedisInstalled())
	lib := preload(tb, "powercut", powerCut)
	notes := filepath.Join(tb.TempDir(), "synced")
	r := startPreloaded(tb, args, "LD_PRELOAD="+lib, "POWERCUT_FILE="+notes)
	return r, func() {
		tb.Helper()
		r.Kill(tb)
		text, err := os.ReadFile(notes)
		if err != nil {
			tb.Fatalf("testdb: nothing is known of what the server has synced: %v", err)
		}
		synced := make(map[uint64]int64) // by inode
		for ; len(text) >= 16; text = text[16:] {
			synced[binary.NativeEndian.Uint64(text)] = int64(binary.NativeEndian.Uint64(text[8:]))
		}
		err = filepath.WalkDir(r.Dir(), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".aof" {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if stat, ok := info.Sys().(*syscall.Stat_t); ok && synced[stat.Ino] < info.Size() {
				return os.Truncate(path, synced[stat.Ino])
			}
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}
