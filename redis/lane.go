package redis

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/internal/combine"
)

// lane is the way to one server. From a few callers on, their calls go in one pipeline;
// below, everybody goes by themselves, which is faster then (docs/adr/0009).
//
// One time and one wait for acknowledgements, at the end of a pipeline, serve all calls
// in it.
type lane struct {
	direct
	acks  *acks
	calls *combine.Combiner[*call, struct{}]
}

func newLane(client redis.UniversalClient, a *acks) *lane {
	l := &lane{direct: newDirect(client), acks: a}
	l.calls = combine.New(combine.Options[*call]{
		Streams: 16, Crowd: 5, CrowdStreams: 2, Max: 256, WaitShare: 0.5,
		Weigh: weight, MaxWeight: 1 << 20,
	}, l.run)
	return l
}

func (l *lane) do(ctx context.Context, c *call) error {
	if l.acks != nil && !c.acked {
		// A read does not wait for what others have written.
		return l.carry(ctx, c)
	}
	if _, err := l.calls.Do(ctx, c); err != nil {
		return err
	}
	if c.joined && ctx.Err() == nil && c.lost() {
		// Each caller for itself, and by the client's own rules for another try: so
		// nothing that was answered is sent again.
		c.joined = false
		c.reset()
		return l.carry(ctx, c)
	}
	return nil
}

func (l *lane) run(ctx context.Context, items []*combine.Item[*call, struct{}]) {
	if len(items) == 1 {
		items[0].Answer(struct{}{}, l.carry(ctx, items[0].In))
		return
	}
	calls := make([]*call, len(items))
	for i, it := range items {
		calls[i] = it.In
	}
	err := l.carry(ctx, calls...)
	for _, it := range items {
		it.Answer(struct{}{}, err)
	}
}

// carry sends calls in one pipeline.
func (l *lane) carry(ctx context.Context, calls ...*call) error {
	timed, acked := false, false
	for _, c := range calls {
		timed, acked = timed || c.timed, acked || c.acked
	}
	acked = acked && l.acks != nil
	cmds := calls[0].cmds
	if len(calls) > 1 || timed || acked {
		cmds = make([]redis.Cmder, 0, 2*len(calls)+2)
		for _, c := range calls {
			cmds = append(cmds, c.cmds...)
		}
	}
	// Behind the commands, so that the client sees the first of them when it judges the
	// connection, such as by READONLY after a failover.
	var clock *redis.TimeCmd
	if timed {
		clock = redis.NewTimeCmd(ctx, "time")
		cmds = append(cmds, clock)
	}
	var wait redis.Cmder
	if acked {
		wait = l.acks.command(ctx)
		cmds = append(cmds, wait)
	}
	if len(calls) > 1 {
		all := make([]once, len(cmds))
		for i, cmd := range cmds {
			all[i].Cmder = cmd
			cmds[i] = &all[i]
		}
	}
	if err := l.direct.do(ctx, cmds...); err != nil {
		return err
	}
	for _, c := range calls {
		c.joined = len(calls) > 1
		if clock != nil && clock.Err() == nil {
			c.now = clock.Val().UTC()
		}
		if wait != nil {
			c.short = l.acks.check(ctx, wait)
		}
	}
	return nil
}

// once is a command of a batch. It makes the client send its pipeline once, and keeps the
// answer that it has got: by itself the client would, when the connection breaks, send
// everything again and in the end mark what had been answered as failed too.
type once struct {
	redis.Cmder
	answered bool
}

// NoRetry is what the client asks.
func (*once) NoRetry() bool { return true }

// SetErr is how the client notes an answer (no error, or the server's) and a failure.
func (o *once) SetErr(err error) {
	if o.answered {
		return
	}
	var reply redis.Error
	o.answered = err == nil || errors.As(err, &reply)
	o.Cmder.SetErr(err)
}

// unsent reports whether a runner's error says that nothing of the call was or will be
// sent: its caller left while it queued.
func unsent(err error) bool {
	var left *combine.Error
	return errors.As(err, &left) && !left.Sent
}

// weight is about how many bytes a call sends.
func weight(c *call) int {
	n := 0
	for _, cmd := range c.cmds {
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
