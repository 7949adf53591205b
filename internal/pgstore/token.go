package pgstore

import (
	"database/sql/driver"
	"encoding/hex"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// token is 16 bytes in a column of type uuid: the primary key, the owner. It speaks
// to pgx in binary and to database/sql in text.
type token [16]byte

// UUIDValue implements pgtype.UUIDValuer.
func (t token) UUIDValue() (pgtype.UUID, error) { return pgtype.UUID{Bytes: t, Valid: true}, nil }

// ScanUUID implements pgtype.UUIDScanner.
func (t *token) ScanUUID(u pgtype.UUID) error {
	if !u.Valid {
		return fmt.Errorf("a uuid is NULL")
	}
	*t = u.Bytes
	return nil
}

// Value implements driver.Valuer.
func (t token) Value() (driver.Value, error) {
	var b [36]byte
	hex.Encode(b[0:8], t[0:4])
	hex.Encode(b[9:13], t[4:6])
	hex.Encode(b[14:18], t[6:8])
	hex.Encode(b[19:23], t[8:10])
	hex.Encode(b[24:36], t[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:]), nil
}

// Scan implements sql.Scanner.
func (t *token) Scan(src any) error {
	var u pgtype.UUID
	if err := u.Scan(src); err != nil {
		return err
	}
	return t.ScanUUID(u)
}
