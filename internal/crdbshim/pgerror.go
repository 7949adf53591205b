package crdbshim

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgproto3"
)

// pgError is an error that the shim answers in the server's place.
type pgError struct {
	code, message, hint string
}

func refuse(code, format string, args ...any) *pgError {
	return &pgError{code: code, message: fmt.Sprintf(format, args...)}
}

func unimplemented(what string) *pgError {
	return &pgError{code: "0A000", message: "unimplemented: " + what + " is not supported",
		hint: "You have attempted to use a feature that is not yet implemented."}
}

func (e *pgError) response() *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{
		Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: e.code, Message: e.message, Hint: e.hint,
	}
}

func errSerialization() *pgError {
	return refuse("40001", "restart transaction: TransactionRetryWithProtoRefreshError: injected")
}

func errAmbiguous() *pgError {
	return refuse("40003", "result is ambiguous: injected")
}

func errAborted() *pgError {
	return refuse("25P02", "current transaction is aborted, commands ignored until end of transaction block")
}

func errCommitted() *pgError {
	return refuse("25000", "current transaction is committed, commands ignored until end of transaction block")
}

func errNoTransaction() *pgError {
	return refuse("25P01", "there is no transaction in progress")
}

func errInTransaction() *pgError {
	return refuse("25001", "there is already a transaction in progress")
}

func errNoSavepoint() *pgError {
	return refuse("3B001", "savepoint %q does not exist", restartSavepoint)
}

func errNotFirst() *pgError {
	return refuse("42601", "SAVEPOINT %q needs to be the first statement in a transaction", restartSavepoint)
}

func errNested() *pgError {
	return refuse("42601", "SAVEPOINT %q cannot be nested", restartSavepoint)
}

func errOnlyRestart() *pgError {
	return refuse("40001", "restart transaction: cannot rollback to savepoint after a transaction restart")
}
