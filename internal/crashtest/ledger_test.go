package crashtest

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// ledger is an append-only file outside every store, synced line by line: what it
// holds has happened, whatever became of the process. It has no unique constraint,
// which would hide a second effect.
type ledger struct {
	mu sync.Mutex
	f  *os.File
}

func openLedger(path string) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return &ledger{f: f}, err
}

// add appends one line and returns once it is on disk.
func (l *ledger) add(line string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.f.WriteString(line + "\n"); err != nil {
		return err
	}
	return l.f.Sync()
}

func (l *ledger) close() error { return l.f.Close() }

// counts reads a ledger back: how often each complete line is there. A last line
// without its end was never acknowledged.
func counts(path string) (map[string]int, error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return map[string]int{}, nil
	}
	if err != nil {
		return nil, err
	}
	seen := make(map[string]int)
	for line := range strings.Lines(string(data)) {
		if line, whole := strings.CutSuffix(line, "\n"); whole {
			if line == "" {
				return nil, fmt.Errorf("empty line in %s", path)
			}
			seen[line]++
		}
	}
	return seen, nil
}
