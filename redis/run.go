package redis

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/internal/combine"
)

// runner carries commands to the server. All hot moves go through it.
//
// The commands of one do go to one node, in order, on one connection; they are not
// a transaction. Each command's own error is in the command. do's error is that of
// a caller who has left, the end of ctx: the commands may or may not have been
// sent, may still be in use, and must not be looked at.
type runner interface {
	do(ctx context.Context, cmds ...redis.Cmder) error
}

// direct sends each caller's commands by themselves.
//
// The client does not interrupt a read when ctx is cancelled, only when a deadline
// passes, and only if it heeds contexts at all. A goroutine for each call, which the
// caller need not wait for, costs a fifth of a round trip. So the caller reads
// itself, up to patience; then it sends the same commands again, as the client itself
// may at any time, from a goroutine. A server that has been slow once keeps being
// asked from goroutines for a while.
type direct struct {
	client redis.UniversalClient
	heeds  bool // the client bounds its reads by the context's deadline
	slow   *atomic.Int64
}

const (
	// patience is how long a cancelled caller stays at most.
	patience = 250 * time.Millisecond
	// slowFor is how long a server is taken to be slow after it was.
	slowFor = 5 * time.Second
)

func newDirect(client redis.UniversalClient) direct {
	d := direct{client: client, slow: new(atomic.Int64)}
	switch c := client.(type) {
	case *redis.Client:
		d.heeds = c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		d.heeds = c.Options().ContextTimeoutEnabled
	}
	return d
}

func (d direct) do(ctx context.Context, cmds ...redis.Cmder) error {
	if ctx.Done() == nil {
		d.send(ctx, cmds)
		return nil
	}
	if at := now(); d.heeds && at.UnixNano() >= d.slow.Load() {
		until, own := at.Add(patience), true
		if end, ok := ctx.Deadline(); ok && end.Before(until) {
			until, own = end, false
		}
		d.send(patient{ctx, until}, cmds)
		if !overdue(cmds) || now().Before(until) {
			return nil
		}
		if !own {
			<-ctx.Done() // it ends now, perhaps a moment after the socket's deadline
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		d.slow.Store(now().Add(slowFor).UnixNano())
		for _, cmd := range cmds {
			cmd.SetErr(nil)
		}
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		d.send(ctx, cmds)
	}()
	select {
	case <-sent:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d direct) send(ctx context.Context, cmds []redis.Cmder) {
	if len(cmds) == 1 {
		_ = d.client.Process(ctx, cmds[0])
		return
	}
	p := d.client.Pipeline()
	for _, cmd := range cmds {
		_ = p.Process(ctx, cmd)
	}
	_, _ = p.Exec(ctx)
}

// patient is a context with a deadline for the socket and no timer.
type patient struct {
	context.Context
	until time.Time
}

// Deadline returns the earlier deadline.
func (p patient) Deadline() (time.Time, bool) { return p.until, true }

// overdue reports whether a command has no answer because a deadline passed.
func overdue(cmds []redis.Cmder) bool {
	for _, cmd := range cmds {
		if err := cmd.Err(); errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
			return true
		}
	}
	return false
}

// joint sends the commands of concurrent callers in one pipeline from some callers
// on. Below, everybody goes by themselves, which is faster then (see docs/adr).
type joint struct {
	direct
	calls *combine.Combiner[[]redis.Cmder, struct{}]
}

func newJoint(d direct) *joint {
	j := &joint{direct: d}
	j.calls = combine.New(combine.Options[[]redis.Cmder]{
		Streams: 16, Crowd: 17, CrowdStreams: 2, Max: 256, WaitShare: 0.125,
		Weigh: weight, MaxWeight: 1 << 20,
	}, j.run)
	return j
}

func (j *joint) do(ctx context.Context, cmds ...redis.Cmder) error {
	_, err := j.calls.Do(ctx, cmds)
	if err == nil {
		return nil
	}
	var left *combine.Error
	if errors.As(err, &left) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (j *joint) run(ctx context.Context, items []*combine.Item[[]redis.Cmder, struct{}]) {
	if len(items) == 1 {
		items[0].Answer(struct{}{}, j.direct.do(ctx, items[0].In...))
		return
	}
	all := make([]redis.Cmder, 0, 3*len(items))
	for _, it := range items {
		all = append(all, it.In...)
	}
	err := j.direct.do(ctx, all...)
	for _, it := range items {
		it.Answer(struct{}{}, err)
	}
}

// weight is about how many bytes commands send.
func weight(cmds []redis.Cmder) int {
	n := 0
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			switch arg := arg.(type) {
			case []byte:
				n += len(arg)
			case string:
				n += len(arg)
			}
		}
	}
	return n
}
