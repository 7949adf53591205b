package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
)

// AckError says that a write stands on the master and has not reached what was
// asked for. It matches backend.ErrOutcomeUnknown: the write may be lost in a
// failover or in a crash, or may arrive yet.
type AckError struct {
	Replicas, NeedReplicas int // that have the write, or have it on disk with Fsync
	Fsync                  bool
	Local                  bool // with Fsync: the master has it on disk
	Timeout                time.Duration
}

// Error names both numbers.
func (e *AckError) Error() string {
	disk := ""
	if e.Fsync && !e.Local {
		disk = "the master's disk did not, and "
	}
	return fmt.Sprintf("%v: the write was not acknowledged within %v: %s%d of %d replicas did; it may still be lost, send the same move again",
		backend.ErrOutcomeUnknown, e.Timeout, disk, e.Replicas, e.NeedReplicas)
}

// Is reports whether target is backend.ErrOutcomeUnknown.
func (e *AckError) Is(target error) bool { return target == backend.ErrOutcomeUnknown }

// acks makes writes wait until replicas have them or disks hold them.
//
// The wait counts for the writes of its own connection, so it goes out behind them
// in their pipeline. One wait serves all writes before it, whoever's they are. It
// undoes nothing: what has too few acknowledgements stands on the master all the
// same.
//
// A nil *acks waits for nothing.
type acks struct {
	replicas int
	fsync    bool
	timeout  time.Duration
}

// defaultAckTimeout is well above a round trip to a replica in another zone and
// well below the client's limit for a reply.
const defaultAckTimeout = time.Second

// newAcks returns nil when nothing is to be waited for. timeout 0 means
// defaultAckTimeout.
func newAcks(client redis.UniversalClient, replicas int, fsync bool, timeout time.Duration) (*acks, error) {
	if replicas == 0 && !fsync {
		if timeout != 0 {
			return nil, fmt.Errorf("%w: an AckTimeout of %v without AckReplicas or AckFsync; there is nothing to wait for", backend.ErrInvalidRequest, timeout)
		}
		return nil, nil
	}
	if replicas < 0 {
		return nil, fmt.Errorf("%w: AckReplicas is %d; it must not be negative", backend.ErrInvalidRequest, replicas)
	}
	if timeout == 0 {
		timeout = defaultAckTimeout
	}
	// For the server 0 means for ever.
	if timeout < time.Millisecond {
		return nil, fmt.Errorf("%w: an AckTimeout of %v; it must be at least 1ms", backend.ErrInvalidRequest, timeout)
	}
	// The client gives a pipeline one limit for all replies. With a longer wait it
	// would cut the connection and send everything again.
	if limit := readTimeout(client); limit > 0 && timeout >= limit {
		return nil, fmt.Errorf("%w: an AckTimeout of %v; it must be below the redis client's ReadTimeout of %v", backend.ErrInvalidRequest, timeout, limit)
	}
	return &acks{replicas: replicas, fsync: fsync, timeout: timeout}, nil
}

func readTimeout(client redis.UniversalClient) time.Duration {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ReadTimeout
	case *redis.ClusterClient:
		return c.Options().ReadTimeout
	}
	return 0
}

// command returns the wait, to be the last command of a pipeline.
func (a *acks) command(ctx context.Context) redis.Cmder {
	ms := (a.timeout + time.Millisecond - 1).Milliseconds()
	if a.fsync {
		return redis.NewIntSliceCmd(ctx, "waitaof", 1, a.replicas, ms)
	}
	return redis.NewIntCmd(ctx, "wait", a.replicas, ms)
}

// check judges the answer to the wait. The writes before it have succeeded: their
// own errors are looked at first.
func (a *acks) check(ctx context.Context, wait redis.Cmder) error {
	if err := wait.Err(); err != nil {
		var reply redis.Error
		if errors.As(err, &reply) {
			// Refused is the wait, not the write.
			return fmt.Errorf("%w: the write stands, its acknowledgement could not be asked for: %w", backend.ErrOutcomeUnknown, replyFault(reply))
		}
		return writeFault(ctx, err)
	}
	short := &AckError{NeedReplicas: a.replicas, Fsync: a.fsync, Timeout: a.timeout}
	switch wait := wait.(type) {
	case *redis.IntCmd:
		short.Replicas = int(wait.Val())
	case *redis.IntSliceCmd:
		if v := wait.Val(); len(v) == 2 {
			short.Local, short.Replicas = v[0] > 0, int(v[1])
		}
	}
	if short.Replicas < a.replicas || a.fsync && !short.Local {
		return short
	}
	return nil
}

// again asks for the acknowledgement of a write that was done before, perhaps over
// another connection: it makes a small write of its own in the record's slot and
// waits for that one, which replicas and logs get behind the first.
//
// Whoever finds that a write had been done before (its own token in a reserve's
// answer, its own completion standing) must ask: newer servers count only what the
// connection itself has written, and the client may have sent the commands a second
// time over another one.
func (a *acks) again(ctx context.Context, run runner, prefix, key string) error {
	if a == nil {
		return nil
	}
	mark := redis.NewStatusCmd(ctx, "set", prefix+"ack{"+key+"}", "", "px", 1)
	c := &call{key: key, cmds: []redis.Cmder{mark}, acked: true}
	if err := run.do(ctx, c); err != nil {
		return writeFault(ctx, err)
	}
	if err := mark.Err(); err != nil {
		var reply redis.Error
		if errors.As(err, &reply) {
			return fmt.Errorf("%w: the write stands, its acknowledgement could not be asked for: %w", backend.ErrOutcomeUnknown, replyFault(reply))
		}
		return writeFault(ctx, err)
	}
	return c.short
}

// checkAcks refuses at the opening what would fail every write later.
func checkAcks(ctx context.Context, node redis.UniversalClient, t terms, version string) error {
	if t.ackReplicas == 0 && !t.ackFsync {
		return nil
	}
	var wait redis.Cmder = redis.NewIntCmd(ctx, "wait", 0, 1)
	if t.ackFsync {
		wait = redis.NewIntSliceCmd(ctx, "waitaof", 1, 0, 1)
	}
	if err := (direct{client: node}).do(ctx, wait); err != nil {
		return readFault(ctx, err)
	}
	err := wait.Err()
	switch {
	case err == nil:
		return nil
	case unknownCommand(err):
		return &ServerVersionError{Found: version, Need: "7.2"}
	case t.ackFsync && forbidden(err) && !redis.HasErrorPrefix(err, "NOPERM"):
		return fmt.Errorf("%w: AckFsync needs a log to wait for; set appendonly to yes", backend.ErrGuarantee)
	}
	return readFault(ctx, err)
}
