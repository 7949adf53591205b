package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"

	"github.com/goidem/idem"
)

// Recover returns the option that asks a shell command about an abandoned run. It
// finds IDEM_OPERATION, IDEM_TENANT, IDEM_KEY and IDEM_DERIVED_KEY in its
// environment. Status 0 says that the run took effect, and what it wrote to its
// standard output is the run's output; 1 says that it did not. Anything else
// leaves the key as it is (*[RecoverError]).
func Recover(script string, scope idem.Scope, key idem.Key, stderr io.Writer) idem.CallOption {
	return idem.RecoverWith(func(ctx context.Context) (Outcome, bool, error) {
		var stdout bytes.Buffer
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script)
		cmd.Env = append(os.Environ(), identity(scope, key)...)
		cmd.Stdout, cmd.Stderr = &stdout, stderr
		cmd.WaitDelay = stopGrace
		err := cmd.Run()
		var exit *exec.ExitError
		switch {
		case err == nil && stdout.Len() > DefaultMaxOutput:
			return Outcome{Dropped: true}, true, nil
		case err == nil && stdout.Len() == 0:
			return Outcome{}, true, nil
		case err == nil:
			return Outcome{Output: []Piece{{Data: stdout.Bytes()}}}, true, nil
		case errors.As(err, &exit) && exit.ExitCode() == 1:
			return Outcome{}, false, nil
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		}
		return Outcome{}, false, &RecoverError{Scope: scope, Err: err}
	})
}
