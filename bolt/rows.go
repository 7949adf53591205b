package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

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
	open     map[openPart]tailPart // where to append, found once
	wrote    bool
	scratch  [generationNameSize]byte
	scratch8 [seqSize]byte
}

// openPart names a generation that is appended to; its part is 0.
type openPart struct {
	prefix byte
	g      generation
}

// tailPart is the last part of a generation.
type tailPart struct {
	g generation
	b *bbolt.Bucket
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
	return r.top.Bucket(g.appendName(r.scratch[:0], prefix))
}

// seqKey is seqKey for a key that bbolt does not keep.
func (r *rows) seqKey(seq uint64) []byte {
	binary.BigEndian.PutUint64(r.scratch8[:], seq)
	return r.scratch8[:]
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
	rec, body, err := r.readBare(id, hash, g, seq)
	if err == nil {
		err = r.attach(&rec, body)
	}
	if err != nil {
		return backend.Record{}, err
	}
	return rec, nil
}

// readBare is readSettled without a result that is apart.
func (r *rows) readBare(id backend.ID, hash uint64, g generation, seq uint64) (backend.Record, bodyAt, error) {
	b := r.bucket(g, recordPrefix)
	if b == nil {
		return backend.Record{}, bodyAt{}, nil
	}
	v := b.Get(r.seqKey(seq))
	if v == nil {
		return backend.Record{}, bodyAt{}, nil
	}
	rec, body, err := parseRow(v, hash)
	if err != nil || rec.ID != id {
		return backend.Record{}, body, err
	}
	return rec, body, nil
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
// in which part and under which sequence. value must not change until the
// transaction has ended.
func (r *rows) appendSettled(g generation, value []byte) (generation, uint64, error) {
	return r.append(recordPrefix, g, value)
}

// append writes a row at the end of the last part of a generation, or into a new
// part if that is full.
func (r *rows) append(prefix byte, g generation, value []byte) (generation, uint64, error) {
	g.part = 0
	name := openPart{prefix, g}
	t, found := r.open[name]
	if !found {
		t = r.lastPart(prefix, g)
	}
	if t.b == nil || t.b.Sequence() >= partLimit(len(value)) {
		if t.b != nil {
			t.g.part++
		}
		var err error
		if t.b, err = r.top.CreateBucketIfNotExists(t.g.name(prefix)); err != nil {
			return g, 0, err
		}
		t.b.FillPercent, found = fill, false
	}
	if !found {
		if r.open == nil {
			r.open = make(map[openPart]tailPart, 2)
		}
		r.open[name] = t
	}
	r.wrote = true
	seq, err := t.b.NextSequence()
	if err != nil {
		return g, 0, err
	}
	if seq > maxPart {
		return g, 0, fmt.Errorf("%w: a part of a generation counts %d records", ErrDamaged, seq)
	}
	return t.g, seq, t.b.Put(seqKey(seq), value)
}

// lastPart returns the last part of a generation that is there, or part 0 without
// a bucket.
func (r *rows) lastPart(prefix byte, g generation) tailPart {
	last := g
	last.part = math.MaxUint32
	c := r.top.Cursor()
	// Behind all parts there always is a bucket: that of the pending records.
	k, _ := c.Seek(last.appendName(r.scratch[:0], prefix))
	if found, ok := parseGeneration(k, prefix); !ok || found != last {
		k, _ = c.Prev()
	}
	found, ok := parseGeneration(k, prefix)
	if !ok || found.class != g.class || found.index != g.index {
		return tailPart{g: g}
	}
	b := r.bucket(found, prefix)
	b.FillPercent = fill
	return tailPart{found, b}
}

// deleteSettled removes the record of id at (g, seq), its result and its index
// entry. It makes sure that the record there is that of id: the place may be old,
// and its number may have been given to another generation since.
func (r *rows) deleteSettled(id backend.ID, hash uint64, g generation, seq uint64) error {
	rec, body, err := r.readBare(id, hash, g, seq)
	if err != nil || rec.State == 0 {
		return err
	}
	r.wrote = true
	if err := r.deleteBody(&rec, body); err != nil {
		return err
	}
	if err := r.bucket(g, recordPrefix).Delete(seqKey(seq)); err != nil {
		return err
	}
	if x := r.bucket(g, indexPrefix); x != nil && seq <= x.Sequence() {
		return x.Delete(indexKey(hash, seq))
	}
	return nil
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

// checkFormat refuses a file whose layout this code does not know: reading it all
// the same would miss records, and operations would run again. A newer layout that
// old code may still use says so in its oldest version (R28).
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
	if written, err := r.metaNumber(metaFormat); err != nil || written < format {
		return errors.Join(errOldFormat, err)
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
