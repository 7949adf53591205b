package benchcmd

import (
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// lineEvery is the time between two lines of progress where there is no terminal.
const lineEvery = 5 * time.Second

// steps is the fineness of the bar.
const steps = 1000

// screen shows how far a run has come: a bar on a terminal, else a line now and then.
type screen struct {
	mu     sync.Mutex
	w      io.Writer
	bar    *progressbar.ProgressBar // nil: lines
	begun  time.Time
	last   time.Time
	closed bool
}

func newScreen(w io.Writer) *screen {
	s := &screen{w: w, begun: time.Now(), last: time.Now()}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.bar = progressbar.NewOptions(steps,
			progressbar.OptionSetWriter(w),
			progressbar.OptionUseANSICodes(os.Getenv("TERM") != "dumb"),
			progressbar.OptionSetWidth(24),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionSetElapsedTime(true),
			progressbar.OptionThrottle(100*time.Millisecond),
		)
	}
	return s
}

// show brings the display up to date; done is from 0 to 1.
func (s *screen) show(done float64, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if math.IsNaN(done) {
		done = 0
	}
	done = min(max(done, 0), 1)
	if s.bar != nil {
		s.bar.Describe(fmt.Sprintf("%-44.44s", what))
		_ = s.bar.Set(int(done * steps))
		return
	}
	if time.Since(s.last) < lineEvery {
		return
	}
	s.last = time.Now()
	fmt.Fprintf(s.w, "bench: %3.0f %%, %v: %s\n", done*100, time.Since(s.begun).Round(time.Second), what)
}

// say writes a line, above the bar where there is one.
func (s *screen) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil && !s.closed {
		_ = s.bar.Clear()
	}
	fmt.Fprintf(s.w, "bench: "+format+"\n", args...)
	if s.bar != nil && !s.closed {
		_ = s.bar.RenderBlank()
	}
}

// close takes the bar away. It may be called again.
func (s *screen) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil && !s.closed {
		_ = s.bar.Clear()
	}
	s.closed = true
}
