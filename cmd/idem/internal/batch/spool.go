package batch

import (
	"bytes"
	"io"
	"os"
)

// inMemory is how much of a record's output is kept in memory; the rest goes to a
// temporary file.
const inMemory = 1 << 20

// spool collects what one record's command writes to one stream, so that it can be
// passed on in one piece.
type spool struct {
	memory bytes.Buffer
	file   *os.File
}

func (s *spool) Write(p []byte) (int, error) {
	if s.file != nil {
		return s.file.Write(p)
	}
	if s.memory.Len()+len(p) <= inMemory {
		return s.memory.Write(p)
	}
	f, err := os.CreateTemp("", "idem-each-*")
	if err != nil {
		return 0, err
	}
	_ = os.Remove(f.Name()) // it lives as long as it is open
	s.file = f
	return f.Write(p)
}

func (s *spool) empty() bool { return s.memory.Len() == 0 && s.file == nil }

// pass writes all that was collected to w and forgets it.
func (s *spool) pass(w io.Writer) {
	_, _ = s.memory.WriteTo(w)
	s.memory.Reset()
	if s.file != nil {
		if _, err := s.file.Seek(0, io.SeekStart); err == nil {
			_, _ = io.Copy(w, s.file)
		}
		_ = s.file.Close()
		s.file = nil
	}
}
