package pgstore

import (
	"context"
	"fmt"
	"iter"

	"github.com/goidem/idem/backend"
)

const (
	// listPage is how many rows of a listing one statement reads.
	listPage = 500
	// listBody is the longest body that comes with its page, which bounds the memory
	// of a page to 8 MB; a longer one is fetched when its record is its turn.
	listBody = 16 << 10
)

// listText is one page by primary key. $1 least id, $2 tenant, $3 operation, $4
// state, $5 least age in microseconds. Columns: id, length of a body that was left
// out, the columns, the server's time.
func listText(n Names, now string) string {
	return fmt.Sprintf(`WITH clock AS MATERIALIZED (SELECT %[1]s AS t) `+
		`SELECT id, CASE WHEN octet_length(body) > %[2]d THEN octet_length(body) ELSE 0 END, %[3]sCASE WHEN octet_length(body) <= %[2]d THEN body END, t `+
		`FROM %[4]s AS r, clock WHERE r.id >= $1::uuid AND ($2::text = '' OR r.tenant = $2::text) AND ($3::text = '' OR r.operation = $3::text) `+
		`AND ($4::int2 = 0 OR r.state = $4::int2) AND ($5::int8 <= 0 OR r.reserved_at <= t - $5::int8 * interval '1 microsecond') `+
		`AND NOT %[5]s ORDER BY r.id LIMIT %[6]d`,
		now, listBody, columns[:len(columns)-len("body")], n.Records, expired, listPage)
}

// List implements backend.Backend. It pages through the primary key: between two
// pages, and between two yields, nothing is held.
func (s *Store[Tx]) List(ctx context.Context, f backend.Filter) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		var next token
		for {
			page, err := s.page(ctx, &f, next)
			for i := range page {
				rec, show, err := s.listed(ctx, &f, &page[i])
				if err != nil {
					yield(backend.Record{}, err)
					return
				}
				if show && !yield(rec, nil) {
					return
				}
			}
			if err != nil {
				yield(backend.Record{}, err)
				return
			}
			if len(page) < listPage || !next.follow(page[len(page)-1].id) {
				return
			}
		}
	}
}

// pageRow is a row of a listing.
type pageRow struct {
	row
	id   token
	left int64 // length of the body that was left out
}

// page reads the rows from id on. With an error come the rows before the broken one.
func (s *Store[Tx]) page(ctx context.Context, f *backend.Filter, from token) (page []pageRow, err error) {
	st := Stmt{SQL: s.sql.list, Args: []any{from, f.Tenant, f.Operation, int16(f.State), micros(f.OlderThan)}}
	err = s.try(ctx, func() error {
		page = page[:0]
		st.Row = func(sc Scanner) (err error) {
			var p pageRow
			if p.row, err = scanRow(sc, backend.ID{}, &p.id, &p.left); err != nil {
				return err
			}
			page = append(page, p)
			return nil
		}
		return asRead(s.db.Do(ctx, &st))
	})
	return page, err
}

// listed is the record of p as a reader sees it. Where it has a long body it is read
// again, and may be another one by now, or none.
func (s *Store[Tx]) listed(ctx context.Context, f *backend.Filter, p *pageRow) (rec backend.Record, show bool, err error) {
	if err := ctx.Err(); err != nil {
		return rec, false, err
	}
	cur := p.row
	if p.rec.ID.Sum() != p.id {
		return rec, false, fmt.Errorf("%w: the row belongs to another key", backend.ErrCorruptRecord)
	}
	if rec = cur.rec.At(cur.now); p.left > 0 && !rec.BodyExpired {
		if cur, err = s.read(ctx, rec.ID); err != nil {
			return rec, false, err
		}
		rec = cur.rec.At(cur.now)
	}
	return rec, rec.State != 0 && f.Match(&rec, cur.now), nil
}

// follow makes t the id after last; false where last is the highest of all.
func (t *token) follow(last token) bool {
	*t = last
	for i := len(t) - 1; i >= 0; i-- {
		if t[i]++; t[i] != 0 {
			return true
		}
	}
	return false
}
