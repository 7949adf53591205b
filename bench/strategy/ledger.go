package strategy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
)

// MemoryLedger is a ledger that dies with its process, for workloads, where the cost
// of an effect must not hide that of the strategy.
type MemoryLedger struct {
	shards [64]memoryShard
}

type memoryShard struct {
	mu     sync.Mutex
	counts map[string]int
	_      [40]byte // neighbours do not share a cache line
}

// NewMemoryLedger returns an empty ledger.
func NewMemoryLedger() *MemoryLedger {
	l := new(MemoryLedger)
	for i := range l.shards {
		l.shards[i].counts = make(map[string]int)
	}
	return l
}

// Apply implements Ledger.
func (l *MemoryLedger) Apply(_ context.Context, key, _ string) error {
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[key]++
	return nil
}

// Counts implements Ledger.
func (l *MemoryLedger) Counts(context.Context) (map[string]int, error) {
	all := make(map[string]int)
	for i := range l.shards {
		s := &l.shards[i]
		s.mu.Lock()
		maps.Copy(all, s.counts)
		s.mu.Unlock()
	}
	return all, nil
}

// shard picks by FNV-1a.
func (l *MemoryLedger) shard(key string) *memoryShard {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return &l.shards[h%uint32(len(l.shards))]
}

// FileLedger is a file with a line for each effect. Any number of processes may append
// to it at once: each line is one write to a file opened with O_APPEND, which no
// other can split, and which a killed process has made whole or not at all.
type FileLedger struct {
	f     *os.File
	fsync bool
}

// OpenFileLedger opens a ledger, or makes it. With fsync an effect outlives a power
// cut too; without it, it outlives the process.
func OpenFileLedger(path string, fsync bool) (*FileLedger, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("bench: open the ledger: %w", err)
	}
	return &FileLedger{f, fsync}, nil
}

// Apply implements Ledger.
func (l *FileLedger) Apply(_ context.Context, key, caller string) error {
	line := strconv.AppendQuote(make([]byte, 0, len(key)+len(caller)+8), key)
	line = strconv.AppendQuote(append(line, ' '), caller)
	if _, err := l.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("bench: write to the ledger: %w", err)
	}
	if l.fsync {
		if err := l.f.Sync(); err != nil {
			return fmt.Errorf("bench: sync the ledger: %w", err)
		}
	}
	return nil
}

// Counts implements Ledger. It reads the whole file, with the lines of other
// processes. A last line without an end is an effect that was not applied: its
// Apply never returned.
func (l *FileLedger) Counts(context.Context) (map[string]int, error) {
	all := make(map[string]int)
	size, err := l.f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("bench: read the ledger: %w", err)
	}
	r := bufio.NewReader(io.NewSectionReader(l.f, 0, size))
	for n := 1; ; n++ {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("bench: read the ledger: %w", err)
		}
		quoted, err := strconv.QuotedPrefix(line)
		if err != nil || !strings.HasPrefix(line[len(quoted):], " ") {
			return nil, fmt.Errorf("bench: line %d of the ledger is no effect", n)
		}
		key, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("bench: line %d of the ledger: %w", n, err)
		}
		all[key]++
	}
}

// Close closes the file.
func (l *FileLedger) Close() error { return l.f.Close() }
