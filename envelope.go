package idem

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/goidem/idem/backend"
)

// The stored form of an outcome, the body of a record, version 1:
//
//	byte   version (1)
//	byte   kind
//	byte+  codec name (kinds result and failure)
//	...    what the codec made of the result or of the failure
//
// It is never empty, so that a record whose body got lost is not taken for one
// with an empty result.
const (
	envelopeVersion = 1

	kindResult      = 'r' // encoded by the codec
	kindNone        = 'n' // the operation returns nothing (struct{}, nil)
	kindNilBytes    = 'z' // a nil []byte, kept apart from an empty one
	kindUnavailable = 'u' // took effect, result not storable
	kindFailure     = 'f' // a storedFailure, encoded by the codec
	kindFailureCode = 'c' // the bare code of a failure that the codec refused
)

// storedFailure is what the codec is given for a permanent failure.
type storedFailure struct {
	Code    string `json:"code"`
	Message string `json:"message,omitempty"`
}

// maxFailureText cuts codes and messages of failures, in bytes.
const maxFailureText = 64 << 10

// forCodec returns what the codec is given for a result: the result, or a pointer
// to it where its type is an interface. A codec that saw the value alone could not
// know that it will be asked to decode into that interface.
func forCodec[T any](v *T) any {
	if typeOf[T]().Kind() == reflect.Interface && any(*v) != nil {
		return v
	}
	return *v
}

// noBody reports whether a result is that of an operation which returns nothing.
func noBody(v any) bool {
	_, none := v.(struct{})
	return none || v == nil
}

// encodeResult returns the body for a result. It never fails: what cannot be
// stored is stored as unavailable, because the effect is done (R16).
func (s *Store) encodeResult(id backend.ID, v any) []byte {
	switch v := v.(type) {
	case nil, struct{}:
		return []byte{envelopeVersion, kindNone}
	case []byte:
		if v == nil {
			return []byte{envelopeVersion, kindNilBytes}
		}
	}
	body, err := s.encode(id, kindResult, v)
	if err != nil {
		return []byte{envelopeVersion, kindUnavailable}
	}
	return body
}

// encodeFailure returns the body for a permanent failure. Where the codec refuses
// it (one made for a single message type), the code alone is kept.
func (s *Store) encodeFailure(id backend.ID, f *FailedError) []byte {
	code, message := cut(f.Code), cut(f.Message)
	if body, err := s.encode(id, kindFailure, storedFailure{Code: code, Message: message}); err == nil {
		return body
	}
	return append([]byte{envelopeVersion, kindFailureCode}, code...)
}

func cut(s string) string { return s[:min(len(s), maxFailureText)] }

func (s *Store) encode(id backend.ID, kind byte, v any) (body []byte, err error) {
	// A codec is the caller's code and sees the caller's value. If it panics, the
	// effect has happened all the same and must be recorded.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("idem: the codec panicked: %v", r)
		}
	}()
	data, err := s.o.Codec.Encode(id, v)
	if err != nil {
		return nil, err
	}
	name := s.o.Codec.Name()
	size := 3 + len(name) + len(data)
	if size > backend.MaxBody {
		return nil, fmt.Errorf("idem: a result of %d bytes; at most %d can be stored", size, backend.MaxBody)
	}
	body = append(make([]byte, 0, size), envelopeVersion, kind, byte(len(name)))
	return append(append(body, name...), data...), nil
}

// envelope is a parsed body.
type envelope struct {
	kind  byte
	codec string
	data  []byte
}

func parseEnvelope(body []byte) (envelope, error) {
	if len(body) < 2 {
		return envelope{}, fmt.Errorf("%w: a settled record without its outcome", ErrCorruptRecord)
	}
	if body[0] != envelopeVersion {
		return envelope{}, &backend.VersionError{What: "result", Found: int(body[0]), Known: envelopeVersion}
	}
	e := envelope{kind: body[1]}
	switch e.kind {
	case kindNone, kindNilBytes, kindUnavailable:
		return e, nil
	case kindFailureCode:
		e.data = body[2:]
		return e, nil
	case kindResult, kindFailure:
		if len(body) < 3 || len(body) < 3+int(body[2]) {
			return envelope{}, fmt.Errorf("%w: outcome is cut short", ErrCorruptRecord)
		}
		n := 3 + int(body[2])
		e.codec, e.data = string(body[3:n]), body[n:]
		return e, nil
	}
	return envelope{}, fmt.Errorf("%w: outcome of unknown kind", ErrCorruptRecord)
}

// decodeOutcome reads the outcome of a settled record into v, a pointer to the
// result, or returns the error that stands for it.
func (s *Store) decodeOutcome(scope Scope, rec *backend.Record, v any) error {
	if rec.BodyExpired {
		return &callError{sentinel: ErrResultExpired, scope: scope, reason: "the operation took effect, its result is no longer kept"}
	}
	e, err := parseEnvelope(rec.Body)
	if err != nil {
		return &callError{sentinel: unreadable(err), scope: scope, reason: "nothing was run", cause: err}
	}
	if (rec.State == StateFailed) != (e.kind == kindFailure || e.kind == kindFailureCode) {
		return &callError{sentinel: ErrCorruptRecord, scope: scope, reason: "state and outcome contradict each other"}
	}
	switch e.kind {
	case kindNone, kindNilBytes:
		return nil
	case kindUnavailable:
		return &callError{sentinel: ErrResultUnavailable, scope: scope, reason: "the operation took effect"}
	case kindFailureCode:
		return &FailedError{Code: string(e.data)}
	case kindFailure:
		var f storedFailure
		if err := s.decode(rec.ID, e, &f); err != nil {
			return &callError{sentinel: unreadable(err), scope: scope, reason: "the stored failure does not decode", cause: hideUnlessOurs(err)}
		}
		return &FailedError{Code: f.Code, Message: f.Message}
	}
	if err := s.decode(rec.ID, e, v); err != nil {
		return &callError{sentinel: unreadable(err), scope: scope, reason: fmt.Sprintf("the stored result does not decode into %T (was the result type changed, or the key resolved with another one?); nothing was run", v), cause: hideUnlessOurs(err)}
	}
	return nil
}

// unreadable returns the sentinel for an outcome that cannot be read: one from a
// version to come is not corrupt.
func unreadable(err error) error {
	if errors.Is(err, ErrUnknownVersion) {
		return ErrUnknownVersion
	}
	return ErrCorruptRecord
}

func (s *Store) decode(id backend.ID, e envelope, v any) (err error) {
	// A codec is the caller's code and meets bytes that may be damaged or of another
	// type: its panic is a result that cannot be decoded.
	defer func() {
		if recover() != nil {
			err = errors.New("idem: the codec panicked")
		}
	}()
	codec, err := s.codecFor(e.codec)
	if err != nil {
		return err
	}
	return codec.Decode(id, e.data, v)
}

// hideUnlessOurs keeps text that a decoder took from the stored result out of
// error messages, and lets errors of idem through.
func hideUnlessOurs(err error) error {
	var version *backend.VersionError
	if errors.As(err, &version) || len(err.Error()) >= 5 && err.Error()[:5] == "idem:" {
		return err
	}
	return fmt.Errorf("idem: decoder refused it (%T)", err)
}
