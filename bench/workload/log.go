package workload

// log keeps what became of a caller's operations: counting is left for later, so that
// it costs the loop nothing. It grows by pieces: copying would be a pause.
type log struct {
	full [][]uint64
	last []uint64 // number<<8 | outcome
}

const pieceLen = 1 << 12

func (l *log) add(n uint64, o outcome) {
	if len(l.last) == cap(l.last) {
		l.grow()
	}
	l.last = append(l.last, n<<8|uint64(o))
}

func (l *log) grow() {
	if l.last != nil {
		l.full = append(l.full, l.last)
	}
	l.last = make([]uint64, 0, pieceLen)
}

func (l *log) size() int64 { return int64(len(l.full)*pieceLen + len(l.last)) }

// all yields every operation.
func (l *log) all(yield func(n uint64, o outcome) bool) {
	for _, piece := range append(l.full[:len(l.full):len(l.full)], l.last) {
		for _, entry := range piece {
			if !yield(entry>>8, outcome(entry&0xff)) {
				return
			}
		}
	}
}
