package redis

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
)

// Store keeps records in Redis. Use [New] or [Open]; methods are safe for
// concurrent use.
type Store struct {
	client redis.UniversalClient
	run    runner
	acks   *acks // nil: a write is done when the master has answered
	lua    scripts
	kept   *keeper
	prefix string
	found  backend.Guarantees
	own    bool // the client was made by Open
}

var _ backend.Backend = (*Store)(nil)

// DefaultPrefix begins the name of every key of a store, unless Options say
// otherwise.
const DefaultPrefix = "idem:"

const maxPrefix = 128

// Options change how a Store works. The zero value and nil are the defaults.
type Options struct {
	// Prefix begins the name of every key that the store writes. Stores with
	// different prefixes share a server without seeing each other. Empty means
	// DefaultPrefix. Braces are refused: they would steer the keys to one slot of a
	// Cluster.
	Prefix string

	// AcceptEviction names the maxmemory-policy that the caller accepts although it
	// may remove records before their time. Empty refuses every policy but
	// noeviction, with an [*EvictionError].
	AcceptEviction string
	// AckReplicas is how many replicas must have a reservation, renewal or
	// completion before it counts as done (WAIT). With too few, the move is an
	// [*AckError]: after a reserve nothing is run, after a completion the outcome is
	// unknown. It makes a loss in a failover less likely, not impossible.
	AckReplicas int
	// AckFsync asks that the master, and AckReplicas replicas, have the write on
	// disk (WAITAOF, Redis 7.2), for servers with appendfsync everysec.
	AckFsync bool
	// AckTimeout bounds the wait for acknowledgements; zero means one second.
	AckTimeout time.Duration
}

// New returns a store on client, which stays the caller's to close. It asks the
// server for its version and settings. A server older than Redis 7.0 is refused
// with a [*ServerVersionError].
//
// Set ContextTimeoutEnabled in the client's options, as [Open] does. With it a cancelled
// caller leaves within 250 ms, and mostly at once; see the package comment. Without it
// every call has a goroutine that it can leave behind, and the connection stays busy
// until the client's own timeouts.
//
// A client that reads from replicas, and a Ring, which moves keys to another server
// as soon as one does not answer, are refused: both would show a key as free that
// is taken.
func New(ctx context.Context, client redis.UniversalClient, o *Options) (*Store, error) {
	s := &Store{client: client, lua: newScripts(), kept: new(keeper), prefix: DefaultPrefix}
	if o == nil {
		o = &Options{}
	}
	if o.Prefix != "" {
		s.prefix = o.Prefix
	}
	if len(s.prefix) > maxPrefix || strings.ContainsAny(s.prefix, "{}\x00") {
		return nil, fmt.Errorf("%w: a key prefix of %d bytes; it must have at most %d and neither braces nor NUL", backend.ErrInvalidRequest, len(s.prefix), maxPrefix)
	}
	switch c := client.(type) {
	case nil:
		return nil, fmt.Errorf("%w: no redis client", backend.ErrInvalidRequest)
	case *redis.Ring:
		return nil, fmt.Errorf("%w: a redis Ring loses sight of records when a server does not answer; use a Cluster, Sentinel or one server", backend.ErrInvalidRequest)
	case *redis.ClusterClient:
		if c.Options().ReadOnly {
			return nil, fmt.Errorf("%w: the redis client reads from replicas, which lag behind; unset ReadOnly, RouteByLatency and RouteRandomly", backend.ErrInvalidRequest)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var err error
	if s.acks, err = newAcks(client, o.AckReplicas, o.AckFsync, o.AckTimeout); err != nil {
		return nil, err
	}
	s.run = newLanes(client, s.acks)
	s.found, _, err = probe(ctx, client, terms{acceptEviction: o.AcceptEviction, ackReplicas: o.AckReplicas, ackFsync: o.AckFsync})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Open returns a store on the server that a redis:// or rediss:// URL names
// (redis://user:password@host:port/db), or on the Cluster that the server belongs
// to. Close closes its connections.
func Open(ctx context.Context, url string, o *Options) (*Store, error) {
	opt, err := redis.ParseURL(url)
	if err != nil {
		// The parser's text may quote the URL, password included.
		return nil, fmt.Errorf("%w: not a redis URL; want redis://user:password@host:port/db, or rediss:// for TLS", backend.ErrInvalidRequest)
	}
	opt.ContextTimeoutEnabled = true
	var client redis.UniversalClient = redis.NewClient(opt)
	if clustered(ctx, client) {
		_ = client.Close()
		client = redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{opt.Addr}, Username: opt.Username, Password: opt.Password, TLSConfig: opt.TLSConfig,
			ContextTimeoutEnabled: true, DialTimeout: opt.DialTimeout, ReadTimeout: opt.ReadTimeout, WriteTimeout: opt.WriteTimeout,
			PoolSize: opt.PoolSize, MaxRetries: opt.MaxRetries,
		})
	}
	s, err := New(ctx, client, o)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	s.own = true
	return s, nil
}

// Close closes the connections of a store that was made by Open. On one made by
// New it does nothing: the client is the caller's.
func (s *Store) Close() error {
	if !s.own {
		return nil
	}
	return s.client.Close()
}

// Guarantees implements backend.Backend.
func (s *Store) Guarantees() backend.Guarantees { return s.found }

// sumLength is that of an identity's sum in a key's name.
const sumLength = 22

// key returns the name of a record's key: a fixed-length name for the identity,
// which is in the value in full. The whole name decides the slot, so that neither
// braces in a caller's key nor a common tag put the load on one shard.
func (s *Store) key(id *backend.ID) string {
	sum := id.Sum()
	buf := make([]byte, 0, maxPrefix+sumLength)
	return string(base64.RawURLEncoding.AppendEncode(append(buf, s.prefix...), sum[:]))
}

// bodyKey returns the name of the key for a large body of the record in key. Its
// hash tag is the other key's whole name: they share a slot.
func (s *Store) bodyKey(key string) string { return s.prefix + "{" + key + "}" }
