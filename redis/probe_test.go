package redis

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/internal/testdb"
)

// wantGrades probes and compares.
func wantGrades(t *testing.T, client redis.UniversalClient, process, machine, failover backend.Survival) backend.Guarantees {
	t.Helper()
	g, info, err := probe(t.Context(), client, terms{})
	if err != nil {
		t.Fatal(err)
	}
	if g.ProcessCrash != process || g.MachineCrash != machine || g.Failover != failover {
		t.Errorf("process crash %v, machine crash %v, failover %v; want %v, %v, %v; findings %+v",
			g.ProcessCrash, g.MachineCrash, g.Failover, process, machine, failover, g.Findings)
	}
	if info.masters == 0 {
		t.Errorf("server info %+v", info)
	}
	return g
}

func value(g backend.Guarantees, setting string) string {
	i := slices.IndexFunc(g.Findings, func(f backend.Finding) bool { return f.Setting == setting })
	if i < 0 {
		return "no finding"
	}
	return g.Findings[i].Value
}

func TestProbePersistence(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	client := newClient(t, srv.Addr())
	wantGrades(t, client, survives, survives, survives)
	for _, c := range []struct {
		set              []string
		process, machine backend.Survival
	}{
		{[]string{"appendfsync", "everysec"}, recent, recent},
		{[]string{"appendfsync", "no"}, survives, lost},
		{[]string{"appendfsync", "always"}, survives, survives},
		{[]string{"no-appendfsync-on-rewrite", "yes"}, survives, lost},
		{[]string{"appendonly", "no"}, lost, lost},
		{[]string{"save", "3600 1"}, lost, lost},
	} {
		srv.Do(t, append([]string{"CONFIG", "SET"}, c.set...)...)
		g := wantGrades(t, client, c.process, c.machine, survives)
		if got := value(g, c.set[0]); c.set[0] != "save" && got != c.set[1] {
			t.Errorf("the finding for %s is %q, want %q", c.set[0], got, c.set[1])
		}
	}
}

func TestCaseC40_ProbeRefusesEviction(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t)
	client := newClient(t, srv.Addr())
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		srv.Do(t, "CONFIG", "SET", "maxmemory-policy", policy)
		for _, limit := range []string{"0", "100mb"} {
			srv.Do(t, "CONFIG", "SET", "maxmemory", limit)
			var refused *EvictionError
			if _, _, err := probe(t.Context(), client, terms{}); !errors.As(err, &refused) || refused.Policy != policy {
				t.Errorf("%s, maxmemory %s: %v; want it refused", policy, limit, err)
			}
			if _, _, err := probe(t.Context(), client, terms{acceptEviction: "allkeys-lfu"}); !errors.As(err, &refused) {
				t.Errorf("%s, maxmemory %s, another policy accepted: %v; want it refused", policy, limit, err)
			}
			g, _, err := probe(t.Context(), client, terms{acceptEviction: policy})
			if err != nil || value(g, "maxmemory-policy") != policy {
				t.Errorf("%s, maxmemory %s, accepted by name: %+v, %v", policy, limit, g, err)
			}
		}
	}
}

// TestProbeWithoutRights: what a server will not tell is reported, not guessed.
func TestProbeWithoutRights(t *testing.T) {
	t.Parallel()
	srv := testdb.StartRedis(t, "--appendonly", "yes")
	srv.Do(t, "ACL", "SETUSER", "noconfig", "on", ">pw", "~*", "&*", "+@all", "-config")
	srv.Do(t, "ACL", "SETUSER", "noinfo", "on", ">pw", "~*", "&*", "+@all", "-config", "-info")
	as := func(user string) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: user, Password: "pw", ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	g := wantGrades(t, as("noconfig"), recent, unchecked, survives)
	if got := value(g, "appendfsync"); got != "could not check" {
		t.Errorf("appendfsync is %q", got)
	}
	if got := value(g, "maxmemory-policy"); got != "noeviction" {
		t.Errorf("maxmemory-policy is %q, which INFO tells", got)
	}
	g = wantGrades(t, as("noinfo"), unchecked, unchecked, unchecked)
	for _, setting := range []string{"redis_version", "maxmemory-policy", "appendonly", "replicas"} {
		if got := value(g, setting); got != "could not check" {
			t.Errorf("%s is %q", setting, got)
		}
	}
	// Eviction is seen without CONFIG, too.
	srv.Do(t, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
	var refused *EvictionError
	if _, _, err := probe(t.Context(), as("noconfig"), terms{}); !errors.As(err, &refused) {
		t.Errorf("an evicting server without CONFIG: %v", err)
	}
	// Wrong passwords and the like are errors, not findings.
	wrong := redis.NewClient(&redis.Options{Addr: srv.Addr(), Username: "noinfo", Password: "wrong"})
	defer wrong.Close()
	if _, _, err := probe(t.Context(), wrong, terms{}); !errors.Is(err, ErrRefused) || strings.Contains(err.Error(), "wrong pass") {
		t.Errorf("wrong password: %v", err)
	}
}

func TestProbeReplication(t *testing.T) {
	t.Parallel()
	primary := testdb.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	replica := testdb.StartReplica(t, primary, "--appendonly", "yes")
	client := newClient(t, primary.Addr())
	g := wantGrades(t, client, survives, survives, lost)
	if value(g, "replicas") != "1" || value(g, "min-replicas-to-write") != "0" {
		t.Errorf("findings %+v", g.Findings)
	}
	primary.Do(t, "CONFIG", "SET", "min-replicas-to-write", "1")
	wantGrades(t, client, survives, survives, recent)
	primary.Do(t, "CONFIG", "SET", "min-replicas-to-write", "0")

	var refused *RefusedError
	if _, _, err := probe(t.Context(), newClient(t, replica.Addr()), terms{}); !errors.As(err, &refused) || refused.Code != "READONLY" {
		t.Errorf("a replica: %v; want it refused", err)
	}

	sentinels := testdb.StartSentinels(t, primary, 3)
	failover := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: testdb.MasterName, SentinelAddrs: sentinels, ContextTimeoutEnabled: true})
	defer failover.Close()
	if !followsSentinel(failover) || followsSentinel(client) {
		t.Error("a client of Sentinel is not told from one of a server")
	}
	wantGrades(t, failover, survives, survives, lost)
	primary.Do(t, "CONFIG", "SET", "min-replicas-to-write", "1")
	wantGrades(t, failover, survives, survives, recent)
	primary.Do(t, "CONFIG", "SET", "appendonly", "no")
	wantGrades(t, failover, lost, lost, lost)

	if _, _, err := probe(t.Context(), newClient(t, sentinels[0]), terms{}); !errors.Is(err, backend.ErrInvalidRequest) {
		t.Errorf("a Sentinel in the place of a server: %v", err)
	}
}

func TestProbeCluster(t *testing.T) {
	t.Parallel()
	nodes := testdb.StartClusterNodes(t, 3)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
		n.Do(t, "CONFIG", "SET", "appendonly", "yes", "appendfsync", "always")
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs[:1], ContextTimeoutEnabled: true})
	defer client.Close()
	_, info, err := probe(t.Context(), client, terms{})
	if err != nil || info.masters != 3 || info.major < 7 {
		t.Errorf("%+v, %v; want three masters", info, err)
	}
	wantGrades(t, client, survives, survives, survives)
	// One server that is set otherwise decides for all.
	nodes[2].Do(t, "CONFIG", "SET", "appendfsync", "everysec")
	g := wantGrades(t, client, recent, recent, survives)
	i := slices.IndexFunc(g.Findings, func(f backend.Finding) bool { return f.Value == "everysec" })
	if i < 0 || !strings.Contains(g.Findings[i].Text, "on 1 of 3 masters") {
		t.Errorf("findings %+v", g.Findings)
	}
	nodes[1].Do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-random")
	var refused *EvictionError
	if _, _, err := probe(t.Context(), client, terms{}); !errors.As(err, &refused) || refused.Policy != "allkeys-random" {
		t.Errorf("one evicting master of three: %v", err)
	}
}

func TestProbeVersions(t *testing.T) {
	t.Parallel()
	master := []string{"role:master", "connected_slaves:0", "aof_enabled:0", "maxmemory_policy:noeviction"}
	answers := func(version ...string) map[string]func([]string) string {
		return map[string]func([]string) string{"info": infoAnswer(append(version, master...)...)}
	}
	// CONFIG is unknown to these servers, as it is to some managed ones.
	for _, c := range []struct {
		name    string
		info    []string
		found   string // of the error; "": none
		version string
		major   int
	}{
		{"old", []string{"redis_version:6.2.14"}, "6.2.14", "", 0},
		{"very old", []string{"redis_version:2.8.0"}, "2.8.0", "", 0},
		{"first", []string{"redis_version:7.0.0"}, "", "7.0.0", 7},
		{"two digits", []string{"redis_version:10.1.0"}, "", "10.1.0", 10},
		{"Valkey", []string{"redis_version:7.2.4", "server_name:valkey", "valkey_version:8.1.0"}, "", "Valkey 8.1.0", 7},
	} {
		_, info, err := probe(t.Context(), fakeRedis(t, answers(c.info...)), terms{})
		var old *ServerVersionError
		switch {
		case c.found == "" && (err != nil || info.version != c.version || info.major != c.major):
			t.Errorf("%s: %+v, %v; want version %s", c.name, info, err, c.version)
		case c.found != "" && (!errors.As(err, &old) || old.Found != c.found || old.Need != "7.0" ||
			!strings.Contains(err.Error(), c.found) || !strings.Contains(err.Error(), "7.0")):
			t.Errorf("%s: %v; want an error that names both versions", c.name, err)
		}
	}
	// Without INFO a server shows its age by what it does not understand.
	silent := map[string]func([]string) string{"info": fixed("-NOPERM this user has no permissions to run the 'info' command\r\n")}
	if _, _, err := probe(t.Context(), fakeRedis(t, silent), terms{}); !errors.Is(err, ErrOldServer) {
		t.Errorf("no INFO, no PEXPIRETIME: %v", err)
	}
	silent["pexpiretime"] = fixed(":-2\r\n")
	if g, _, err := probe(t.Context(), fakeRedis(t, silent), terms{}); err != nil || g.ProcessCrash != unchecked {
		t.Errorf("no INFO, PEXPIRETIME: %+v, %v", g, err)
	}
}

func TestProbeEndsWithContext(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testdb.Redis(t).Addr())
	client := newClient(t, p.addr())
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.hang()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := probe(ctx, client, terms{}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, backend.ErrOutcomeUnknown) {
		t.Errorf("a server that does not answer: %v", err)
	}
	srv := testdb.StartRedis(t)
	gone := newClient(t, srv.Addr())
	srv.Stop()
	if _, _, err := probe(t.Context(), gone, terms{}); err == nil || strings.Contains(err.Error(), srv.Addr()) {
		t.Errorf("a server that is down: %v; want an error without its address", err)
	}
}
