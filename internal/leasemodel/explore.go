package leasemodel

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// Model is one exploration: a protocol, where it starts, and what must hold.
type Model struct {
	Off        Switch // clauses turned off
	Start      []State
	Invariants []Invariant
	Limit      int          // most states to visit; 0: no limit
	Visit      func(*State) // if not nil, called once for every state
}

// Report is the outcome of an exploration.
type Report struct {
	States, Edges int
	Depth         int  // steps to the state farthest from a start
	Complete      bool // every reachable state was visited
	Broken        *Invariant
	Trace         []string // steps to the violation, the fewest there are
}

// node is how a state was found first: from which node, as which of its
// successors. A start has no parent and counts among the starts.
type node struct {
	parent int32
	nth    uint16
}

// search is the progress of one exploration. It knows a visited state by a 64-bit
// hash, which is seeded anew in each run: among n states one is overlooked with a
// probability of about n²/2⁶⁵, less than one in ten million for a million states.
type search struct {
	model *Model
	seed  maphash.Seed
	seen  map[uint64]struct{}
	nodes []node
	next  []State // the level after the current one
}

func (x *search) add(s State, from node) {
	h := maphash.Comparable(x.seed, s)
	if _, ok := x.seen[h]; ok {
		return
	}
	x.seen[h] = struct{}{}
	x.nodes = append(x.nodes, from)
	x.next = append(x.next, s)
	if x.model.Visit != nil {
		x.model.Visit(&s)
	}
}

// Explore visits the reachable states breadth first and stops at the first
// violation.
func (m *Model) Explore() (rep Report) {
	x := &search{model: m, seed: maphash.MakeSeed(), seen: make(map[uint64]struct{})}
	for i, s := range m.Start {
		x.add(s, node{-1, uint16(i)})
	}
	var level []State
	for first := 0; len(x.next) > 0; first += len(level) {
		level, x.next = x.next, level[:0:0]
		for i := range level {
			if m.Limit > 0 && len(x.nodes) > m.Limit {
				rep.States = len(x.nodes)
				return rep
			}
			if x.expand(&level[i], int32(first+i), &rep); rep.Broken != nil {
				rep.States = len(x.nodes)
				return rep
			}
		}
		rep.Depth++
	}
	rep.Depth--
	rep.States, rep.Complete = len(x.nodes), true
	return rep
}

// expand visits the successors of one state.
func (x *search) expand(from *State, index int32, rep *Report) {
	var nth uint16
	x.model.Off.Next(*from, func(ev Event, to State) {
		if rep.Broken != nil {
			return
		}
		rep.Edges++
		e := Edge{From: from, To: &to, Event: ev}
		for k := range x.model.Invariants {
			if inv := &x.model.Invariants[k]; !inv.Holds(e) {
				rep.Broken, rep.Trace = inv, x.trace(node{index, nth})
				return
			}
		}
		x.add(to, node{index, nth})
		nth++
	})
}

// trace takes the path to last again and renders it.
func (x *search) trace(last node) []string {
	var path []node
	for at := last; ; at = x.nodes[at.parent] {
		path = append(path, at)
		if at.parent < 0 {
			break
		}
	}
	var lines []string
	cur := x.model.Start[path[len(path)-1].nth]
	for k := len(path) - 2; k >= 0; k-- {
		var (
			nth  uint16
			from = cur
		)
		x.model.Off.Next(from, func(ev Event, to State) {
			if nth == path[k].nth {
				lines = append(lines, fmt.Sprintf("%2d. %s", len(lines)+1, describe(&from, ev, &to)))
				cur = to
			}
			nth++
		})
	}
	return lines
}

// String renders the report with its trace.
func (r Report) String() string {
	if r.Broken == nil {
		return fmt.Sprintf("nothing broken in %d states, %d steps, depth %d (complete: %t)", r.States, r.Edges, r.Depth, r.Complete)
	}
	return fmt.Sprintf("breaks %s (%s): %s\n%s", r.Broken.Name, r.Broken.Rule, r.Broken.Means, strings.Join(r.Trace, "\n"))
}
