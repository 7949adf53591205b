package crdbshim

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is what goes wrong.
type Kind uint8

const (
	// Serialization answers SQLSTATE 40001 in place of running the statement. At a commit, nothing is
	// committed.
	Serialization Kind = iota + 1
	// Ambiguous answers SQLSTATE 40003: the client cannot know whether the commit took effect. It did
	// if Applied is set.
	Ambiguous
	// CutBeforeCommit cuts the client's connection in place of running the statement, and ends the
	// server's session, which rolls its transaction back. With Delay the client loses its connection
	// first and the server's transaction stays open for so long.
	CutBeforeCommit
	// CutAfterCommit runs the statement and cuts the connection in place of the answer. With Delay the
	// connection is cut first and the statement runs so much later: a commit that is still in flight
	// when its client has given up.
	CutAfterCommit
	// Stall holds the statement back for Delay, or its answer if Applied is set. Once Delay is over it
	// runs, even if the client has left. Without Delay it is held until the client leaves, and then
	// never runs.
	Stall
)

// Fault says what goes wrong, and where.
//
// The place is a statement, or with AtCommit a commit: COMMIT, RELEASE SAVEPOINT cockroach_restart, or
// the end of an implicit transaction that wrote something, which is the end of a pipeline or of a
// query outside a transaction block. SQL and Match narrow statements by their text, without case in
// SQL; commits by the text of any statement of the transaction.
//
// The kinds about commits work on other statements, too. Outside a transaction block Ambiguous and
// CutAfterCommit then befall the commit that ends the statement's pipeline or query.
//
// COPY FROM STDIN is never met by a fault.
type Fault struct {
	Kind     Kind
	AtCommit bool
	SQL      string
	Match    *regexp.Regexp
	After    int  // lets so many go by first
	Times    int  // happens so many times; 0 is once
	Applied  bool // see Ambiguous and Stall
	Delay    time.Duration

	// Deliver hands the client the answers that precede the cut in the same pipeline. Else they are
	// lost, because a server sends at the end of a pipeline what it had to say.
	Deliver bool
}

// Injected is a fault that waits to happen.
type Injected struct {
	Fault
	mu    *sync.Mutex
	left  int
	after int
	fired int
}

// Fired returns how many times the fault really happened.
func (f *Injected) Fired() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

// Remove keeps the fault from happening again.
func (f *Injected) Remove() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = 0
}

// faults are the faults of a shim. Its lock guards all of them, so that sessions that reach a fault
// at the same time cannot both be the last one it befalls.
type faults struct {
	mu    sync.Mutex
	list  []*Injected
	fired int
}

func (fs *faults) add(f Fault) *Injected {
	in := &Injected{Fault: f, mu: &fs.mu, left: max(f.Times, 1), after: f.After}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.list = slices.DeleteFunc(fs.list, func(old *Injected) bool { return old.left == 0 })
	fs.list = append(fs.list, in)
	return in
}

func (fs *faults) clear() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.list {
		f.left = 0
	}
	fs.list = nil
}

func (fs *faults) happened(f *Injected) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.fired++
	fs.fired++
}

func (fs *faults) total() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.fired
}

// mayMeet reports whether a fault could befall st or a commit that it leads to. It changes nothing.
func (fs *faults) mayMeet(st *statement) bool {
	if st.kind == copyIn {
		return false
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.ContainsFunc(fs.list, func(f *Injected) bool {
		if f.left == 0 {
			return false
		}
		if f.AtCommit {
			return st.commits() || st.writes
		}
		return f.matches(st.text)
	})
}

// take returns the fault that befalls a commit of the transaction that consisted of texts, or, when
// atCommit is false, the statement whose text it is, and uses it up. Otherwise it returns nil.
func (fs *faults) take(atCommit bool, texts ...string) *Injected {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.list {
		if f.left == 0 || f.AtCommit != atCommit {
			continue
		}
		if (f.SQL != "" || f.Match != nil) && !slices.ContainsFunc(texts, f.matches) {
			continue
		}
		if f.after > 0 {
			f.after--
			continue
		}
		f.left--
		return f
	}
	return nil
}

func (f *Injected) matches(text string) bool {
	if f.SQL != "" && !strings.Contains(strings.ToLower(text), strings.ToLower(f.SQL)) {
		return false
	}
	return f.Match == nil || f.Match.MatchString(text)
}
