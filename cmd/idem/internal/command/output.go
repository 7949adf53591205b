package command

import "io"

// output takes what a program writes: it passes it on at once and keeps a copy.
// It is used from one goroutine at a time.
type output struct {
	stdout, stderr io.Writer
	keep           recorder
}

// write takes one piece. A reader that has gone does not stop the program: its
// work goes on, and the output is kept.
func (o *output) write(p []byte, stderr bool) {
	o.keep.add(p, stderr)
	live := &o.stdout
	if stderr {
		live = &o.stderr
	}
	if *live != nil {
		if _, err := (*live).Write(p); err != nil {
			*live = nil
		}
	}
}

// recorder keeps the output of both streams in the order of its arrival.
type recorder struct {
	pieces []Piece
	left   int
	over   bool
	none   bool
}

// add keeps p. Once the limit is passed nothing is kept at all: half an output
// must not be replayed as the whole.
func (r *recorder) add(p []byte, stderr bool) {
	if r.none || r.over {
		return
	}
	if len(p) > r.left {
		r.over, r.pieces = true, nil
		return
	}
	r.left -= len(p)
	if n := len(r.pieces); n > 0 && r.pieces[n-1].Stderr == stderr {
		r.pieces[n-1].Data = append(r.pieces[n-1].Data, p...)
		return
	}
	r.pieces = append(r.pieces, Piece{Stderr: stderr, Data: append([]byte{}, p...)})
}

func (r *recorder) outcome() Outcome {
	return Outcome{Output: r.pieces, Dropped: r.over, NotKept: r.none}
}
