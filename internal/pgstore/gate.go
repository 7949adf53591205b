package pgstore

import (
	"context"
	"sync"
	"time"
)

// gates let one caller of this process at a time into a transaction on a key (R20).
// The others wait here, without a connection: a storm of duplicates, each of them
// blocked in the database, would eat the pool.
//
// They decide nothing: the database does. Two stores on one table only wait a
// little less well.
type gates struct {
	mu   sync.Mutex
	held map[token]*gate
}

type gate struct {
	// working is closed once the holder has more before it than one look at the
	// database: its work, or a wait behind another process. A caller that fails fast
	// outwaits a look, however slow the network, but no work.
	working chan struct{}
	waiters []chan bool
}

// A pass is a caller's way through the gate of a key.
type pass struct {
	g    *gates
	id   token
	gate *gate // nil: the key was found settled, and everybody may look
}

// enter waits for the gate of id: up to wait, or, where that is not positive, up to
// brief behind somebody's work. ok is false where that time is over.
func (g *gates) enter(ctx context.Context, id token, wait, brief time.Duration) (p *pass, ok bool, err error) {
	g.mu.Lock()
	e := g.held[id]
	if e == nil {
		if g.held == nil {
			g.held = make(map[token]*gate)
		}
		e = &gate{working: make(chan struct{})}
		g.held[id] = e
		g.mu.Unlock()
		return &pass{g, id, e}, true, nil
	}
	turn := make(chan bool, 1)
	e.waiters = append(e.waiters, turn)
	working := e.working
	g.mu.Unlock()

	var over <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		over, working = t.C, nil
	}
	for {
		select {
		case mine := <-turn:
			return g.admit(id, e, mine), true, nil
		case <-working:
			t := time.NewTimer(brief)
			defer t.Stop()
			over, working = t.C, nil
			continue
		case <-over:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if g.withdraw(e, turn) {
			return nil, false, err
		}
		// The turn came at the same moment. It is passed on by who leaves.
		p := g.admit(id, e, <-turn)
		if err != nil {
			p.leave(false)
			return nil, false, err
		}
		return p, true, nil
	}
}

func (g *gates) admit(id token, e *gate, mine bool) *pass {
	if !mine {
		e = nil
	}
	return &pass{g, id, e}
}

// withdraw takes a waiter out; false if its turn has come.
func (g *gates) withdraw(e *gate, turn chan bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, w := range e.waiters {
		if w == turn {
			e.waiters = append(e.waiters[:i], e.waiters[i+1:]...)
			return true
		}
	}
	return false
}

// works tells callers that fail fast not to wait for this one.
func (p *pass) works() {
	if p.gate == nil {
		return
	}
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	select {
	case <-p.gate.working:
	default:
		close(p.gate.working)
	}
}

// leave opens the gate: to everybody where the key is settled, since nobody will
// have to wait in the database then, and else to the next in line.
func (p *pass) leave(settled bool) {
	if p.gate == nil {
		return
	}
	p.g.mu.Lock()
	defer p.g.mu.Unlock()
	e := p.gate
	p.gate = nil
	if settled || len(e.waiters) == 0 {
		delete(p.g.held, p.id)
		for _, w := range e.waiters {
			w <- false
		}
		e.waiters = nil
		return
	}
	next := e.waiters[0]
	e.waiters = e.waiters[1:]
	e.working = make(chan struct{})
	next <- true
}
