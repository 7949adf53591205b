package pgstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/goidem/idem/backend"
)

// The SQLSTATEs that are told apart.
const (
	codeSerialization = "40001" // CockroachDB's restart, too
	codeUnknown       = "40003" // statement completion unknown
	codeDeadlock      = "40P01"
	codeLockTimeout   = "55P03"
	codeUnique        = "23505"
	codeReadOnly      = "25006"
	codeNoTable       = "42P01"
	codeNoColumn      = "42703"
	codeNoSchema      = "3F000"
	codeNoPermission  = "42501"
	codeDiskFull      = "53100"
	codeTooMany       = "53300"
	codeShutdown      = "57P01"
	codeCrash         = "57P02"
	codeStarting      = "57P03"
	codeNoStatement   = "26000"
	codeStatementTwin = "42P05"
	codeUntranslated  = "22P05"
	codeNoDatabase    = "3D000"
	codeCanceled      = "57014"
)

// A Failure is an error of the driver or the server, without their text: that may
// quote keys, results and passwords. It keeps what a decision or a person needs:
// the SQLSTATE, and what idem knows about it.
type Failure struct {
	Code string // SQLSTATE; empty where the server did not answer
	Sent bool   // bytes of the statement may have reached the server

	login bool   // the server answered to the opening of a connection
	stale bool   // the connection was dead before anything was sent on it
	fatal bool   // the server ended the session with this answer
	row   bool   // what was waited for was another transaction's row
	wrote bool   // what was sent changes something: set by [Failure.asMove]
	cause string // our words, where there is no code
	ctx   error  // the context's error, where that was the reason
}

// newFailure classifies err, which came from a statement that ran under ctx. The
// result is nil for nil, ctx's own error where nothing had been sent and ctx is
// over, and else a *Failure. sent is false where the driver had not got as far as
// a connection.
func newFailure(ctx context.Context, err error, sent bool) error {
	if err == nil {
		return nil
	}
	var known *Failure
	if errors.As(err, &known) {
		return known
	}
	f := &Failure{Sent: sent}
	var pg *pgconn.PgError
	var state interface{ SQLState() string } // other drivers behind database/sql
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &pg):
		f.Code = pg.Code
		// A wait for a row has a context in every language. Without one, it was for
		// something short: the lock under which a table grows, as a rule.
		f.row = pg.Where != ""
		severity := pg.SeverityUnlocalized
		if severity == "" {
			severity = pg.Severity
		}
		f.fatal = severity == "FATAL" || severity == "PANIC"
	case errors.As(err, &state):
		f.Code = state.SQLState()
	}
	f.login = errors.As(err, &connect)
	if f.login || pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) {
		f.Sent = false
		f.stale = sent && f.Code == ""
	}
	if f.Code == "" {
		if over := ctx.Err(); over != nil {
			if !f.Sent {
				return over
			}
			f.ctx = over
		}
		f.cause = transport(err)
	}
	return f
}

// transport names what went wrong on the way to the server, in words of ours.
func transport(err error) string {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return "the server's name cannot be resolved; check the host in the connection settings"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens at the server's address; check host and port, and that the server runs"
	case errors.Is(err, sql.ErrConnDone), strings.Contains(err.Error(), "closed pool"), strings.Contains(err.Error(), "database is closed"):
		return "the connection pool has been closed; close it only after the last call"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "the server did not answer in time"
	}
	return "the connection to the server failed"
}

// code returns err's SQLSTATE, or "".
func code(err error) string {
	var f *Failure
	if errors.As(err, &f) {
		return f.Code
	}
	return ""
}

// isRetry reports whether the server undid the statement or transaction and wants it
// again, under a new snapshot.
func isRetry(err error) bool {
	c := code(err)
	return c == codeSerialization || c == codeDeadlock
}

// isLockTimeout reports whether another transaction held a lock for too long.
func isLockTimeout(err error) bool { return code(err) == codeLockTimeout }

// isRowLocked reports a lock timeout that was spent waiting for a row. lock_timeout
// counts for every lock, that under which a table grows included, and on a busy
// machine a short one runs out there, too: such a statement is to be sent again, while
// its caller's wait is not over. It may have been the key's after all: who waits for a
// row that has been waited for before queues for a lock (of type tuple) whose timeout
// does not say what for.
func isRowLocked(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Code == codeLockTimeout && f.row
}

// isUnique reports a violated unique constraint.
func isUnique(err error) bool { return code(err) == codeUnique }

// isStale reports whether the pool's connection was found dead before anything was
// sent on it: another one may do better.
func isStale(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.stale
}

// isUnknown reports whether what was sent may or may not have been committed.
func isUnknown(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.unknown()
}

// unknown: an ordinary error answer means that the statement, or the commit, was
// rolled back. No answer, and an answer that ends the session, do not: a server can
// be told to stop, or crash, between its commit and the reply, and a pooler reports a
// server's death in the same way (class 08).
func (f *Failure) unknown() bool {
	if !f.Sent {
		return false
	}
	switch f.Code {
	case "", codeUnknown, codeShutdown, codeCrash:
		return true
	}
	return f.fatal || strings.HasPrefix(f.Code, "08")
}

// asMove returns err as the error of a statement that changes something: it matches
// backend.ErrOutcomeUnknown where nobody knows whether it did.
func asMove(err error) error {
	var f *Failure
	if !errors.As(err, &f) || !f.unknown() {
		return err
	}
	g := *f
	g.wrote = true
	return &g
}

// asRead returns err as the error of a statement that only reads: where the context
// is over, that is the reason and nothing else matters.
func asRead(err error) error {
	var f *Failure
	if errors.As(err, &f) && f.ctx != nil {
		return f.ctx
	}
	return err
}

// Error says what happened, what would be right and whether a retry is safe.
func (f *Failure) Error() string {
	var b strings.Builder
	b.WriteString("idem: ")
	if f.wrote {
		b.WriteString("outcome unknown: ")
	}
	what, right := f.words()
	b.WriteString(what)
	if f.Code != "" {
		b.WriteString(" (SQLSTATE " + f.Code + ")")
	}
	if right != "" {
		b.WriteString("; " + right)
	}
	switch {
	case f.wrote:
		b.WriteString("; sending the same request again is safe and learns the truth")
	case f.unknown():
		b.WriteString("; whether it took effect is not known")
	default:
		b.WriteString("; nothing was changed, a retry is safe")
	}
	return b.String()
}

func (f *Failure) words() (what, right string) {
	switch f.Code {
	case "":
		if f.ctx != nil {
			return "the server had not answered when the context ended: " + f.ctx.Error(), ""
		}
		return f.cause, ""
	case codeSerialization:
		return "the server wants the transaction again", ""
	case codeDeadlock:
		return "the server broke a deadlock", ""
	case codeUnknown:
		return "the server does not know whether it committed", ""
	case codeLockTimeout:
		return "another transaction holds the record", "wait for it"
	case codeUnique:
		return "a record with this key is there already", ""
	case codeReadOnly:
		return "the server accepts no writes", "connect to the primary, with default_transaction_read_only off"
	case codeNoTable, codeNoColumn, codeNoSchema:
		return "the schema of the store is missing or not complete", "run its migrations, and check the schema and table prefix in the options"
	case codeNoPermission:
		return "the role has no permission", "grant it SELECT, INSERT, UPDATE and DELETE on the store's tables and USAGE on its sequence and schema"
	case codeDiskFull:
		return "the server's disk is full", "make room"
	case codeTooMany:
		return "the server has no connection left", "raise its limit, or make the pool smaller"
	case codeShutdown, codeCrash:
		return "the server ended the session", ""
	case codeStarting:
		return "the server is starting or stopping", "wait until it is up"
	case codeNoStatement, codeStatementTwin:
		return "a prepared statement is not where the driver left it", "behind a pooler that shares connections, use QueryExecModeExec or give PgBouncer a max_prepared_statements"
	case codeUntranslated:
		return "the database's encoding cannot keep the text", "use a database with encoding UTF8"
	case codeNoDatabase:
		return "there is no such database", "check its name in the connection settings"
	case codeCanceled:
		return "the server cancelled the statement", "check statement_timeout, if nobody cancelled it"
	}
	switch f.Code[:min(2, len(f.Code))] {
	case "08":
		return "the connection to the server failed", ""
	case "28":
		return "the server refused the login", "check role and password in the connection settings"
	case "53":
		return "the server has run out of a resource", ""
	}
	if f.login {
		return "the server refused the connection", "check the connection settings"
	}
	return "the server refused the statement", ""
}

// Unwrap gives the context's error and backend.ErrOutcomeUnknown, where they apply.
// The driver's error is not among them: it may quote data.
func (f *Failure) Unwrap() []error {
	var errs []error
	if f.wrote {
		errs = append(errs, backend.ErrOutcomeUnknown)
	}
	if f.ctx != nil {
		errs = append(errs, f.ctx)
	}
	return errs
}
