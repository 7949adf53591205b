package expiry

import (
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// Verdict says what the issue time of a key means, where the store has no record of
// the key and would create one.
type Verdict uint8

// The verdicts.
const (
	// InTime: had the key been used, its record would still be there. It may run.
	InTime Verdict = iota
	// Late: a record of the key may have been forgotten. Nobody can know any more
	// whether it ran, so it must not run: idem.ErrKeyExpired.
	Late
	// FromFuture: it was issued later than now by more than the skew, so that its
	// issue time means nothing: idem.ErrInvalidKey.
	FromFuture
)

// String returns the verdict's name.
func (v Verdict) String() string {
	switch v {
	case InTime:
		return "in time"
	case Late:
		return "late"
	case FromFuture:
		return "from the future"
	}
	return fmt.Sprintf("verdict %d", uint8(v))
}

// Judge is the rule for late keys, pure: issued is what the key says, now the clock
// of the store, shortest the shortest dedup window that ever applied, skew how far
// the issuer's clock may be off.
//
// A record lives from its completion, which is not before the key was issued, for a
// dedup window, and reads as absent from the very end of it on. A key whose age is
// below the shortest window is therefore still known if it was ever used. An issuer
// whose clock is ahead makes its keys look younger than they are, hence "less the
// skew".
func Judge(issued, now time.Time, shortest, skew time.Duration) Verdict {
	// Sub saturates, so that no issue time, however absurd, wraps around.
	switch age := now.Sub(issued); {
	case age < -skew:
		return FromFuture
	case age >= shortest-skew:
		return Late
	}
	return InTime
}

// NeedsIssueTime returns how keys of an ID's operation carry their issue time, by
// the rule that decides. It allocates nothing.
func (p *Policy) NeedsIssueTime(id backend.ID) Issued {
	return p.rule(id.Tenant, id.Operation).Issued
}

// Lateness judges a key for which the store has no record. issuedAt is the time
// that the caller gave, zero for none; now is the clock of the store. Where the
// operation does not declare that its keys carry their issue time, and none is
// given, every key is in time.
//
// The error is about the call: a key of the wrong form for its operation, or an
// operation whose callers must give the time and did not; a retry does not help.
// Where both key and caller say when, the earlier time counts. A key that is late
// stays late; one from the future is in time once its time has come.
func (p *Policy) Lateness(id backend.ID, issuedAt, now time.Time) (Verdict, error) {
	c := p.rule(id.Tenant, id.Operation)
	issued, skew := issuedAt, c.Skew
	var carried time.Time
	var err error
	switch c.Issued {
	case NotDeclared:
		if issuedAt.IsZero() {
			return InTime, nil
		}
		skew = c.defaultSkew()
	case ByUUIDv7:
		carried, err = UUIDv7Time(id.Key)
	case ByULID:
		carried, err = ULIDTime(id.Key)
	case ByOption:
		if issuedAt.IsZero() {
			err = fmt.Errorf("idem: operation %s declares that every call gives the issue time of its key (IssuedAt), and this call gives none", id.Operation)
		}
	}
	if err != nil {
		return InTime, err
	}
	if !carried.IsZero() && (issued.IsZero() || carried.Before(issued)) {
		issued = carried
	}
	// What applied only before this key can have existed does not count: the key was
	// issued at the earliest a skew before what it says.
	return Judge(issued, now, c.shortest(issued.Add(-skew)), skew), nil
}
