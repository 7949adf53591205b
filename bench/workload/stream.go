package workload

import (
	"context"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/goidem/idem/bench/strategy"
)

const (
	// HotKeys is how many keys are hot: the first ones of a run.
	HotKeys = 16
	// Recent is how far back, in operations, a duplicate that is not hot looks for its
	// key: retries come soon, and a store's cache may profit from it.
	Recent = 1 << 16
)

// kind is what an operation of the stream is.
type kind uint8

const (
	fresh    kind = iota
	repeat        // of an earlier key
	conflict      // an earlier key with another payload
	failing       // a new key, whose operation fails
)

// ErrAsked is the failure of operations that were asked to fail.
var ErrAsked = errors.New("workload: this operation was to fail") // lint:const sentinel

// stream is the operations of one round. The operation with number n follows from the
// seed and n alone: not from time, nor from who runs it.
type stream struct {
	spec *Spec
	work distribution
	tag  string // tells the keys of this round from those of others
	seed uint64
	pool []byte // payloads are windows of it
}

func newStream(spec *Spec, round string) (*stream, error) {
	work, err := parseDistribution(spec.Work)
	if err != nil {
		return nil, err
	}
	h := fnv.New32a()
	for _, part := range []string{spec.Name, strconv.FormatUint(spec.Seed, 10), strconv.Itoa(spec.Callers), strconv.FormatFloat(spec.Rate, 'g', -1, 64), round} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	s := &stream{spec: spec, work: work, tag: hex.EncodeToString(h.Sum(nil)), seed: spec.Seed}
	// Rounds differ in their keys, not in what is done to them.
	pool := rand.NewChaCha8([32]byte{})
	s.pool = make([]byte, spec.Payload+4096)
	pool.Read(s.pool)
	return s, nil
}

// draws returns the random numbers of operation n.
func (s *stream) draws(n uint64) rand.PCG {
	var p rand.PCG
	p.Seed(s.seed^0x9e3779b97f4a7c15, n)
	p.Uint64() // neighbours start from neighbouring states
	return p
}

func unit(x uint64) float64 { return float64(x>>11) / (1 << 53) }

// kind says what operation n is.
func (s *stream) kind(n uint64, p *rand.PCG) kind {
	x := unit(p.Uint64())
	switch {
	case n < HotKeys: // there must be something to repeat
		return fresh
	case x < s.spec.Duplicates:
		return repeat
	case x < s.spec.Duplicates+s.spec.Conflicts:
		return conflict
	case x < s.spec.Duplicates+s.spec.Conflicts+s.spec.Failures:
		return failing
	}
	return fresh
}

// key returns the number of the operation whose key n uses: its own, or that of an
// earlier one which is new and does not fail.
func (s *stream) key(n uint64, k kind, p *rand.PCG) uint64 {
	if k != repeat && k != conflict {
		return n
	}
	if s.spec.Hot > 0 && unit(p.Uint64()) < s.spec.Hot {
		return p.Uint64() % HotKeys
	}
	back := min(n, Recent)
	for range 512 {
		m := n - 1 - p.Uint64()%back
		q := s.draws(m)
		if s.kind(m, &q) == fresh {
			return m
		}
	}
	return p.Uint64() % HotKeys
}

// request is one operation, ready to be sent.
type request struct {
	strategy.Op
	of   uint64 // the number of its key
	kind kind
}

// maker makes the requests of one caller.
type maker struct {
	*stream
	caller string
	keys   strings.Builder // the next keys are written here, so that not each is an allocation
	fail   func(context.Context, strategy.Point) error
}

func (s *stream) maker(caller int) *maker {
	return &maker{stream: s, caller: "caller-" + strconv.Itoa(caller), fail: func(_ context.Context, at strategy.Point) error {
		if at == strategy.AfterReserve {
			return ErrAsked
		}
		return nil
	}}
}

const (
	keyLen  = 16 + 1 + 8
	keySlab = 16 * keyLen
)

// make fills in request number n.
func (m *maker) make(n uint64, r *request) {
	p := m.draws(n)
	r.kind = m.kind(n, &p)
	r.of = m.stream.key(n, r.kind, &p)
	if m.keys.Cap()-m.keys.Len() < keyLen {
		m.keys = strings.Builder{}
		m.keys.Grow(keySlab)
	}
	from := m.keys.Len()
	var digits [16]byte
	putHex(&digits, scramble(r.of))
	m.keys.Write(digits[:])
	m.keys.WriteByte('-')
	m.keys.WriteString(m.tag)
	r.Key = m.keys.String()[from:]
	r.Pause = nil
	r.Caller, r.Result = m.caller, m.spec.Result
	if m.spec.Payload > 0 {
		at := scramble(r.of) % 2048
		if r.kind == conflict {
			at += 2048
		}
		r.Payload = m.pool[at : at+uint64(m.spec.Payload)]
	}
	if m.work != nil {
		r.Work = m.work(unit(p.Uint64()))
	}
	if r.kind == failing {
		r.Pause = m.fail
	}
}

// scramble is a bijection, so that keys come in no order, as UUIDs do: a tree that is
// filled from one end would flatter the store. unscramble is its inverse.
func scramble(x uint64) uint64 {
	x *= odd
	x ^= x >> 32
	return x * odd
}

func unscramble(x uint64) uint64 {
	x *= inverse
	x ^= x >> 32
	return x * inverse
}

const (
	odd     = 0xd1342543de82ef95
	inverse = 0x572b5ee77a54e3bd // odd * inverse = 1 modulo 2^64
)

func putHex(to *[16]byte, x uint64) {
	const digits = "0123456789abcdef"
	for i := 15; i > 0; i -= 2 {
		to[i], to[i-1] = digits[x&15], digits[x>>4&15]
		x >>= 8
	}
}

// number reads a key back: the number of its operation and the tag of its round.
func number(key string) (n uint64, tag string, ok bool) {
	if len(key) != keyLen || key[16] != '-' {
		return 0, "", false
	}
	var x uint64
	for i := range 16 {
		c := key[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		default:
			return 0, "", false
		}
		x = x<<4 | uint64(c)
	}
	return unscramble(x), key[17:], true
}

// due is when operation n is to start in an open loop, from the start of the round.
func (s *stream) due(n uint64) time.Duration {
	return time.Duration(float64(n) / s.spec.Rate * float64(time.Second))
}
