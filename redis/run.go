package redis

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// runner carries commands to the server. All hot moves go through it, so that one
// which joins the commands of concurrent callers can take the place of direct.
//
// The commands of one do go to one node, in order, on one connection; they are not
// a transaction. Each command's own error is in the command. do's error is that of
// a caller who has left, the end of ctx: the commands may or may not have been
// sent, may still be in use, and must not be looked at.
type runner interface {
	do(ctx context.Context, cmds ...redis.Cmder) error
}

// direct sends each caller's commands by themselves.
type direct struct{ client redis.UniversalClient }

func (d direct) do(ctx context.Context, cmds ...redis.Cmder) error {
	if ctx.Done() == nil {
		d.send(ctx, cmds)
		return nil
	}
	// The client does not interrupt a read when ctx is cancelled. The caller leaves
	// all the same; the goroutine ends with the reply or with the client's timeouts.
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
