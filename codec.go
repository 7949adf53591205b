package idem

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"

	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/goidem/idem/backend"
)

// Codec turns a result into bytes and back. Implementations must be safe for
// concurrent use, and Decode must accept what Encode of the same name made in
// every earlier release of the program.
type Codec interface {
	// Name is stored with each result, 1 to 255 bytes, so that a store whose codec
	// was changed still reads what it wrote before.
	Name() string
	// Encode returns the bytes for v, which is a pointer to the result where the
	// result type is an interface. An error means that v cannot be stored: the
	// operation counts as completed, its result is unavailable to retries.
	Encode(id backend.ID, v any) ([]byte, error)
	// Decode stores the value of data in the variable that v points to.
	Decode(id backend.ID, data []byte, v any) error
}

// JSON returns the default codec: JSON with the meaning that encoding/json gives
// it, but a []byte is stored as it is, so that callers who forward bytes get the
// very bytes.
//
// It is the implementation of go-json-experiment/json/v1, which keeps that meaning
// and reads in about half the time; reading is what every replay pays for.
func JSON() Codec { return jsonCodec{} }

type jsonCodec struct{}

func (jsonCodec) Name() string { return "json" }

func (jsonCodec) Encode(_ backend.ID, v any) ([]byte, error) {
	if raw, ok := v.([]byte); ok {
		return raw, nil
	}
	return jsonv1.Marshal(v)
}

func (jsonCodec) Decode(_ backend.ID, data []byte, v any) error {
	if raw, ok := v.(*[]byte); ok {
		*raw = append([]byte{}, data...)
		return nil
	}
	return jsonv1.Unmarshal(data, v)
}

// Raw returns a codec for results that are bytes already: []byte and string. It
// refuses every other type.
func Raw() Codec { return rawCodec{} }

type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Encode(_ backend.ID, v any) ([]byte, error) {
	switch v := v.(type) {
	case []byte:
		return v, nil
	case string:
		return []byte(v), nil
	}
	return nil, fmt.Errorf("idem: the raw codec takes []byte and string, not %T", v)
}

func (rawCodec) Decode(_ backend.ID, data []byte, v any) error {
	switch v := v.(type) {
	case *[]byte:
		*v = append([]byte{}, data...)
	case *string:
		*v = string(data)
	default:
		return fmt.Errorf("idem: the raw codec gives []byte and string, not %T", v)
	}
	return nil
}

// Gob returns a codec over encoding/gob. It keeps Go types that JSON loses, and
// costs several times as much to read: every stored result carries its type.
func Gob() Codec { return gobCodec{} }

type gobCodec struct{}

func (gobCodec) Name() string { return "gob" }

func (gobCodec) Encode(_ backend.ID, v any) ([]byte, error) {
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(v); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func (gobCodec) Decode(_ backend.ID, data []byte, v any) error {
	return gob.NewDecoder(bytes.NewReader(data)).Decode(v)
}

// codecFor returns the codec that a stored result names: the store's own, or one
// that comes with this package.
func (s *Store) codecFor(name string) (Codec, error) {
	for _, c := range [...]Codec{s.o.Codec, jsonCodec{}, rawCodec{}, gobCodec{}} {
		if c.Name() == name {
			return c, nil
		}
	}
	return nil, errors.New("idem: it was stored with another codec than the store has")
}
