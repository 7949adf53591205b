package bulk

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/goidem/idem/backend"
)

// Export writes every record that keep wants as one line of JSON.
func Export(ctx context.Context, b backend.Backend, f backend.Filter, keep func(*backend.Record) bool, w io.Writer) (n int, err error) {
	out := bufio.NewWriterSize(w, 1<<16)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	for rec, err := range b.List(ctx, f) {
		if err != nil {
			return n, errors.Join(err, out.Flush())
		}
		if !keep(&rec) {
			continue
		}
		if err := enc.Encode(NewLine(&rec)); err != nil {
			return n, err
		}
		n++
	}
	return n, out.Flush()
}

// Imported counts what an import did with its lines.
type Imported struct {
	Restored int `json:"restored"`
	// Known: the store has a record of the key already, which stays as it is.
	Known int `json:"known"`
	// Different: the same, and it was made by another request.
	Different int `json:"different"`
	// Busy: an attempt of the store holds the key, live or abandoned.
	Busy int `json:"busy"`
	// Unsettled: the line was in flight or open. There is nothing to restore: an
	// attempt cannot be moved to another store.
	Unsettled int `json:"unsettled"`
	// Expired: the time of the line's record is over.
	Expired int `json:"expired"`
}

// LineError is a line that cannot be read.
type LineError struct {
	Line int
	Err  error
}

// Error names the line.
func (e *LineError) Error() string {
	return fmt.Sprintf("idem: line %d of the input: %v", e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Err }

// maxLine bounds a line: a body in base64, and the rest of a record.
const maxLine = backend.MaxBody*4/3 + 1<<16

// batchBytes bounds the input that is held in memory at a time.
const batchBytes = 64 << 20

// Import restores settled and uncertain records that the store does not have. With
// dryRun the lines are only read. The first line that cannot be read ends it; the
// lines before it count.
func Import(ctx context.Context, b backend.Backend, in io.Reader, dryRun bool, now func() time.Time) (Imported, error) {
	im := &importer{b: b, now: now, dryRun: dryRun}
	lines := bufio.NewReaderSize(in, 1<<16)
	var (
		group []entry
		size  int
	)
	flush := func() error {
		err := together(ctx, group, func(e entry) error { return im.restore(ctx, e) })
		group, size = group[:0], 0
		return err
	}
	for n := 1; ; n++ {
		text, err := readLine(lines)
		if err == io.EOF && len(text) == 0 {
			break
		}
		if err != nil && err != io.EOF {
			return im.done, errors.Join(flush(), &LineError{n, err})
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		l, state, err := parseLine(text)
		if err != nil {
			return im.done, errors.Join(flush(), &LineError{n, err})
		}
		group, size = append(group, entry{n, l, state}), size+len(text)
		if len(group) == batch || size >= batchBytes {
			if err := flush(); err != nil {
				return im.done, err
			}
		}
	}
	return im.done, flush()
}

// readLine reads one line of bounded length, its end included.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, errors.New("it is longer than any record")
		}
		if err != bufio.ErrBufferFull {
			return line, err
		}
	}
}

func strict(text []byte, l *Line) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	return dec.Decode(l)
}

type entry struct {
	n     int
	line  Line
	state backend.State
}

// failed is an error of the store, not of the line.
func (e *entry) failed(err error) error {
	return fmt.Errorf("idem: restoring line %d: %w", e.n, err)
}

type importer struct {
	b      backend.Backend
	now    func() time.Time
	dryRun bool

	mu   sync.Mutex
	done Imported
}

func (im *importer) count(field *int) {
	im.mu.Lock()
	defer im.mu.Unlock()
	*field++
}

// importLease is how long an import that dies keeps a key in flight; it is held
// for a person then.
const importLease = time.Minute

// restore puts one record into the store. It is a reserve and a completion, like
// those of any attempt, with the windows that are left. The reservation is under
// Hold: an import that dies in between leaves a key that nobody runs.
func (im *importer) restore(ctx context.Context, e entry) error {
	now := im.now()
	replay, known := get(e.line.ReplayUntil).Sub(now), get(e.line.KnownUntil).Sub(now)
	switch {
	case e.state == backend.InFlight, e.state == backend.Open:
		im.count(&im.done.Unsettled)
		return nil
	case e.state != backend.Uncertain && known <= 0:
		im.count(&im.done.Expired)
		return nil
	case im.dryRun:
		return im.look(ctx, e.line.id())
	}
	// A replay window that is over stays over: the shortest one there is.
	replay = min(max(replay, 1), known)

	r := backend.ReserveRequest{
		Ref: backend.Ref{ID: e.line.id()},
		TTL: importLease, KnownFor: time.Hour, OnAbandoned: backend.Hold, Durable: true,
		Holder: backend.Holder{Host: e.line.Host, PID: e.line.PID, Started: get(e.line.Started)},
	}
	if len(e.line.Fingerprint) > 0 {
		r.Fingerprint = e.line.Fingerprint
	}
	_, _ = rand.Read(r.Owner[:])
	res, err := im.b.Reserve(ctx, r)
	if err == nil && res.Outcome == backend.Existing && (res.Record.State == backend.Open || res.Record.Expired(res.Now)) {
		r.TakeOver = res.Record.Fence
		res, err = im.b.Reserve(ctx, r)
	}
	switch {
	case err != nil:
		return e.failed(err)
	case res.Outcome == backend.Mismatch:
		im.count(&im.done.Different)
		return nil
	case res.Outcome != backend.Acquired:
		if res.Record.State == backend.InFlight || res.Outcome != backend.Existing {
			im.count(&im.done.Busy)
		} else {
			im.count(&im.done.Known)
		}
		return nil
	}
	if err := im.settle(ctx, r.Ref, res.Record.Fence, &e, replay, known); err != nil {
		return e.failed(fmt.Errorf("its key is held for a person, because the record could not be completed: %w", err))
	}
	im.count(&im.done.Restored)
	return nil
}

// settle completes a reserved record. One that a person has resolved is resolved
// again, which keeps the evidence.
func (im *importer) settle(ctx context.Context, ref backend.Ref, fence uint64, e *entry, replay, known time.Duration) error {
	resolved := e.state == backend.Completed && e.line.Evidence != ""
	c := backend.CompleteRequest{Ref: ref, State: e.state, Body: e.line.Body, ReplayFor: replay, KnownFor: known}
	if resolved {
		c = backend.CompleteRequest{Ref: ref, State: backend.Uncertain}
	}
	if _, err := im.b.Complete(ctx, c); err != nil || !resolved {
		return err
	}
	_, err := im.b.Resolve(ctx, backend.ResolveRequest{
		ID: ref.ID, Fence: fence, Applied: true, Body: e.line.Body,
		ReplayFor: replay, KnownFor: known, Evidence: e.line.Evidence,
	})
	return err
}

// look says what a restore would do, without doing it.
func (im *importer) look(ctx context.Context, id backend.ID) error {
	rec, err := im.b.Get(ctx, id)
	switch {
	case errors.Is(err, backend.ErrNotFound), err == nil && rec.State == backend.Open:
		im.count(&im.done.Restored)
	case err != nil:
		return err
	case rec.State == backend.InFlight:
		im.count(&im.done.Busy)
	default:
		im.count(&im.done.Known)
	}
	return nil
}
