package strategy

import (
	"fmt"
	"strings"
)

// All returns every strategy, in the order of a report: from the weakest promise to
// the strongest, the hand-written floors among those that are held against them.
func All() []Strategy {
	return []Strategy{
		none(),
		boltCheck(),
		pgCheck(),
		redisLock(),

		lruWindow(),
		redisRaw(),
		redisWindow(),

		memoryLease(),
		boltBatch(),
		boltLease(),
		redisLease(),
		pgTwo(),
		pgLease(),
		crdbLease(),

		bareSync(),
		boltTx(),
		pgFive(),
		pgUnique(),
		pgTx(),
		pgTxQueued(),
		crdbTx(),
	}
}

// Lookup returns the strategy with that name.
func Lookup(name string) (Strategy, error) {
	all := All()
	known := make([]string, len(all))
	for i, s := range all {
		if known[i] = s.Info().Name; known[i] == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("bench: there is no strategy %q; there are %s", name, strings.Join(known, ", "))
}

// strategy is a Strategy made of its parts.
type strategy struct {
	info Info
	open opener
}

func (s strategy) Info() Info { return s.info }
