package workload

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/goidem/idem/bench/strategy"
)

// Ledger is a ledger in memory that costs next to nothing: one for each Runner, as its
// Env.Effects. It counts the keys of workloads in arrays, and others in a map.
type Ledger struct {
	last  atomic.Pointer[book] // where the running round writes
	mu    sync.Mutex
	books map[string]*book
	other map[string]int
}

var _ strategy.Ledger = (*Ledger)(nil)

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{books: make(map[string]*book), other: make(map[string]int)}
}

// book has a counter for each operation of one round.
type book struct {
	tag    string
	mu     sync.Mutex
	chunks atomic.Pointer[[]*chunk]
}

const chunkLen = 1 << 14

type chunk [chunkLen]atomic.Uint32

// farthest bounds what a key out of nowhere may allocate.
const farthest = 1 << 32

// Apply implements strategy.Ledger.
func (l *Ledger) Apply(_ context.Context, key, _ string) error {
	n, tag, ok := number(key)
	if !ok || n >= farthest {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.other[key]++
		return nil
	}
	b := l.last.Load()
	if b == nil || b.tag != tag {
		b = l.book(tag)
	}
	b.counter(n).Add(1)
	return nil
}

func (l *Ledger) book(tag string) *book {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.books[tag]
	if b == nil {
		b = &book{tag: tag}
		b.chunks.Store(new([]*chunk))
		l.books[tag] = b
	}
	l.last.Store(b)
	return b
}

func (b *book) counter(n uint64) *atomic.Uint32 {
	at := int(n / chunkLen)
	chunks := *b.chunks.Load()
	if at >= len(chunks) || chunks[at] == nil {
		chunks = b.grow(at)
	}
	return &chunks[at][n%chunkLen]
}

func (b *book) grow(at int) []*chunk {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := *b.chunks.Load()
	chunks := make([]*chunk, max(len(old), at+1))
	copy(chunks, old)
	if chunks[at] == nil {
		chunks[at] = new(chunk)
	}
	b.chunks.Store(&chunks)
	return chunks
}

// each calls f for every operation of the book that took effect.
func (b *book) each(f func(n uint64, times int)) {
	for at, c := range *b.chunks.Load() {
		if c == nil {
			continue
		}
		for i := range c {
			if times := c[i].Load(); times > 0 {
				f(uint64(at)*chunkLen+uint64(i), int(times))
			}
		}
	}
}

// Counts implements strategy.Ledger.
func (l *Ledger) Counts(context.Context) (map[string]int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := make(map[string]int)
	for key, times := range l.other {
		counts[key] = times
	}
	var digits [16]byte
	for tag, b := range l.books {
		b.each(func(n uint64, times int) {
			putHex(&digits, scramble(n))
			counts[string(digits[:])+"-"+tag] = times
		})
	}
	return counts, nil
}

// effects calls f with how often each operation of a round took effect, by number.
func effects(ctx context.Context, l strategy.Ledger, tag string, f func(n uint64, times int)) error {
	if own, ok := l.(*Ledger); ok {
		own.book(tag).each(f)
		return nil
	}
	counts, err := l.Counts(ctx)
	if err != nil {
		return err
	}
	for key, times := range counts {
		if n, t, ok := number(key); ok && t == tag {
			f(n, times)
		}
	}
	return nil
}
