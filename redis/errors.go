package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
)

// ErrRefused: the server answered that it does not carry out commands of this kind
// now, or not for this user. Nothing was changed by the command that it refused.
// See [RefusedError].
var ErrRefused = errors.New("idem: redis refuses the command")

// ErrOldServer: the server is older than Redis 7.0. See [ServerVersionError].
var ErrOldServer = errors.New("idem: redis server is too old")

// RefusedError is a refusal of the server. It matches ErrRefused.
type RefusedError struct {
	// Code is the server's error code: OOM, READONLY, NOPERM and the like.
	Code string
	// Reason says what the code means here and what would help.
	Reason string
}

// Error names the code and what would help.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("idem: redis refuses the command with %s: %s", e.Code, e.Reason)
}

// Is reports whether target is ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// ServerVersionError says which version a server has and which it needs. It
// matches ErrOldServer and backend.ErrGuarantee.
type ServerVersionError struct {
	Found string // the server's version; empty where it does not say
	Need  string // the oldest version that works
}

// Error names both versions.
func (e *ServerVersionError) Error() string {
	found := e.Found
	if found == "" {
		found = "of an unknown version, without commands of Redis " + e.Need
	}
	return fmt.Sprintf("idem: redis server is %s; it must be %s or newer (or any Valkey)", found, e.Need)
}

// Is reports whether target is ErrOldServer or backend.ErrGuarantee.
func (e *ServerVersionError) Is(target error) bool {
	return target == ErrOldServer || target == backend.ErrGuarantee
}

// refusal returns what a server's error code means.
func refusal(code string) string {
	switch code {
	case "OOM":
		return "its memory is full and the eviction policy gives nothing up; raise maxmemory or shorten windows, then try again"
	case "READONLY":
		return "it is a replica; a failover may be under way, try again, or connect to the master"
	case "LOADING":
		return "it is loading its data after a start; try again soon"
	case "MISCONF":
		return "it cannot save to disk and accepts no writes until it can; look at its disk, then try again"
	case "NOREPLICAS":
		return "it has fewer good replicas than min-replicas-to-write; try again when they are back"
	case "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK":
		return "the cluster does not serve this slot now; try again"
	case "MASTERDOWN":
		return "its master is not reachable; try again"
	case "BUSY":
		return "it is busy with another script; try again"
	case "NOAUTH", "WRONGPASS":
		return "user name or password is missing or wrong; a retry does not help"
	case "NOPERM":
		return "the user lacks rights; it needs the commands SET, GET, DEL, PTTL, PEXPIRETIME, TIME, EVAL, EVALSHA and SCAN on the store's keys"
	case "CROSSSLOT":
		return "keys of one record fell into different slots; a proxy that rewrites keys would do that"
	case "EXECABORT", "NOPROTO":
		return "it does not speak the protocol that the client asks for"
	}
	return "not a code that idem knows; the server's log may say more"
}

// writeFault names the error of a move that may have changed something.
//
// Only the server's own word is definite. Whatever else happened, the client may
// have sent the command, perhaps several times, and one of the copies may still
// arrive.
func writeFault(ctx context.Context, err error) error {
	var reply redis.Error
	if errors.As(err, &reply) {
		return replyFault(reply)
	}
	if ctx.Err() != nil && unsent(err) {
		return ctx.Err()
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: the context ended before redis answered: %w", backend.ErrOutcomeUnknown, ctx.Err())
	}
	return fmt.Errorf("%w: %s before redis answered; send the same move again", backend.ErrOutcomeUnknown, reason(err))
}

// readFault names the error of a read.
func readFault(ctx context.Context, err error) error {
	var reply redis.Error
	if errors.As(err, &reply) {
		return replyFault(reply)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("idem: redis did not answer: %s; try again", reason(err))
}

// replyFault names an error that the server answered. Its text is not passed on: it
// may quote arguments.
func replyFault(reply redis.Error) error {
	text := reply.Error()
	code, rest, _ := strings.Cut(text, " ")
	if code == "WRONGTYPE" {
		return fmt.Errorf("%w: its key holds another kind of value than a string", backend.ErrCorruptRecord)
	}
	if code == "ERR" && strings.HasPrefix(rest, "max number of clients") {
		return &RefusedError{Code: code, Reason: "it has as many clients as it accepts; try again, or raise maxclients"}
	}
	if code == "" || code != strings.ToUpper(code) {
		code = "ERR"
	}
	return &RefusedError{Code: code, Reason: refusal(code)}
}

// reason says in our words what happened to a connection: the driver's text has
// addresses in it.
func reason(err error) string {
	var dns *net.DNSError
	var timeout interface{ Timeout() bool }
	var number syscall.Errno
	switch {
	case errors.Is(err, redis.ErrClosed):
		return "the client was closed"
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return "no connection of the pool became free"
	case errors.As(err, &dns):
		return "the server's name could not be resolved"
	case errors.As(err, &number):
		return number.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return "the connection was closed"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "the time limit of the client passed"
	}
	return "the connection failed"
}
