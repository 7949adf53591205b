package bolt

import (
	"cmp"
	"slices"
	"time"
)

// group is one bucket of what is dropped together: a part of a generation of
// records or of results.
type group struct {
	prefix byte
	g      generation
	rows   uint64 // about how many there are
}

// Bounds of a sweep, in rows. A commit drops what one part may hold, so that the
// writes beside it do not wait long; a call ends after a while, so that whoever
// sweeps can look at how the others fare.
const (
	dropRows   = partRows
	expireRows = 32 * partRows
	// groupCost is what dropping a bucket costs, in rows, however few it has.
	groupCost = 128
)

// groups returns the generations that have a bucket with this prefix, part by
// part.
func (r *rows) groups(prefix byte) []generation {
	var found []generation
	c := r.top.Cursor()
	for k, _ := c.Seek([]byte{prefix}); len(k) > 0 && k[0] == prefix; k, _ = c.Next() {
		if g, ok := parseGeneration(k, prefix); ok {
			found = append(found, g)
		}
	}
	return found
}

// generations returns the parts of generations that have a record bucket.
func (r *rows) generations() []generation { return r.groups(recordPrefix) }

// due returns the groups with this prefix that are due at now, and how many there
// are of them in all. Exact counts of rows take a look at every page of those that
// are due.
func (r *rows) due(prefix byte, now time.Time, exact bool) (due []group, all int) {
	for _, g := range r.groups(prefix) {
		all++
		if !g.due(now) {
			continue
		}
		d := group{prefix: prefix, g: g}
		if b := r.bucket(g, prefix); exact {
			d.rows = uint64(b.Stats().KeyN)
		} else {
			d.rows = b.Sequence()
		}
		due = append(due, d)
	}
	return due, all
}

// inOrder sorts groups as they are to be dropped: those that ended first go first,
// and results before the records that they belong to.
func inOrder(groups []group) {
	slices.SortFunc(groups, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.g.end(), b.g.end()), cmp.Compare(a.prefix, b.prefix),
			cmp.Compare(a.g.class, b.g.class), cmp.Compare(a.g.part, b.g.part))
	})
}

// piece cuts from due what one commit drops.
func piece(due []group) (now, later []group, rows uint64) {
	cost := uint64(0)
	for i, d := range due {
		if cost += d.rows + groupCost; i > 0 && cost > dropRows {
			return due[:i], due[i:], rows
		}
		rows += d.rows
	}
	return due, nil, rows
}

// drop removes those of the groups that are still due at now, and returns them: the
// clock may have been set back since they were found (R24). What has no window, or
// one that is not over, is in none of them: unsettled records live elsewhere, and
// the end of a generation is that of the last window in it.
//
// No result stays behind the record it belongs to: results that end before a
// dropped record may have, go with it.
func (r *rows) drop(groups []group, now time.Time) (dropped []group, err error) {
	last := uint64(0)
	for _, d := range groups {
		if d.prefix == recordPrefix && d.g.due(now) {
			last = max(last, d.g.end())
		}
	}
	if last > 0 {
		for _, g := range r.groups(bodyPrefix) {
			if g.end() <= last && !slices.ContainsFunc(groups, func(d group) bool { return d.prefix == bodyPrefix && d.g == g }) {
				groups = append(slices.Clip(groups), group{prefix: bodyPrefix, g: g})
			}
		}
	}
	ended := uint64(0)
	for _, d := range groups {
		if !d.g.due(now) {
			continue
		}
		there, err := r.dropBucket(d.prefix, d.g)
		if err != nil {
			return nil, err
		}
		if d.prefix == bodyPrefix {
			if !there {
				continue // another sweep was faster, and counts it
			}
			ended = max(ended, d.g.end())
		} else if _, err := r.dropBucket(indexPrefix, d.g); err != nil {
			return nil, err
		}
		dropped = append(dropped, d)
	}
	if ended == 0 {
		return dropped, nil
	}
	// From now on a result that is missing was dropped, if it ended no later.
	before, err := r.metaNumber(metaBodies)
	if err == nil && ended > before {
		err = r.setMetaNumber(metaBodies, ended)
	}
	return dropped, err
}

// dropBucket removes a part's bucket, if it is there.
func (r *rows) dropBucket(prefix byte, g generation) (there bool, err error) {
	if r.bucket(g, prefix) == nil {
		return false, nil
	}
	r.wrote = true
	name := openPart{prefix, g}
	name.g.part = 0
	delete(r.open, name)
	return true, r.top.DeleteBucket(g.name(prefix))
}

// dropCrowd removes what is due at now, if there are too many groups of all kinds.
func (r *rows) dropCrowd(now time.Time) error {
	due, records := r.due(recordPrefix, now, false)
	bodies, results := r.due(bodyPrefix, now, false)
	if records <= crowd && results <= crowd {
		return nil
	}
	due = append(due, bodies...)
	inOrder(due)
	_, err := r.drop(due, now)
	return err
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
