package expiry

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goidem/idem/backend"
)

// reference decides as the documentation says it, from nothing but the texts: all
// rules that match, sorted, the first one.
func reference(rules []Rule, tenant, op string) (time.Duration, bool) {
	type rank [4]int // smaller is more specific
	var best *rank
	var dedup time.Duration
	for _, r := range rules {
		if !simple(r.Operation, op) || r.Tenant != "" && r.Tenant != tenant {
			continue
		}
		var k rank
		if r.Tenant == "" {
			k[0] = 1
		}
		stars := strings.Count(r.Operation, "*")
		switch {
		case stars == 0:
		case r.Operation == "*":
			k[1] = 3
		case stars == 1 && strings.HasSuffix(r.Operation, "*"):
			k[1] = 1
		default:
			k[1] = 2
		}
		k[2], k[3] = -(len(r.Operation) - stars), stars
		if best == nil || slices.Compare(k[:], best[:]) < 0 {
			best, dedup = &k, r.Dedup
		}
	}
	return dedup, best != nil
}

// simple matches by trying every length for a star.
func simple(pattern, op string) bool {
	switch {
	case pattern == "":
		return op == ""
	case pattern[0] == '*':
		return simple(pattern[1:], op) || op != "" && simple(pattern, op[1:])
	}
	return op != "" && op[0] == pattern[0] && simple(pattern[1:], op[1:])
}

// word makes texts of three letters, so that rules overlap.
func word(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "ab."[r.IntN(3)]
	}
	return string(b)
}

func randomPattern(r *rand.Rand) string {
	switch r.IntN(6) {
	case 0, 1:
		return word(r, 1+r.IntN(5))
	case 2, 3:
		return word(r, r.IntN(5)) + "*"
	case 4:
		return word(r, r.IntN(3)) + "*" + word(r, 1+r.IntN(3))
	}
	return word(r, r.IntN(3)) + "*" + word(r, 1+r.IntN(2)) + "*" + word(r, r.IntN(3))
}

// The lookup agrees with the reference, and the order of the rules does not matter.
func TestLookupAgreesWithReference(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 1))
	built, refused, decided := 0, 0, 0
	for range 150 {
		var rules []Rule
		for i := range 1 + r.IntN(25) {
			one := Rule{Operation: randomPattern(r), Dedup: time.Duration(i+1) * time.Hour}
			if r.IntN(3) == 0 {
				one.Tenant = word(r, 1)
			}
			// Those that collide are left out, so that many policies can be built.
			if _, err := New(append(slices.Clone(rules), one)...); err != nil {
				refused++
				continue
			}
			rules = append(rules, one)
		}
		built++
		shuffled := slices.Clone(rules)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		p, q := mustNew(t, rules...), mustNew(t, shuffled...)
		for range 60 {
			tenant, op := "", word(r, 1+r.IntN(7))
			if r.IntN(2) == 0 {
				tenant = word(r, 1)
			}
			id := backend.ID{Tenant: tenant, Operation: op}
			want, any := reference(rules, tenant, op)
			if !any {
				want = DefaultDedup
			} else {
				decided++
			}
			explained, why := p.Explain(id, backend.Completed)
			a, b := p.For(id, backend.Completed).Dedup, q.For(id, backend.Completed).Dedup
			if a != want || b != want || explained.Dedup != want {
				t.Fatalf("seed %d: %q %q: %v, shuffled %v, explained %v, want %v\n%v\n%s", seed, tenant, op, a, b, explained.Dedup, want, rules, why)
			}
		}
	}
	if built == 0 || refused == 0 || decided < 1000 {
		t.Errorf("seed %d: %d built, %d collisions, %d decided: the test tested little", seed, built, refused, decided)
	}
}

// A collision is refused whatever the order of the rules, and never without reason:
// some operation matches both rules, or they are the same.
func TestCollisionsDoNotDependOnTheOrder(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 2))
	collisions := 0
	for range 5000 {
		a, b := Rule{Operation: randomPattern(r)}, Rule{Operation: randomPattern(r)}
		_, one := New(a, b)
		_, two := New(b, a)
		if (one == nil) != (two == nil) {
			t.Fatalf("seed %d: %s and %s: %v, and the other way round %v", seed, a.Operation, b.Operation, one, two)
		}
		if one == nil {
			continue
		}
		collisions++
		p, q := parsePattern(a.Operation), parsePattern(b.Operation)
		witness := a.Operation
		if p.kind == glob {
			longest := func(x, y string) string {
				return slices.MaxFunc([]string{x, y}, func(x, y string) int { return cmp.Compare(len(x), len(y)) })
			}
			witness = longest(p.first, q.first) + strings.Join(append(slices.Clone(p.middle), q.middle...), "") + longest(p.last, q.last)
		}
		if !p.matches(witness) || !q.matches(witness) {
			t.Fatalf("seed %d: %s and %s are refused, and %q does not match both", seed, a.Operation, b.Operation, witness)
		}
	}
	if collisions == 0 {
		t.Error("no collision")
	}
}

func manyRules(n int) (rules []Rule, ids []backend.ID) {
	kinds := []string{"svc%d.charge", "svc%d.*", "*.step%d", "pre%d*end"}
	for i := range n {
		text := fmt.Sprintf(kinds[i%len(kinds)], i)
		r := Rule{Operation: text, Dedup: day}
		if i%5 == 4 {
			r.Tenant = fmt.Sprintf("tenant%d", i%20)
		}
		rules = append(rules, r)
		ids = append(ids, backend.ID{Tenant: r.Tenant, Operation: strings.ReplaceAll(text, "*", "x"), Key: "k"})
	}
	return rules, ids
}

func TestLookupAllocatesNothing(t *testing.T) {
	rules, ids := manyRules(1000)
	p := mustNew(t, rules...)
	id := backend.ID{Tenant: "tenant9", Operation: "nothing.of.all.that"}
	uuid := backend.ID{Operation: "o", Key: "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"}
	late := mustNew(t, Rule{Operation: "o", Issued: ByUUIDv7, Was: []Past{{Dedup: time.Hour}}})
	now := time.Unix(1e9, 0)
	if n := testing.AllocsPerRun(100, func() {
		for i := range ids {
			p.For(ids[i], backend.Completed)
		}
		p.For(id, backend.Failed)
		p.NeedsIssueTime(id)
		_, _ = late.Lateness(uuid, time.Time{}, now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkFor(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rules, ids := manyRules(n)
			p := mustNew(b, rules...)
			ids = ids[:10]
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if p.For(ids[i%len(ids)], backend.Completed).Dedup != day {
					b.Fatal("no rule decided")
				}
			}
		})
	}
}

func BenchmarkForSpread(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rules, ids := manyRules(n)
			p := mustNew(b, rules...)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if p.For(ids[i%len(ids)], backend.Completed).Dedup != day {
					b.Fatal("no rule decided")
				}
			}
		})
	}
}
