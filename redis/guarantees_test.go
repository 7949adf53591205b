package redis

import (
	"errors"
	"strings"
	"testing"

	"github.com/goidem/idem/backend"
)

const (
	unchecked = backend.Unchecked
	lost      = backend.Lost
	recent    = backend.Recent
	survives  = backend.Survives
)

// merged returns base with further fields.
func merged(base map[string]string, more ...string) map[string]string {
	m := make(map[string]string)
	for k, v := range base {
		m[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

// alone and safe are a server without replicas, set as well as can be.
var alone = map[string]string{ // lint:const a fixture
	"redis_version": "7.0.15", "role": "master", "connected_slaves": "0", "aof_enabled": "1",
	"maxmemory": "0", "maxmemory_policy": "noeviction", "cluster_enabled": "0",
}
var safe = map[string]string{ // lint:const a fixture
	"maxmemory": "0", "maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always",
	"no-appendfsync-on-rewrite": "no", "save": "", "min-replicas-to-write": "0",
}

func TestGrades(t *testing.T) {
	for _, c := range []struct {
		name                       string
		f                          facts
		t                          terms
		process, machine, failover backend.Survival
		finding                    string // "setting=value" that must be among the findings
		want                       string // of that finding
	}{
		{"always", facts{info: alone, config: safe}, terms{}, survives, survives, survives, "appendfsync=always", ""},
		{"everysec", facts{info: alone, config: merged(safe, "appendfsync", "everysec")}, terms{}, recent, recent, survives, "appendfsync=everysec", "always"},
		{"left to the system", facts{info: alone, config: merged(safe, "appendfsync", "no")}, terms{}, survives, lost, survives, "appendfsync=no", "always"},
		{"no log", facts{info: alone, config: merged(safe, "appendonly", "no")}, terms{}, lost, lost, survives, "appendonly=no", "yes"},
		{"snapshots only", facts{info: alone, config: merged(safe, "appendonly", "no", "save", "900 1")}, terms{}, lost, lost, survives, "appendonly=no", "yes"},
		{"always, not on rewrite", facts{info: alone, config: merged(safe, "no-appendfsync-on-rewrite", "yes")}, terms{}, survives, lost, survives, "no-appendfsync-on-rewrite=yes", "no"},
		{"everysec, not on rewrite", facts{info: alone, config: merged(safe, "appendfsync", "everysec", "no-appendfsync-on-rewrite", "yes")}, terms{}, recent, lost, survives, "no-appendfsync-on-rewrite=yes", "no"},
		{"no CONFIG, log on", facts{info: alone}, terms{}, recent, unchecked, survives, "appendfsync=could not check", ""},
		{"no CONFIG, log off", facts{info: merged(alone, "aof_enabled", "0")}, terms{}, lost, lost, survives, "appendonly=no", "yes"},
		{"no INFO", facts{config: safe}, terms{}, survives, survives, unchecked, "replicas=could not check", ""},
		{"nothing may be asked", facts{}, terms{}, unchecked, unchecked, unchecked, "maxmemory-policy=could not check", ""},
		{"waits for the disk", facts{info: alone, config: merged(safe, "appendfsync", "everysec")}, terms{ackFsync: true}, survives, survives, survives, "AckFsync=on", ""},

		{"replica", facts{info: merged(alone, "connected_slaves", "1"), config: safe}, terms{}, survives, survives, lost, "min-replicas-to-write=0", "1"},
		{"replica, needed", facts{info: merged(alone, "connected_slaves", "1"), config: merged(safe, "min-replicas-to-write", "1")}, terms{}, survives, survives, recent, "min-replicas-to-write=1", ""},
		{"replica, needed, no CONFIG", facts{info: merged(alone, "connected_slaves", "1", "min_slaves_good_slaves", "1")}, terms{}, recent, unchecked, recent, "min-replicas-to-write=1 or more", ""},
		{"replica, acknowledged", facts{info: merged(alone, "connected_slaves", "1"), config: safe}, terms{ackReplicas: 1}, survives, survives, recent, "AckReplicas=1", ""},
		{"replica of a master without a log", facts{info: merged(alone, "connected_slaves", "2"), config: merged(safe, "appendonly", "no", "min-replicas-to-write", "1")}, terms{ackReplicas: 2}, lost, lost, lost, "replicas=2", ""},
		{"replica in a Cluster", facts{info: merged(alone, "connected_slaves", "1", "cluster_enabled", "1"), config: safe}, terms{}, survives, survives, recent, "replicas=1", ""},
		{"Sentinel, replica away", facts{info: alone, config: safe, sentinel: true}, terms{}, survives, survives, lost, "replicas=0", "1 or more"},

		{"eviction accepted", facts{info: alone, config: merged(safe, "maxmemory-policy", "allkeys-lru", "maxmemory", "1")}, terms{acceptEviction: "allkeys-lru"}, survives, survives, survives, "maxmemory-policy=allkeys-lru", "noeviction"},
		{"eviction accepted, not there", facts{info: alone, config: safe}, terms{acceptEviction: "allkeys-lru"}, survives, survives, survives, "maxmemory-policy=noeviction", ""},
		{"eviction seen without CONFIG", facts{info: alone}, terms{}, recent, unchecked, survives, "maxmemory-policy=noeviction", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := c.f.grade(c.t)
			if err != nil {
				t.Fatal(err)
			}
			if g.process != c.process || g.machine != c.machine || g.failover != c.failover {
				t.Errorf("process crash %v, machine crash %v, failover %v; want %v, %v, %v",
					g.process, g.machine, g.failover, c.process, c.machine, c.failover)
			}
			found := false
			for _, f := range g.findings {
				if f.Text == "" {
					t.Errorf("finding %s=%s says nothing", f.Setting, f.Value)
				}
				if f.Setting+"="+f.Value == c.finding {
					found = true
					if f.Want != c.want {
						t.Errorf("%s: want is %q, should be %q", c.finding, f.Want, c.want)
					}
				}
			}
			if !found {
				t.Errorf("no finding %s in %+v", c.finding, g.findings)
			}
			// What falls short of everything must name a way out, unless there is none or
			// it could not be looked at.
			all := backend.Guarantees{ProcessCrash: g.process, MachineCrash: g.machine, Failover: g.failover, Findings: g.findings}
			if short := all.Check(&backend.Guarantees{ProcessCrash: survives, MachineCrash: survives}); short != nil &&
				g.process != unchecked && g.machine != unchecked && !strings.Contains(short.Error(), "set it to") {
				t.Errorf("%v: names no setting that would do", short)
			}
		})
	}
}

func TestGradeRefusesEviction(t *testing.T) {
	for _, policy := range []string{"allkeys-lru", "volatile-ttl", "allkeys-random", "some-policy-to-come"} {
		for name, f := range map[string]facts{
			"CONFIG":          {info: alone, config: merged(safe, "maxmemory-policy", policy)},
			"INFO":            {info: merged(alone, "maxmemory_policy", policy)},
			"limit, too":      {info: alone, config: merged(safe, "maxmemory-policy", policy, "maxmemory", "1000000")},
			"CONFIG and INFO": {info: merged(alone, "maxmemory_policy", policy), config: merged(safe, "maxmemory-policy", policy)},
		} {
			for _, accept := range []string{"", "volatile-lfu", "yes"} {
				_, err := f.grade(terms{acceptEviction: accept})
				var refused *EvictionError
				if !errors.As(err, &refused) || refused.Policy != policy || !errors.Is(err, backend.ErrGuarantee) || !strings.Contains(err.Error(), policy) {
					t.Errorf("%s, %s, accepting %q: %v; want an EvictionError that names the policy", policy, name, accept, err)
				}
			}
			if _, err := f.grade(terms{acceptEviction: policy}); err != nil {
				t.Errorf("%s, %s, accepted by name: %v", policy, name, err)
			}
		}
	}
}

func TestWeakestServerDecides(t *testing.T) {
	good, err := (&facts{info: alone, config: safe}).grade(terms{})
	if err != nil {
		t.Fatal(err)
	}
	bad, err := (&facts{info: alone, config: merged(safe, "appendonly", "no")}).grade(terms{})
	if err != nil {
		t.Fatal(err)
	}
	g := weakest([]grades{good, bad, good})
	if g.ProcessCrash != lost || g.MachineCrash != lost || g.Failover != survives || !g.ServerClock || !g.Shared || g.Atomic {
		t.Errorf("got %+v", g)
	}
	for _, f := range g.Findings {
		switch f.Setting + "=" + f.Value {
		case "appendonly=no":
			if !strings.HasSuffix(f.Text, "(on 1 of 3 masters)") {
				t.Errorf("%+v; want it to say on how many masters", f)
			}
		case "redis_version=7.0.15":
			if strings.Contains(f.Text, "masters") {
				t.Errorf("%+v; it holds for all", f)
			}
		}
	}
	for _, all := range [][]grades{{{process: survives, machine: survives, failover: lost}, good}, {good, {process: survives, machine: survives, failover: lost}}} {
		if g := weakest(all); g.Failover != lost {
			t.Errorf("failover %v; the weaker of two is lost", g.Failover)
		}
	}
	if g := weakest([]grades{good, {}}); g.ProcessCrash != unchecked || g.Failover != unchecked {
		t.Errorf("with a server that says nothing: %+v; want unchecked", g)
	}
}
