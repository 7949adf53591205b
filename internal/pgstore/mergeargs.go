package pgstore

import (
	"database/sql/driver"
	"encoding/hex"
	"math"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"
)

// column is an array on its way to the server: one argument for many rows. It speaks to
// pgx in binary, which the server reads without parsing, and to database/sql in the text
// of an array. Elements go by pointer, so that none of them is boxed.
type column[T any, P element[T]] []T

// element is a value in a [column]: *T knows how pgx's codecs ask for it, and its text.
type element[T any] interface {
	*T
	// appendText appends the element as it stands in the text of an array.
	appendText(b []byte) []byte
}

// Dimensions implements pgtype.ArrayGetter.
func (c column[T, P]) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(c)), LowerBound: 1}}
}

// Index implements pgtype.ArrayGetter.
func (c column[T, P]) Index(i int) any { return P(&c[i]) }

// IndexType implements pgtype.ArrayGetter.
func (c column[T, P]) IndexType() any { return P(new(T)) }

// Value implements driver.Valuer.
func (c column[T, P]) Value() (driver.Value, error) {
	b := append(make([]byte, 0, 2+40*len(c)), '{')
	for i := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = P(&c[i]).appendText(b)
	}
	return string(append(b, '}')), nil
}

func (t *token) appendText(b []byte) []byte { return hex.AppendEncode(b, t[:]) }

// number is an element of an array of integers of any size; noNumber is NULL.
type number int64

const noNumber number = math.MinInt64

// Int64Value implements pgtype.Int64Valuer.
func (n *number) Int64Value() (pgtype.Int8, error) {
	return pgtype.Int8{Int64: int64(*n), Valid: *n != noNumber}, nil
}

func (n *number) appendText(b []byte) []byte {
	if *n == noNumber {
		return append(b, "NULL"...)
	}
	return strconv.AppendInt(b, int64(*n), 10)
}

// word is an element of an array of texts.
type word string

// TextValue implements pgtype.TextValuer.
func (w *word) TextValue() (pgtype.Text, error) {
	return pgtype.Text{String: string(*w), Valid: true}, nil
}

func (w *word) appendText(b []byte) []byte {
	b = append(b, '"')
	for i := range len(*w) {
		if c := (*w)[i]; c == '"' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, (*w)[i])
	}
	return append(b, '"')
}

// blob is an element of an array of byte strings; an empty one is NULL.
type blob []byte

// BytesValue implements pgtype.BytesValuer.
func (v *blob) BytesValue() ([]byte, error) {
	if len(*v) == 0 {
		return nil, nil
	}
	return *v, nil
}

func (v *blob) appendText(b []byte) []byte {
	if len(*v) == 0 {
		return append(b, "NULL"...)
	}
	return hex.AppendEncode(append(b, `\\x`...), *v)
}

// The columns of merged statements.
type (
	tokens  = column[token, *token]
	numbers = column[number, *number]
	words   = column[word, *word]
	blobs   = column[blob, *blob]
)
