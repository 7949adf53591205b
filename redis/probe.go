package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
)

// terms is what a caller accepts and asks for beyond the defaults.
type terms struct {
	acceptEviction string // an evicting policy that the caller has accepted by its name
	ackReplicas    int    // as in Options
	ackFsync       bool
}

// serverInfo is what was found out about the servers, the oldest of which decides.
type serverInfo struct {
	version string // in words: "7.0.15", "Valkey 8.1.0"; empty where none would say
	major   int    // of the Redis version that the server is compatible with; 0 if unknown
	minor   int
	masters int // how many servers take writes
}

// facts are what one server says about itself.
type facts struct {
	info     map[string]string // INFO; nil where the user may not ask
	config   map[string]string // CONFIG GET; nil where the user may not ask
	sentinel bool              // the client follows Sentinel
}

// settings are what CONFIG is asked for.
//
// lint:const a list
var settings = []string{
	"maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "no-appendfsync-on-rewrite",
	"save", "min-replicas-to-write",
}

// probe asks every server that takes writes what it is and how it is set, refuses
// what cannot work or has not been accepted, and says what the store gives. The
// weakest server decides.
func probe(ctx context.Context, client redis.UniversalClient, t terms) (backend.Guarantees, serverInfo, error) {
	var none backend.Guarantees
	nodes, err := masters(ctx, client)
	if err != nil {
		return none, serverInfo{}, readFault(ctx, err)
	}
	if len(nodes) == 0 {
		return none, serverInfo{}, errors.New("idem: the redis client knows no server that takes writes; try again")
	}
	var all []grades
	info := serverInfo{masters: len(nodes)}
	for _, node := range nodes {
		f := facts{sentinel: followsSentinel(client)}
		if err := f.ask(ctx, node); err != nil {
			return none, serverInfo{}, err
		}
		if err := f.usable(ctx, node, &info); err != nil {
			return none, serverInfo{}, err
		}
		g, err := f.grade(t)
		if err != nil {
			return none, serverInfo{}, err
		}
		all = append(all, g)
		if err := checkAcks(ctx, node, t, f.version()); err != nil {
			return none, serverInfo{}, err
		}
	}
	return weakest(all), info, nil
}

// followsSentinel reports whether a client asks Sentinel for its server.
func followsSentinel(client redis.UniversalClient) bool {
	c, ok := client.(*redis.Client)
	// What the client library puts in the place of an address.
	return ok && c.Options().Addr == "FailoverClient"
}

// ask fills in what a server says. What it refuses to say stays nil.
func (f *facts) ask(ctx context.Context, node redis.UniversalClient) error {
	info := redis.NewStringCmd(ctx, "info")
	if err := (direct{client: node}).do(ctx, info); err != nil {
		return readFault(ctx, err)
	}
	switch err := info.Err(); {
	case err == nil:
		f.info = infoFields(info.Val())
	case !forbidden(err):
		return readFault(ctx, err)
	}
	if v := f.info["redis_version"]; f.info != nil && f.info["valkey_version"] == "" && !atLeast(v, oldestServer, 0) {
		return nil // it would not understand the next question
	}
	args := []any{"config", "get"}
	for _, s := range settings {
		args = append(args, s)
	}
	config := redis.NewMapStringStringCmd(ctx, args...)
	if err := (direct{client: node}).do(ctx, config); err != nil {
		return readFault(ctx, err)
	}
	switch err := config.Err(); {
	case err == nil:
		f.config = config.Val()
	case !forbidden(err):
		return readFault(ctx, err)
	}
	return nil
}

// forbidden reports whether a server answered that a command is not for this user:
// by its rights, or because whoever runs the server has renamed or removed it.
func forbidden(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	return strings.HasPrefix(reply.Error(), "NOPERM ") || strings.HasPrefix(reply.Error(), "ERR ")
}

// version returns the server's version in words, "" if it would not say.
func (f *facts) version() string {
	if v := f.info["valkey_version"]; v != "" {
		return "Valkey " + v
	}
	return f.info["redis_version"]
}

// usable refuses a server on which the store cannot work, and notes the oldest
// version.
func (f *facts) usable(ctx context.Context, node redis.UniversalClient, oldest *serverInfo) error {
	if f.info == nil {
		// Whether the server has what is needed shows in what it understands.
		known := redis.NewCmd(ctx, "pexpiretime", DefaultPrefix+"probe")
		if err := (direct{client: node}).do(ctx, known); err != nil {
			return readFault(ctx, err)
		}
		if err := known.Err(); err != nil {
			if unknownCommand(err) {
				return &ServerVersionError{Need: "7.0"}
			}
			if !forbidden(err) {
				return readFault(ctx, err)
			}
		}
		return nil
	}
	// Valkey began from Redis 7.2 and gives that as its redis_version.
	v := f.info["redis_version"]
	if f.info["valkey_version"] != "" && !atLeast(v, 7, 2) {
		v = "7.2.0"
	}
	if !atLeast(v, oldestServer, 0) {
		return &ServerVersionError{Found: v, Need: "7.0"}
	}
	if major, minor := parseVersion(v); oldest.version == "" || major < oldest.major || major == oldest.major && minor < oldest.minor {
		oldest.version, oldest.major, oldest.minor = f.version(), major, minor
	}
	if f.info["redis_mode"] == "sentinel" {
		return fmt.Errorf("%w: the redis client is connected to a Sentinel, which stores nothing; use a failover client with the name of its master", backend.ErrInvalidRequest)
	}
	if f.info["role"] == "slave" {
		return &RefusedError{Code: "READONLY", Reason: refusal("READONLY")}
	}
	return nil
}

func unknownCommand(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && strings.HasPrefix(strings.ToLower(reply.Error()), "err unknown command")
}

// parseVersion returns the first two numbers of a version, zeros for what is none.
func parseVersion(v string) (major, minor int) {
	first, rest, _ := strings.Cut(v, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, _ = strconv.Atoi(first)
	minor, _ = strconv.Atoi(second)
	return major, minor
}

func atLeast(v string, major, minor int) bool {
	a, b := parseVersion(v)
	return a > major || a == major && b >= minor
}

// weakest joins what several servers give: each grade is the lowest, and a finding
// that holds for some of them says for how many.
func weakest(all []grades) backend.Guarantees {
	g := backend.Guarantees{
		ProcessCrash: backend.Survives, MachineCrash: backend.Survives, Failover: backend.Survives,
		ServerClock: true, Shared: true,
	}
	count := make(map[backend.Finding]int)
	order := make(map[backend.Finding]int)
	for _, one := range all {
		g.ProcessCrash = min(g.ProcessCrash, one.process)
		g.MachineCrash = min(g.MachineCrash, one.machine)
		g.Failover = min(g.Failover, one.failover)
		for _, f := range one.findings {
			if count[f]++; count[f] == 1 {
				order[f] = len(order)
			}
		}
	}
	for _, f := range slices.SortedFunc(maps.Keys(count), func(a, b backend.Finding) int { return order[a] - order[b] }) {
		if n := count[f]; n < len(all) {
			f.Text += fmt.Sprintf(" (on %d of %d masters)", n, len(all))
		}
		g.Findings = append(g.Findings, f)
	}
	return g
}
