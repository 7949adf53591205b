package redis

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// runner carries calls to the server. All hot moves go through it.
//
// do's error is that of a caller who has left, the end of ctx: the call may or may not
// have been sent, unless unsent says otherwise, may still be in use, and must not be
// looked at. Each command's own error is in the command.
type runner interface {
	do(ctx context.Context, c *call) error
}

// call is what one caller sends: commands on one record. They go to one node, in order,
// on one connection; they are not a transaction.
type call struct {
	key  string // decides the node of a Cluster
	cmds []redis.Cmder

	timed bool      // the caller wants to know the server's time
	now   time.Time // just after the commands; zero if the server did not say

	// acked asks that the writes among the commands are acknowledged, where the store
	// waits for that at all. short says that they, if they succeeded, are not.
	acked bool
	short error

	joined bool // it was sent together with others
}

// reset forgets the errors of an earlier try.
func (c *call) reset() {
	for _, cmd := range c.cmds {
		cmd.SetErr(nil)
	}
}

// lost reports whether a command has no answer, or one that another try may mend.
func (c *call) lost() bool {
	for _, cmd := range c.cmds {
		if late(cmd) {
			return true
		}
	}
	again, _ := astray(c.cmds)
	return again
}

// direct sends one pipeline by itself.
//
// The client does not interrupt a read when ctx is cancelled, only when a deadline
// passes, and only if it heeds contexts at all. A goroutine for each call, which the
// caller need not wait for, costs a fifth of a round trip. So the caller reads
// itself, up to patience; then it sends again what has no answer, as the client itself
// may at any time, from a goroutine. A server that has been slow once keeps being
// asked from goroutines for a while.
type direct struct {
	client redis.UniversalClient
	heeds  bool // the client bounds its reads by the context's deadline
	slow   *atomic.Int64
}

const (
	// patience is how long a cancelled caller stays at most, if it sends by itself.
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

// do sends commands. Its error is that of a caller who has left, as runner's.
func (d direct) do(ctx context.Context, cmds ...redis.Cmder) error {
	if ctx.Done() == nil {
		d.send(ctx, cmds)
		return nil
	}
	// A wait for acknowledgements takes its time. It also speaks of what its own connection
	// has written, so it would have to be sent again with all the writes before it.
	if at := now(); d.heeds && at.UnixNano() >= d.slow.Load() && !waits(cmds) {
		until, own := at.Add(patience), true
		if end, ok := ctx.Deadline(); ok && end.Before(until) {
			until, own = end, false
		}
		d.send(patient{ctx, until}, cmds)
		left := overdue(cmds)
		if len(left) == 0 || now().Before(until) {
			return nil
		}
		if !own {
			<-ctx.Done() // it ends now, perhaps a moment after the socket's deadline
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		d.slow.Store(now().Add(slowFor).UnixNano())
		for _, cmd := range left {
			if o, ok := cmd.(*once); ok {
				o.answered = false
				cmd = o.Cmder
			}
			cmd.SetErr(nil)
		}
		cmds = left
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

// waits reports whether a pipeline ends with a wait for acknowledgements.
func waits(cmds []redis.Cmder) bool {
	last := cmds[len(cmds)-1].Name()
	return last == "wait" || last == "waitaof"
}

// overdue returns the commands that have no answer because a deadline passed. What has
// been answered is not sent again: its callers have what they wanted.
func overdue(cmds []redis.Cmder) (left []redis.Cmder) {
	for _, cmd := range cmds {
		if late(cmd) {
			left = append(left, cmd)
		}
	}
	return left
}

func late(cmd redis.Cmder) bool {
	err := cmd.Err()
	return err != nil && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded))
}
