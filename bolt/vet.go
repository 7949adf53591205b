package bolt

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
)

// bbolt trusts the file: what a damaged page makes of it is a panic, partly on a
// goroutine of bbolt's own where nobody can catch it, or a fault beyond the end of
// a file that was cut. So the file is looked at before bbolt sees it.
//
// The layout of a page, in the byte order of the machine:
//
//	uint64 id, uint16 flags, uint16 count, uint32 overflow, then the content
const (
	pageHeader  = 16
	metaSize    = 64
	elementSize = 16 // of a branch or leaf element
	bucketSize  = 16 // root page and sequence, in front of an inline page

	boltMagic   = 0xED0CDAED
	boltVersion = 2
	noFreelist  = ^uint64(0)

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	bucketElement = 0x01
)

// metaPage is bbolt's own header. There are two; the valid one with the higher
// transaction counts.
type metaPage struct {
	pageSize uint64
	root     uint64
	freelist uint64
	pages    uint64 // pages in use: the file has at least so many
	txid     uint64
}

// verdicts on one meta page.
const (
	metaForeign = iota // not a meta page at all
	metaTorn           // a meta page whose write did not finish
	metaValid
)

func parseMeta(page []byte) (m metaPage, verdict int) {
	if len(page) < pageHeader+metaSize {
		return m, metaForeign
	}
	b, order := page[pageHeader:pageHeader+metaSize], binary.NativeEndian
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion {
		return m, metaForeign
	}
	m = metaPage{
		pageSize: uint64(order.Uint32(b[8:])),
		root:     order.Uint64(b[16:]),
		freelist: order.Uint64(b[32:]),
		pages:    order.Uint64(b[40:]),
		txid:     order.Uint64(b[48:]),
	}
	sum := fnv.New64a()
	_, _ = sum.Write(b[:56])
	if sum.Sum64() != order.Uint64(b[56:]) || m.pageSize < 512 || m.pageSize > 1<<24 {
		return m, metaTorn
	}
	return m, metaValid
}

// vet refuses a file that is no bbolt file or a damaged one. All pages are looked
// at if that is asked for, or if bbolt is going to: to write to a file without a
// free list it walks all of it, on a goroutine of its own. It reports whether it
// did.
func vet(f *os.File, thorough, writes bool) (all bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if err := regular(info); err != nil {
		return false, err
	}
	m, err := findMeta(f, info.Size())
	if err != nil {
		return false, err
	}
	if m.pages > uint64(info.Size())/m.pageSize {
		return false, fmt.Errorf("%w: the file has %d bytes and needs %d: it was cut short", ErrDamaged, info.Size(), m.pages*m.pageSize)
	}
	if m.root < 2 || m.root >= m.pages || m.freelist != noFreelist && (m.freelist < 2 || m.freelist >= m.pages) {
		return false, fmt.Errorf("%w: its header points outside of it", ErrDamaged)
	}
	if !thorough && !writes {
		return false, nil
	}
	w := &pageWalk{file: f, m: m, seen: make([]uint64, m.pages/64+1)}
	if !thorough && m.freelist != noFreelist {
		// A list with a wrong number in it makes bbolt write beyond the end of the file,
		// or over a page that is in use.
		return false, w.free(m.freelist)
	}
	if err := w.tree(m.root, nil, nil); err != nil || m.freelist == noFreelist {
		return true, err
	}
	return true, w.free(m.freelist)
}

// findMeta returns the header that bbolt will use.
func findMeta(f *os.File, size int64) (metaPage, error) {
	first := make([]byte, 4096)
	n, _ := f.ReadAt(first, 0)
	m0, v0 := parseMeta(first[:n])
	second := make([]byte, pageHeader+metaSize)
	var m1 metaPage
	v1 := metaForeign
	if v0 == metaValid {
		n, _ := f.ReadAt(second, int64(m0.pageSize))
		m1, v1 = parseMeta(second[:n])
	} else {
		// The size of a page is not known: try them all, as bbolt does.
		for at := int64(1024); at <= 1024<<14 && at < size && v1 == metaForeign; at *= 2 {
			n, _ := f.ReadAt(second, at)
			m1, v1 = parseMeta(second[:n])
		}
	}
	switch {
	case v0 == metaForeign && v1 == metaForeign:
		return m0, fmt.Errorf("%w: not a bbolt file", ErrNotStore)
	case v0 == metaForeign || v1 == metaForeign:
		// An unfinished write leaves a page with the right beginning. This one was
		// overwritten by something else, and it may have been the later of the two:
		// going on with the other would forget what was acknowledged last.
		return m0, fmt.Errorf("%w: one of its two headers was overwritten", ErrDamaged)
	case v0 == metaTorn && v1 == metaTorn:
		return m0, fmt.Errorf("%w: both of its headers are broken", ErrDamaged)
	case v0 == metaTorn || v1 == metaValid && m1.txid > m0.txid:
		return m1, nil
	}
	return m0, nil
}

// pageWalk checks all pages that can be reached from the root. It reads the file
// instead of mapping it: that is faster than the page faults of a new mapping, and
// a page that the disk cannot deliver is an error and not a fault.
type pageWalk struct {
	file   *os.File
	m      metaPage
	seen   []uint64 // bit set of pages
	depth  int
	window []byte // part of the file, from page first on
	first  uint64
}

// windowSize is how much is read at once: pages that belong together were mostly
// written together.
const windowSize = 256 << 10

func damagedPage(id uint64, what string) error {
	return fmt.Errorf("%w: page %d %s", ErrDamaged, id, what)
}

// maxPageDepth bounds the recursion; a tree of this depth would not fit any disk.
const maxPageDepth = 64

// page returns the bytes of a page with its overflow, and takes note of it. They
// are valid until the next call.
func (w *pageWalk) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.m.pages {
		return nil, damagedPage(id, "is outside of the file")
	}
	head, err := w.read(id, 1)
	if err != nil {
		return nil, err
	}
	order := binary.NativeEndian
	if order.Uint64(head) != id {
		return nil, damagedPage(id, "does not carry its own number")
	}
	more := uint64(order.Uint32(head[12:]))
	if id+more >= w.m.pages {
		return nil, damagedPage(id, "reaches beyond the file")
	}
	for p := id; p <= id+more; p++ {
		if w.seen[p/64]&(1<<(p%64)) != 0 {
			return nil, damagedPage(p, "is used twice")
		}
		w.seen[p/64] |= 1 << (p % 64)
	}
	return w.read(id, more+1)
}

// read returns n pages.
func (w *pageWalk) read(id, n uint64) ([]byte, error) {
	size := w.m.pageSize
	if have := uint64(len(w.window)) / size; id < w.first || id+n > w.first+have {
		want := min(max(n, windowSize/size), w.m.pages-id)
		if uint64(cap(w.window)) < want*size {
			w.window = make([]byte, want*size)
		}
		w.window, w.first = w.window[:want*size], id
		if _, err := w.file.ReadAt(w.window, int64(id*size)); err != nil {
			w.window = w.window[:0]
			return nil, fmt.Errorf("%w: page %d cannot be read: %w", ErrDamaged, id, err)
		}
	}
	at := (id - w.first) * size
	return w.window[at : at+n*size], nil
}

// tree checks the page and all below it. Its keys must lie in [low, high).
func (w *pageWalk) tree(id uint64, low, high []byte) error {
	if w.depth++; w.depth > maxPageDepth {
		return damagedPage(id, "is nested too deeply")
	}
	defer func() { w.depth-- }()
	p, err := w.page(id)
	if err != nil {
		return err
	}
	return w.content(id, p, low, high)
}

// content checks the elements of a branch or leaf page, inline ones included.
func (w *pageWalk) content(id uint64, p []byte, low, high []byte) error {
	order := binary.NativeEndian
	flags, count := order.Uint16(p[8:]), uint64(order.Uint16(p[10:]))
	if flags != branchPage && flags != leafPage {
		return damagedPage(id, "is neither branch nor leaf")
	}
	if pageHeader+count*elementSize > uint64(len(p)) {
		return damagedPage(id, "has more elements than room")
	}
	if flags == branchPage && count == 0 {
		return damagedPage(id, "is an empty branch")
	}
	if flags == branchPage || hasBuckets(p, count) {
		p = bytes.Clone(p) // what is below is read before the end of this page
	}
	var last []byte
	for i := range count {
		at := pageHeader + i*elementSize
		e := p[at : at+elementSize]
		var key, value []byte
		var child uint64
		var elem uint32
		if flags == branchPage {
			key, child = cut(p, at+uint64(order.Uint32(e)), uint64(order.Uint32(e[4:]))), order.Uint64(e[8:])
		} else {
			elem = order.Uint32(e)
			start, size := at+uint64(order.Uint32(e[4:])), uint64(order.Uint32(e[8:]))
			key, value = cut(p, start, size), cut(p, start+size, uint64(order.Uint32(e[12:])))
			if value == nil {
				return damagedPage(id, "has a value outside of it")
			}
		}
		switch {
		case key == nil:
			return damagedPage(id, "has a key outside of it")
		case i == 0 && low != nil && bytes.Compare(key, low) < 0, i > 0 && bytes.Compare(last, key) >= 0:
			return damagedPage(id, "has keys out of order")
		case high != nil && bytes.Compare(key, high) >= 0:
			return damagedPage(id, "has keys that belong elsewhere")
		}
		last = key
		switch {
		case flags == branchPage:
			below := high
			if i+1 < count {
				n := p[at+elementSize:]
				if below = cut(p, at+elementSize+uint64(order.Uint32(n)), uint64(order.Uint32(n[4:]))); below == nil {
					return damagedPage(id, "has a key outside of it")
				}
			}
			if err := w.tree(child, key, below); err != nil {
				return err
			}
		case elem&bucketElement != 0:
			if err := w.bucket(id, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// hasBuckets reports whether an element of a leaf page is a bucket.
func hasBuckets(p []byte, count uint64) bool {
	for i := range count {
		if binary.NativeEndian.Uint32(p[pageHeader+i*elementSize:])&bucketElement != 0 {
			return true
		}
	}
	return false
}

// bucket checks a nested bucket: a tree of its own, or an inline page.
func (w *pageWalk) bucket(id uint64, value []byte) error {
	if len(value) < bucketSize {
		return damagedPage(id, "has a bucket that is cut short")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return w.tree(root, nil, nil)
	}
	inline := value[bucketSize:]
	if len(inline) < pageHeader || binary.NativeEndian.Uint16(inline[8:]) != leafPage {
		return damagedPage(id, "has a small bucket that is no leaf")
	}
	return w.content(id, inline, nil, nil)
}

// free checks the list of free pages: none may be in use.
func (w *pageWalk) free(id uint64) error {
	p, err := w.page(id)
	if err != nil {
		return err
	}
	order := binary.NativeEndian
	if order.Uint16(p[8:]) != freelistPage {
		return damagedPage(id, "is not a list of free pages")
	}
	count, ids := uint64(order.Uint16(p[10:])), p[pageHeader:]
	if count == 0xFFFF {
		count, ids = order.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids))/8 {
		return damagedPage(id, "has more entries than room")
	}
	for last := uint64(1); count > 0; count, ids = count-1, ids[8:] {
		free := order.Uint64(ids)
		if free <= last || free >= w.m.pages || w.seen[free/64]&(1<<(free%64)) != 0 {
			return damagedPage(free, "is listed as free and is not")
		}
		last = free
	}
	return nil
}

// cut returns size bytes of p from start, never nil unless they are outside.
func cut(p []byte, start, size uint64) []byte {
	if start > uint64(len(p)) || size > uint64(len(p))-start {
		return nil
	}
	return p[start : start+size : start+size]
}
