package batch

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Screen is where a batch shows itself: the commands' output in whole pieces,
// messages, and how far it has come: a bar on a terminal, else a line every few
// seconds.
type Screen struct {
	stdout, stderr io.Writer
	counts         *Counts
	total          int64 // records; negative: not known
	begun          time.Time
	json           bool // the summary is for programs

	mu   sync.Mutex
	bar  *progressbar.ProgressBar // nil: lines
	done chan struct{}
	wg   sync.WaitGroup
}

// Progress says how progress is shown.
type Progress string

// The ways.
const (
	Auto  Progress = "auto"  // a bar on a terminal, lines elsewhere
	Plain Progress = "plain" // lines
	None  Progress = "none"
	JSON  Progress = "json" // none, and the summary as one JSON object
)

// Intervals between two looks at the counts.
const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 5 * time.Second
)

// NewScreen returns a screen that shows progress until it is closed. total is the
// number of records, negative where it is not known.
func NewScreen(stdout, stderr *os.File, how Progress, total int64, counts *Counts) *Screen {
	s := &Screen{stdout: stdout, stderr: stderr, counts: counts, total: total, begun: time.Now(), done: make(chan struct{})}
	every := lineEvery
	switch {
	case how == None:
		return s
	case how == JSON:
		s.json = true
		return s
	case how == Auto && term.IsTerminal(int(stderr.Fd())):
		every = barEvery
		s.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(stderr),
			progressbar.OptionUseANSICodes(os.Getenv("TERM") != "dumb"),
			progressbar.OptionSetWidth(20),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString("rec"),
			progressbar.OptionSetPredictTime(total >= 0),
			progressbar.OptionShowElapsedTimeOnFinish(),
		)
	}
	s.wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.show()
			case <-s.done:
				return
			}
		}
	})
	return s
}

// show brings the display up to date.
func (s *Screen) show() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar == nil {
		fmt.Fprintln(s.stderr, "idem: "+s.line())
		return
	}
	s.bar.Describe(s.numbers())
	_ = s.bar.Set64(s.counts.Done())
}

// numbers are the counts in words.
func (s *Screen) numbers() string {
	c := s.counts
	text := fmt.Sprintf("%d run, %d done before, %d failed, %d in flight", c.Of(Executed), c.Of(Replayed), c.Bad(), c.Running())
	return text
}

// line is the display of those who have no terminal.
func (s *Screen) line() string {
	done, took := s.counts.Done(), time.Since(s.begun)
	text := fmt.Sprintf("%d", done)
	if s.total >= 0 {
		text += fmt.Sprintf(" of %d", s.total)
	}
	rate := float64(done) / max(took.Seconds(), 0.001)
	text += fmt.Sprintf(" records, %.0f/s: %s", rate, s.numbers())
	if s.total > done && done > 0 {
		left := time.Duration(float64(s.total-done) / rate * float64(time.Second))
		text += fmt.Sprintf("; %v left", left.Round(time.Second))
	}
	return text
}

// above writes something above the bar.
func (s *Screen) above(write func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear()
	}
	write()
	if s.bar != nil {
		_ = s.bar.RenderBlank()
	}
}

// output passes on what one command wrote.
func (s *Screen) output(stdout, stderr *spool) {
	s.above(func() {
		stdout.pass(s.stdout)
		stderr.pass(s.stderr)
	})
}

// Say writes a line to standard error.
func (s *Screen) Say(format string, args ...any) {
	s.above(func() { fmt.Fprintf(s.stderr, format+"\n", args...) })
}

// Close ends the display and says how it came out.
func (s *Screen) Close() {
	close(s.done)
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar != nil {
		_ = s.bar.Clear()
	}
	c := s.counts
	if s.json {
		_ = json.NewEncoder(s.stderr).Encode(c.summary(time.Since(s.begun)))
		return
	}
	text := fmt.Sprintf("idem: %d records: %d run, %d done before", c.Done()+c.Of(NotStarted), c.Of(Executed), c.Of(Replayed))
	for _, part := range []struct {
		kind Kind
		word string
	}{
		{Failed, "failed"}, {InFlight, "being run by others"}, {Unresolved, "unresolved"},
		{NoStore, "without an answer of the store"}, {Interrupted, "stopped"}, {NotStarted, "not started"},
	} {
		if n := c.Of(part.kind); n > 0 {
			text += fmt.Sprintf(", %d %s", n, part.word)
		}
	}
	took := time.Since(s.begun)
	fmt.Fprintf(s.stderr, "%s; %v, %.0f/s\n", text, took.Round(time.Millisecond), float64(c.Done())/max(took.Seconds(), 0.001))
}

// summary is the JSON form of a batch that has ended.
func (c *Counts) summary(took time.Duration) map[string]any {
	return map[string]any{
		"records": c.Done() + c.Of(NotStarted), "executed": c.Of(Executed), "replayed": c.Of(Replayed),
		"failed": c.Of(Failed), "inFlight": c.Of(InFlight), "unresolved": c.Of(Unresolved), "resultGone": c.Of(Gone),
		"noStore": c.Of(NoStore), "interrupted": c.Of(Interrupted), "notStarted": c.Of(NotStarted),
		"seconds": took.Seconds(),
	}
}
