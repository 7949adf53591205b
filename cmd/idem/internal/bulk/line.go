package bulk

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/goidem/idem/backend"
)

// lineVersion is the version of the lines that export writes. A reader refuses
// those that it does not know.
const lineVersion = 1

// Line is a record as export writes it and import reads it: every field, one JSON
// object a line, bytes in base64. The body is what the store keeps, envelope
// included, opaque to this program.
type Line struct {
	Version     int        `json:"v"`
	Tenant      string     `json:"tenant,omitempty"`
	Operation   string     `json:"operation"`
	Key         string     `json:"key"`
	State       string     `json:"state"`
	Fence       uint64     `json:"fence"`
	Attempt     int        `json:"attempt"`
	TookOver    bool       `json:"tookOver,omitempty"`
	OnAbandoned string     `json:"onAbandoned,omitempty"`
	Owner       []byte     `json:"owner,omitempty"`
	Fingerprint []byte     `json:"fingerprint,omitempty"`
	Body        []byte     `json:"body,omitempty"`
	BodyExpired bool       `json:"bodyExpired,omitempty"`
	Evidence    string     `json:"evidence,omitempty"`
	Host        string     `json:"host,omitempty"`
	PID         int        `json:"pid,omitempty"`
	Started     *time.Time `json:"started,omitempty"`
	ReservedAt  *time.Time `json:"reservedAt,omitempty"`
	LeaseUntil  *time.Time `json:"leaseUntil,omitempty"`
	CompletedAt *time.Time `json:"completedAt,omitempty"`
	ReplayUntil *time.Time `json:"replayUntil,omitempty"`
	KnownUntil  *time.Time `json:"knownUntil,omitempty"`
}

func set(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func get(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// NewLine returns the line of a record.
func NewLine(r *backend.Record) Line {
	l := Line{
		Version: lineVersion,
		Tenant:  r.ID.Tenant, Operation: r.ID.Operation, Key: r.ID.Key,
		State: r.State.String(), Fence: r.Fence, Attempt: r.Attempt, TookOver: r.TookOver,
		Fingerprint: r.Fingerprint, Body: r.Body, BodyExpired: r.BodyExpired, Evidence: r.Evidence,
		Host: r.Holder.Host, PID: r.Holder.PID, Started: set(r.Holder.Started),
		ReservedAt: set(r.ReservedAt), LeaseUntil: set(r.LeaseUntil), CompletedAt: set(r.CompletedAt),
		ReplayUntil: set(r.ReplayUntil), KnownUntil: set(r.KnownUntil),
	}
	if r.OnAbandoned != 0 {
		l.OnAbandoned = r.OnAbandoned.String()
	}
	if r.Owner != [16]byte{} {
		l.Owner = r.Owner[:]
	}
	return l
}

// parseLine reads one line. It is strict: what it does not know it refuses, because
// a field that is dropped silently may be the one that mattered.
func parseLine(text []byte) (Line, backend.State, error) {
	var version struct {
		Version int `json:"v"`
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return Line{}, 0, fmt.Errorf("it is not a JSON object of idem export: %w", err)
	}
	if version.Version != lineVersion {
		return Line{}, 0, fmt.Errorf("it has version %d and this program reads %d: is it made by idem export?", version.Version, lineVersion)
	}
	var l Line
	if err := strict(text, &l); err != nil {
		return Line{}, 0, err
	}
	if err := l.id().Validate(); err != nil {
		return Line{}, 0, err
	}
	for s := backend.InFlight; s <= backend.Open; s++ {
		if s.String() == l.State {
			return l, s, nil
		}
	}
	return Line{}, 0, fmt.Errorf("%q is no state", l.State)
}

func (l *Line) id() backend.ID {
	return backend.ID{Tenant: l.Tenant, Operation: l.Operation, Key: l.Key}
}
