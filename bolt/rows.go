package bolt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem/backend"
)

// rows reads and writes our buckets inside one bbolt transaction. It is used by
// one goroutine at a time and dies with the transaction; what it returns is
// copied, unless the comment says otherwise.
type rows struct {
	tx       *bbolt.Tx
	top      *bbolt.Bucket
	pend     *bbolt.Bucket
	open     map[generation]*bbolt.Bucket // handles, so that FillPercent is set once
	wrote    bool
	scratch  [generationNameSize]byte
	scratch8 [seqSize]byte
}

// fill is how full pages of appended records get; bbolt's default of one half is
// for keys that arrive in random order and would double the file.
const fill = 0.9

// newRows returns the accessor for tx, or an error if tx does not hold our
// buckets.
func newRows(tx *bbolt.Tx) (*rows, error) {
	top := tx.Bucket([]byte(topName))
	if top == nil {
		return nil, fmt.Errorf("%w: its bucket %q is missing", ErrNotStore, topName)
	}
	return &rows{tx: tx, top: top}, nil
}

func (r *rows) pending() (*bbolt.Bucket, error) {
	if r.pend == nil {
		if r.pend = r.top.Bucket([]byte(pendingName)); r.pend == nil {
			return nil, fmt.Errorf("%w: its bucket %q is missing", ErrDamaged, pendingName)
		}
	}
	return r.pend, nil
}

// bucket returns a generation's bucket with the given prefix, nil if it is not
// there.
func (r *rows) bucket(g generation, prefix byte) *bbolt.Bucket {
	r.scratch[0], r.scratch[1] = prefix, g.class
	binary.BigEndian.PutUint64(r.scratch[2:], g.index)
	return r.top.Bucket(r.scratch[:])
}

// readPending returns the pending record of id, zero if there is none.
func (r *rows) readPending(id backend.ID) (backend.Record, error) {
	b, err := r.pending()
	if err != nil {
		return backend.Record{}, err
	}
	v := b.Get(id.AppendTo(nil))
	if v == nil {
		return backend.Record{}, nil
	}
	return parseFor(id, v)
}

// readSettled returns the settled record at (g, seq) if it is that of id, else
// the zero Record.
func (r *rows) readSettled(id backend.ID, hash uint64, g generation, seq uint64) (backend.Record, error) {
	b := r.bucket(g, recordPrefix)
	if b == nil {
		return backend.Record{}, nil
	}
	binary.BigEndian.PutUint64(r.scratch8[:], seq)
	v := b.Get(r.scratch8[:])
	if v == nil {
		return backend.Record{}, nil
	}
	rec, err := parseRow(v, hash)
	if err != nil || rec.ID != id {
		return backend.Record{}, err
	}
	return rec, nil
}

// parseRow parses a settled record that was looked for under a hash. A row under
// another hash is another key's, and has taken a place that was given up, only if
// the record itself says so: else the hash is damaged, and taking the record for
// absent would run its operation again.
func parseRow(v []byte, hash uint64) (backend.Record, error) {
	if len(v) < hashSize {
		return backend.Record{}, fmt.Errorf("%w: a row of %d bytes", backend.ErrCorruptRecord, len(v))
	}
	rec, err := backend.ParseRecord(v[hashSize:])
	if prefix := binary.BigEndian.Uint64(v); err == nil && prefix != hash && hashOf(rec.ID) != prefix {
		return backend.Record{}, fmt.Errorf("%w: its hash is that of another key", backend.ErrCorruptRecord)
	}
	return rec, err
}

// parseFor parses a record that was found under id's own name.
func parseFor(id backend.ID, v []byte) (backend.Record, error) {
	rec, err := backend.ParseRecord(v)
	if err == nil && rec.ID != id {
		return backend.Record{}, fmt.Errorf("%w: it is stored under the name of another key", backend.ErrCorruptRecord)
	}
	return rec, err
}

// putPending writes an unsettled record. value must not change until the
// transaction has ended.
func (r *rows) putPending(id backend.ID, value []byte) error {
	b, err := r.pending()
	if err != nil {
		return err
	}
	r.wrote = true
	return b.Put(id.AppendTo(nil), value)
}

func (r *rows) deletePending(id backend.ID) error {
	b, err := r.pending()
	if err != nil {
		return err
	}
	r.wrote = true
	return b.Delete(id.AppendTo(nil))
}

// appendSettled writes a settled record at the end of its generation and returns
// its sequence. value must not change until the transaction has ended.
func (r *rows) appendSettled(g generation, value []byte) (uint64, error) {
	b := r.open[g]
	if b == nil {
		var err error
		if b, err = r.top.CreateBucketIfNotExists(g.name(recordPrefix)); err != nil {
			return 0, err
		}
		b.FillPercent = fill
		if r.open == nil {
			r.open = make(map[generation]*bbolt.Bucket, 1)
		}
		r.open[g] = b
	}
	r.wrote = true
	seq, err := b.NextSequence()
	if err != nil {
		return 0, err
	}
	if seq > maxSeq {
		return 0, fmt.Errorf("%w: a generation counts %d records", ErrDamaged, seq)
	}
	return seq, b.Put(seqKey(seq), value)
}

// deleteSettled removes the record of id at (g, seq) and its index entry. It
// makes sure that the record there is that of id: the place may be old, and its
// number may have been given to another generation since.
func (r *rows) deleteSettled(id backend.ID, hash uint64, g generation, seq uint64) error {
	rec, err := r.readSettled(id, hash, g, seq)
	if err != nil || rec.State == 0 {
		return err
	}
	r.wrote = true
	if err := r.bucket(g, recordPrefix).Delete(seqKey(seq)); err != nil {
		return err
	}
	if x := r.bucket(g, indexPrefix); x != nil && seq <= x.Sequence() {
		return x.Delete(indexKey(hash, seq))
	}
	return nil
}

// drop removes a whole generation.
func (r *rows) drop(g generation) error {
	for _, prefix := range []byte{recordPrefix, indexPrefix} {
		if r.bucket(g, prefix) == nil {
			continue
		}
		r.wrote = true
		delete(r.open, g)
		if err := r.top.DeleteBucket(g.name(prefix)); err != nil {
			return err
		}
	}
	return nil
}

// dropDue removes the generations that are due at now, if there are too many of all
// kinds.
func (r *rows) dropDue(now time.Time) error {
	gens := r.generations()
	if len(gens) <= crowd {
		return nil
	}
	for _, g := range gens {
		if g.due(now) {
			if err := r.drop(g); err != nil {
				return err
			}
		}
	}
	return nil
}

// live returns the generations without those that are due, if there are too many
// to go on with all of them: every record in those has expired.
func (r *rows) live(now time.Time) []generation {
	gens := r.generations()
	if len(gens) <= crowd {
		return gens
	}
	return slices.DeleteFunc(gens, func(g generation) bool { return g.due(now) })
}

// generations returns the generations that have a record bucket.
func (r *rows) generations() []generation {
	var found []generation
	c := r.top.Cursor()
	for k, _ := c.Seek([]byte{recordPrefix}); len(k) > 0 && k[0] == recordPrefix; k, _ = c.Next() {
		if g, ok := parseGeneration(k); ok {
			found = append(found, g)
		}
	}
	return found
}

// metaNumber reads a number from the meta bucket; zero if it is not there.
func (r *rows) metaNumber(key string) (uint64, error) {
	b := r.top.Bucket([]byte(metaName))
	if b == nil {
		return 0, fmt.Errorf("%w: its bucket %q is missing", ErrDamaged, metaName)
	}
	v := b.Get([]byte(key))
	if v == nil {
		return 0, nil
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: %q in its bucket %q has %d bytes, not 8", ErrDamaged, key, metaName, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}

func (r *rows) setMetaNumber(key string, n uint64) error {
	b := r.top.Bucket([]byte(metaName))
	if b == nil {
		return fmt.Errorf("%w: its bucket %q is missing", ErrDamaged, metaName)
	}
	r.wrote = true
	return b.Put([]byte(key), binary.BigEndian.AppendUint64(nil, n))
}

// initialise creates our buckets in a file that does not have them.
func initialise(tx *bbolt.Tx) error {
	top, err := tx.CreateBucket([]byte(topName))
	if err != nil {
		return err
	}
	for _, name := range []string{metaName, pendingName} {
		if _, err := top.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	r := &rows{tx: tx, top: top}
	for _, key := range []string{metaFormat, metaOldest} {
		if err := r.setMetaNumber(key, format); err != nil {
			return err
		}
	}
	return r.setMetaNumber(metaFence, 0)
}

// checkFormat refuses a file whose layout this code does not know. A newer
// layout that old code may still use says so in its oldest version (R28).
func (r *rows) checkFormat() error {
	oldest, err := r.metaNumber(metaOldest)
	if err != nil {
		return err
	}
	if oldest == 0 {
		return fmt.Errorf("%w: it states no format", ErrDamaged)
	}
	if oldest > format {
		return &backend.VersionError{What: "schema", Found: int(oldest), Known: format}
	}
	return nil
}

// same reports whether the pending row of id holds exactly value.
func (r *rows) samePending(id backend.ID, value []byte) (bool, error) {
	b, err := r.pending()
	if err != nil {
		return false, err
	}
	return bytes.Equal(b.Get(id.AppendTo(nil)), value), nil
}

// sameSettled reports whether (g, seq) holds exactly value.
func (r *rows) sameSettled(g generation, seq uint64, value []byte) bool {
	b := r.bucket(g, recordPrefix)
	return b != nil && bytes.Equal(b.Get(seqKey(seq)), value)
}
