package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cmd/idem/internal/command"
)

// Batch is a run over an input.
type Batch struct {
	Source    Source
	Templates *Templates
	Jobs      int
	FailFast  bool
	// Do runs one record's command under its key, or finds that it was run before.
	Do func(ctx context.Context, key idem.Key, args []string, stdout, stderr io.Writer) (idem.Result[command.Outcome], error)
	// Failed gets the records that did not succeed; nil: nobody does.
	Failed io.Writer
	// Screen gets the commands' output and the messages.
	Screen *Screen
	Counts *Counts

	stop   chan struct{} // closed: no new records
	once   sync.Once
	twins  twins
	mu     sync.Mutex
	fatal  error
	header bool // of Failed has been written
}

// Stop lets what is running finish and starts nothing more.
func (b *Batch) Stop() { b.once.Do(func() { close(b.stop) }) }

// Run reads the source to its end and returns when everything that was begun has
// ended. It returns the error that made it stop early: of the input, or of the
// store. What became of the records is in Counts.
func (b *Batch) Run(ctx context.Context) error {
	b.stop = make(chan struct{})
	b.twins.running, b.twins.failed = map[idem.Key]chan struct{}{}, map[idem.Key]error{}
	records := make(chan *Record, 2*b.Jobs)
	var wg sync.WaitGroup
	for range b.Jobs {
		wg.Go(func() {
			for r := range records {
				select {
				case <-b.stop:
				case <-ctx.Done():
				default:
					b.one(ctx, r)
					continue
				}
				b.Counts.add(NotStarted)
			}
		})
	}
	err := b.feed(ctx, records)
	close(records)
	wg.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.fatal, err)
}

// feed reads the source until it ends or nothing more is to be started.
func (b *Batch) feed(ctx context.Context, records chan<- *Record) error {
	for {
		r, err := b.Source.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		select {
		case records <- r:
			continue
		case <-b.stop:
		case <-ctx.Done():
		}
		b.Counts.add(NotStarted)
		return nil
	}
}

// one sees to one record.
func (b *Batch) one(ctx context.Context, r *Record) {
	key, args, err := b.Templates.Fill(r)
	if err != nil {
		b.Counts.add(Failed)
		b.failed(r, key, Failed, err)
		return
	}
	twin, err := b.twins.enter(ctx, key)
	if twin || err != nil {
		b.Counts.add(kindOf(err))
		b.failed(r, key, kindOf(err), fmt.Errorf("%w (an earlier record has the same key)", err))
		return
	}
	var stdout, stderr spool
	b.Counts.begin()
	res, err := b.Do(ctx, key, args, &stdout, &stderr)
	kind := kindOf(err)
	switch {
	case kind == Gone:
		kind, err = Replayed, nil // it happened; only its output is gone
	case err == nil && res.Replayed:
		kind = Replayed
	}
	b.Counts.end(kind)
	b.twins.leave(key, err)
	if !stdout.empty() || !stderr.empty() {
		b.Screen.output(&stdout, &stderr)
	}
	if err != nil {
		b.failed(r, key, kind, err)
	}
}

// failed reports a record that did not succeed. Those that never had a chance to
// are counted only.
func (b *Batch) failed(r *Record, key idem.Key, kind Kind, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if kind != Interrupted {
		b.Screen.Say("idem: record on line %d%s: %v", r.Number, named(key), trimmed(err))
	}
	if b.Failed != nil {
		werr := error(nil)
		if !b.header {
			b.header, werr = true, b.Source.Begin(b.Failed)
		}
		if werr = errors.Join(werr, b.Source.Write(b.Failed, r)); werr != nil && b.fatal == nil {
			b.fatal = fmt.Errorf("idem: the file of failed records cannot be written: %w; records that are done stay done", werr)
			b.Stop()
		}
	}
	switch {
	case kind == NoStore:
		if b.fatal == nil {
			b.fatal = fmt.Errorf("%w; records that are done stay done", err)
		}
		b.Stop()
	case b.FailFast && kind != Interrupted:
		b.Stop()
	}
}

func named(key idem.Key) string {
	if key == "" {
		return ""
	}
	return fmt.Sprintf(", key %s", key)
}

// trimmed is an error's text without the name of the program in front.
func trimmed(err error) string {
	const prefix = "idem: "
	text := err.Error()
	if len(text) > len(prefix) && text[:len(prefix)] == prefix {
		return text[len(prefix):]
	}
	return text
}

// twins keeps records with the same key apart: the second waits for the first, and
// shares its failure.
type twins struct {
	mu      sync.Mutex
	running map[idem.Key]chan struct{}
	failed  map[idem.Key]error
}

// enter waits until no other record with the key is being run. twin is set, with
// the error, where one has failed in this run.
func (t *twins) enter(ctx context.Context, key idem.Key) (twin bool, err error) {
	for {
		t.mu.Lock()
		if err := t.failed[key]; err != nil {
			t.mu.Unlock()
			return true, err
		}
		busy := t.running[key]
		if busy == nil {
			t.running[key] = make(chan struct{})
			t.mu.Unlock()
			return false, nil
		}
		t.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

func (t *twins) leave(key idem.Key, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed[key] = err
	}
	close(t.running[key])
	delete(t.running, key)
}
