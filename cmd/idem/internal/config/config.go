// Package config finds the file of policies that a command uses, and says what it
// means for one scope. The format is that of package policyfile.
package config

import (
	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/expiry"
	"github.com/goidem/idem/expiry/policyfile"
)

// Env is the environment variable that names the file where no flag does.
const Env = "IDEM_CONFIG"

// Error is a file of policies that cannot be used by a command that was about to
// run something.
type Error struct{ err error }

// Error says what is wrong with the file, and that nothing happened.
func (e *Error) Error() string { return e.err.Error() + "; nothing was run" }

// Unwrap returns the [*policyfile.Error].
func (e *Error) Unwrap() error { return e.err }

// Config is a file of policies. A nil *Config is none: everything is the default.
type Config struct{ file *policyfile.File }

// Load reads a file of policies, YAML or JSON.
func Load(path string) (*Config, error) {
	file, err := policyfile.Open(path)
	if err != nil {
		return nil, &Error{err}
	}
	return &Config{file}, nil
}

// Settings are lease and abandonment of a scope; zero fields were not given.
func (c *Config) Settings(scope idem.Scope) policyfile.Settings {
	if c == nil {
		return policyfile.Settings{}
	}
	return c.file.Settings(ID(scope))
}

// Policy is what the file says about retention, for idem.Options; nil without one.
func (c *Config) Policy() *expiry.Policy {
	if c == nil {
		return nil
	}
	return c.file.Policy()
}

// ID is a scope as package expiry asks for it.
func ID(scope idem.Scope) backend.ID {
	return backend.ID{Tenant: scope.Tenant, Operation: scope.Operation}
}
