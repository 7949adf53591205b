package redis

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// lanes finds the server of a call. A Cluster has a lane for each master, so that one
// that is slow or gone holds up nobody else's calls, and nothing that another has
// answered is sent again.
//
// Calls go to the master itself, not through the Cluster client, which would send the
// commands without a key, such as the wait for acknowledgements, to any of them. So what
// a Cluster answers about slots that move is heard here.
type lanes struct {
	only    *lane // nil for a Cluster
	cluster *redis.ClusterClient
	acks    *acks

	mu    sync.Mutex
	known map[*redis.Client]*lane
}

func newLanes(client redis.UniversalClient, a *acks) *lanes {
	if c, ok := client.(*redis.ClusterClient); ok {
		return &lanes{cluster: c, acks: a, known: make(map[*redis.Client]*lane)}
	}
	return &lanes{only: newLane(client, a)}
}

const (
	// maxMoves is how often a slot is looked for on another master, in about a second.
	maxMoves = 10
	// maxLanes bounds the lanes that are known: those of masters that have left stay
	// until then.
	maxLanes = 1024
)

func (l *lanes) do(ctx context.Context, c *call) error {
	if l.only != nil {
		return l.only.do(ctx, c)
	}
	for try, asked := 0, ""; ; try++ {
		if err := l.once(ctx, c, asked); err != nil {
			return err
		}
		var again bool
		if again, asked = astray(c.cmds); !again || try == maxMoves || ctx.Err() != nil {
			return nil
		}
		// The client learns of changes by itself only from commands that it routes.
		l.cluster.ReloadState(ctx)
		if asked == "" || try > 0 {
			if !pause(ctx, time.Millisecond<<try) {
				return nil // the commands have their errors
			}
		}
	}
}

// once sends a call to the master that has its key's slot, or to the one that the
// Cluster has asked to ask.
func (l *lanes) once(ctx context.Context, c *call, asked string) error {
	c.reset()
	if asked != "" {
		if node := l.at(ctx, asked); node != nil {
			return l.ask(ctx, node, c)
		}
	}
	node, err := l.cluster.MasterForKey(ctx, c.key)
	if err != nil {
		for _, cmd := range c.cmds {
			cmd.SetErr(err)
		}
		return ctx.Err()
	}
	return l.lane(node).do(ctx, c)
}

// lane returns the lane of a master.
func (l *lanes) lane(node *redis.Client) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.known[node]
	if found == nil {
		if len(l.known) >= maxLanes {
			clear(l.known)
		}
		found = newLane(node, l.acks)
		l.known[node] = found
	}
	return found
}

// at returns the client of the master with an address, nil if none is known.
func (l *lanes) at(ctx context.Context, addr string) (found *redis.Client) {
	var mu sync.Mutex
	_ = l.cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if node.Options().Addr == addr {
			found = node
		}
		return nil
	})
	return found
}

// ask sends a call to the node that a slot is moving to. It is good for one command each.
func (l *lanes) ask(ctx context.Context, node *redis.Client, c *call) error {
	asking := &call{timed: c.timed, acked: c.acked}
	for _, cmd := range c.cmds {
		asking.cmds = append(asking.cmds, redis.NewStatusCmd(ctx, "asking"), cmd)
	}
	err := l.lane(node).carry(ctx, asking)
	if err == nil {
		c.now, c.short = asking.now, asking.short
	}
	return err
}

// astray reports whether a command has an error that another try, perhaps elsewhere,
// may mend: the slot has moved, its master is changing, or the connection is gone. asked
// is the address that the Cluster names for this one call.
func astray(cmds []redis.Cmder) (again bool, asked string) {
	for _, cmd := range cmds {
		err := cmd.Err()
		if err == nil || err == redis.Nil {
			continue
		}
		var reply redis.Error
		if !errors.As(err, &reply) {
			// The client of a Cluster's node does not send again by itself. Whether the
			// command was carried out is not known; every move may arrive twice.
			again = again || !late(cmd) && !errors.Is(err, context.Canceled)
			continue
		}
		code, rest, _ := strings.Cut(reply.Error(), " ")
		switch code {
		case "ASK":
			if _, addr, ok := strings.Cut(rest, " "); ok && asked == "" {
				asked = addr
			}
			again = true
		case "MOVED", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN":
			again = true
		}
	}
	return again, asked
}

// pause waits; it reports false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
