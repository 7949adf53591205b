package experiment

import (
	"slices"
	"strings"

	"github.com/goidem/idem/bench/strategy"
)

// What a strategy can owe under a fault.
const (
	Once        = "once"
	AtMostOnce  = "at most once"
	AtLeastOnce = "at least once"
	None        = "none"
)

// The verdicts.
const (
	Kept       = "kept"
	Broken     = "broken"
	HarmShown  = "harm shown"   // nothing was promised, and harm was seen
	DidNotBite = "did not bite" // nothing was promised and no harm was seen, or the fault never happened
)

// owed is one row of the table of promises: what strategies owe under faults, and
// why. The first row that matches counts.
type owed struct {
	faults  []string        // empty: all of them
	names   []string        // of strategies; empty: all of them
	family  strategy.Family // empty: all of them
	mortal  bool            // only strategies whose memory dies with the process
	promise string
	why     string
}

// The faults, under their names in reports.
const (
	faultStorm         = "duplicate storm"
	faultAfterReserve  = "worker killed after reserve"
	faultAfterEffect   = "worker killed after the effect"
	faultAfterComplete = "worker killed after complete"
	faultServer        = "server killed and restarted"
	faultCut           = "connection cut at commit"
	faultVolatile      = "redis killed, nothing on its disk"
	faultFlushed       = "redis flushed"
	faultFailover      = "redis failed over to a cut-off replica"
	faultEvicting      = "redis evicting"
	faultSlow          = "operation slower than the lease"
	faultClock         = "clock stepped"
	faultExpired       = "retry after expiry"
)

// promises is the table.
func promises() []owed {
	killed := []string{faultAfterReserve, faultAfterEffect, faultAfterComplete}
	return []owed{
		// What no store can be blamed for.
		{names: []string{"none"}, promise: None,
			why: "it decides nothing"},
		{faults: []string{faultExpired}, names: []string{"pg-unique", "pg-check", "bolt-check"}, promise: Once,
			why: "it never forgets, and grows for ever"},
		{faults: []string{faultExpired}, names: []string{"lru-window"}, promise: AtMostOnce,
			why: "it forgets by number and not by age"},
		{faults: []string{faultExpired}, promise: None,
			why: "a key that is forgotten is a new key; idem refuses it only where keys carry their time of issue"},
		{faults: []string{faultVolatile, faultFlushed, faultFailover, faultEvicting}, promise: None,
			why: "the server forgets what it had acknowledged"},
		{faults: killed, mortal: true, promise: None,
			why: "what it knows dies with the process"},

		// One commit for record and effect.
		{family: strategy.Transactional, promise: Once,
			why: "record and effect are one commit, or none"},

		// Record and effect are two writes.
		{faults: []string{faultAfterEffect, faultServer}, family: strategy.Lease, promise: AtLeastOnce,
			why: "the effect is outside the store: whoever dies between the two, or cannot record in time, leaves it to be done again"},
		{faults: []string{faultClock}, family: strategy.Lease, promise: AtLeastOnce,
			why: "a clock that jumps over a lease ends it, and the next caller may begin"},
		{family: strategy.Lease, promise: Once,
			why: "while its process lives it renews, and who finds no record finds the lease"},

		// A claim, without a completion.
		{family: strategy.Window, promise: AtMostOnce,
			why: "the claim comes first and is final: what dies after it is dropped"},

		// What people write first.
		{faults: []string{faultAfterReserve}, names: []string{"bolt-check", "pg-check"}, promise: AtLeastOnce,
			why: "nothing was done or noted yet: a retry does it"},
		{faults: []string{faultAfterComplete}, names: []string{"bolt-check", "pg-check"}, promise: Once,
			why: "the key is noted, and a retry one by one finds it"},
		{faults: []string{faultStorm}, names: []string{"redis-lock"}, promise: AtMostOnce,
			why: "the claim comes first, for as long as its lifetime"},
		{family: strategy.Naive, promise: None,
			why: "between looking, acting and noting there is room for another"},
		{promise: None, why: "it is not known to promise anything"},
	}
}

// promise returns what a strategy owes under a fault.
func promise(info strategy.Info, fault string) owed {
	mortal := strings.HasPrefix(info.Survives, "nothing")
	for _, o := range promises() {
		if (len(o.faults) == 0 || slices.Contains(o.faults, fault)) &&
			(len(o.names) == 0 || slices.Contains(o.names, info.Name)) &&
			(o.family == "" || o.family == info.Family) &&
			(!o.mortal || mortal) {
			return o
		}
	}
	panic("experiment: the table of promises has no last row")
}

// verdict judges what was seen.
func verdict(promise string, fired, duplicates, lost, stuck int) string {
	var broken bool
	switch promise {
	case Once:
		broken = duplicates+lost+stuck > 0
	case AtMostOnce:
		broken = duplicates+stuck > 0
	case AtLeastOnce:
		broken = lost+stuck > 0
	default:
		if fired > 0 && duplicates+lost+stuck > 0 {
			return HarmShown
		}
		return DidNotBite
	}
	switch {
	case broken:
		return Broken
	case fired == 0:
		return DidNotBite
	}
	return Kept
}
