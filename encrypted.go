package idem

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/goidem/idem/backend"
)

// Encrypted wraps a codec so that results, failure messages included, are
// encrypted where they are stored: AES-256-GCM with a random nonce, bound to the
// record's identity, so that a result cannot be moved to another key.
//
// The first key encrypts; all keys decrypt. To rotate, put the new key first and
// drop the old one when the longest replay window has passed. Random nonces bound
// the use of one key to about 2^32 results.
//
// The code of a permanent failure is stored in the clear where the inner codec
// cannot encode a failure, as Raw cannot; codes are names, and no place for secrets.
//
// It fails with ErrInvalidOption without an inner codec, without keys, or with an
// all-zero or repeated key.
func Encrypted(inner Codec, keys ...[32]byte) (Codec, error) {
	if inner == nil {
		return nil, fmt.Errorf("%w: Encrypted without a codec to wrap", ErrInvalidOption)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: Encrypted without a key", ErrInvalidOption)
	}
	c := &encryptedCodec{inner: inner}
	for i, key := range keys {
		if key == ([32]byte{}) {
			return nil, fmt.Errorf("%w: encryption key %d is all zero", ErrInvalidOption, i+1)
		}
		block, err := aes.NewCipher(key[:])
		if err != nil {
			return nil, fmt.Errorf("%w: encryption key %d: %w", ErrInvalidOption, i+1, err)
		}
		gcm, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, fmt.Errorf("%w: encryption key %d: %w", ErrInvalidOption, i+1, err)
		}
		k := sealingKey{name: keyName(key), gcm: gcm}
		for _, other := range c.keys {
			if other.name == k.name {
				return nil, fmt.Errorf("%w: encryption key %d is given twice", ErrInvalidOption, i+1)
			}
		}
		c.keys = append(c.keys, k)
	}
	return c, nil
}

// encryptedVersion is the first byte of every encrypted result; it is followed by
// the name of the key, then nonce and ciphertext.
const encryptedVersion = 1

type encryptedCodec struct {
	inner Codec
	keys  []sealingKey
}

type sealingKey struct {
	name [4]byte
	gcm  cipher.AEAD
}

// keyName tells keys apart without telling anything about them.
func keyName(key [32]byte) [4]byte {
	sum := sha256.Sum256(append([]byte("idem key name"), key[:]...))
	return [4]byte(sum[:4])
}

func (c *encryptedCodec) Name() string { return "aesgcm+" + c.inner.Name() }

func (c *encryptedCodec) Encode(id backend.ID, v any) ([]byte, error) {
	plain, err := c.inner.Encode(id, v)
	if err != nil {
		return nil, err
	}
	k := c.keys[0]
	out := append([]byte{encryptedVersion}, k.name[:]...)
	return k.gcm.Seal(out, nil, plain, c.bind(id)), nil
}

// bind is the associated data: a result decrypts only in its own record and only
// for the codec that made it.
func (c *encryptedCodec) bind(id backend.ID) []byte {
	return append(id.AppendTo(nil), "\x00"+c.inner.Name()...)
}

func (c *encryptedCodec) Decode(id backend.ID, data []byte, v any) error {
	if len(data) < 5 {
		return errors.New("idem: encrypted result is cut short")
	}
	if data[0] != encryptedVersion {
		return &backend.VersionError{What: "encrypted result", Found: int(data[0]), Known: encryptedVersion}
	}
	for _, k := range c.keys {
		if string(k.name[:]) != string(data[1:5]) {
			continue
		}
		plain, err := k.gcm.Open(nil, nil, data[5:], c.bind(id))
		if err != nil {
			return errors.New("idem: encrypted result does not authenticate")
		}
		return c.inner.Decode(id, plain, v)
	}
	return errors.New("idem: none of the keys given encrypted this result; keep old keys until the replay window has passed")
}
