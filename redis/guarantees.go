package redis

import (
	"fmt"
	"strconv"

	"github.com/goidem/idem/backend"
)

// EvictionError says that a server may remove records before their time to make
// room: with any maxmemory-policy but noeviction a record can vanish like a cached
// value, and its operation runs again. It matches backend.ErrGuarantee.
type EvictionError struct {
	Policy   string // the server's maxmemory-policy
	Accepted string // the policy that the caller has accepted; empty for none
}

// Error names the policy and both ways out.
func (e *EvictionError) Error() string {
	accepted := ""
	if e.Accepted != "" {
		accepted = fmt.Sprintf(" (AcceptEviction names %q)", e.Accepted)
	}
	return fmt.Sprintf("idem: redis may evict records: maxmemory-policy is %s%s; set it to noeviction, or accept the loss by setting AcceptEviction to %q", e.Policy, accepted, e.Policy)
}

// Is reports whether target is backend.ErrGuarantee.
func (e *EvictionError) Is(target error) bool { return target == backend.ErrGuarantee }

// grades are what one server gives.
//
// No setting makes a failover survive. Replication is asynchronous: the master
// answers before a replica has the write, and what the promoted replica lacks is
// gone. WAIT narrows that to writes that were not acknowledged by enough replicas,
// but the vote for the new master does not look at who acknowledged what, and a
// replica that acknowledged may itself have been restarted empty since. So it stays
// at "may lose the last moments".
type grades struct {
	process, machine, failover backend.Survival
	findings                   []backend.Finding
}

// unknownValue is the value of what a server would not tell.
const unknownValue = "could not check"

// setting returns a server's setting: what CONFIG says, else what INFO says under
// another name.
func (f *facts) setting(name, inInfo string) (value string, known bool) {
	if value, known = f.config[name]; known {
		return value, true
	}
	value, known = f.info[inInfo]
	return value, known && inInfo != ""
}

func (g *grades) note(setting, value, want, text string) {
	if value == "" {
		value = `""`
	}
	g.findings = append(g.findings, backend.Finding{Setting: setting, Value: value, Want: want, Text: text})
}

// unchecked notes what could not be found out.
func (g *grades) unchecked(setting, text string) {
	g.note(setting, unknownValue, "", "the user may not ask for it; "+text)
}

// grade says what a server gives. It refuses eviction that was not accepted.
func (f *facts) grade(t terms) (g grades, err error) {
	if v := f.version(); v != "" {
		g.note("redis_version", v, "", "new enough")
	} else {
		g.unchecked("redis_version", "the server knows the commands of Redis 7.0")
	}
	if err := f.gradeEviction(&g, t); err != nil {
		return g, err
	}
	f.gradePersistence(&g, t)
	f.gradeFailover(&g, t)
	return g, nil
}

// gradeEviction does not look at maxmemory to decide: a server without a limit
// today gets one tomorrow, and nobody would open the store again for that.
func (f *facts) gradeEviction(g *grades, t terms) error {
	policy, known := f.setting("maxmemory-policy", "maxmemory_policy")
	if !known {
		g.unchecked("maxmemory-policy", "with anything but noeviction records may vanish before their time")
		return nil
	}
	if policy == "noeviction" {
		g.note("maxmemory-policy", policy, "", "records stay until their time; when memory is full, reserves fail and nothing runs")
		return nil
	}
	if policy != t.acceptEviction {
		return &EvictionError{Policy: policy, Accepted: t.acceptEviction}
	}
	text := "records may vanish before their time when memory is full, and their operations run again; accepted by name"
	if limit, known := f.setting("maxmemory", "maxmemory"); known && limit == "0" {
		text += "; maxmemory is 0 now, so nothing is evicted until it is set"
	}
	g.note("maxmemory-policy", policy, "noeviction", text)
	return nil
}

// gradePersistence judges what a crash of the server, or of its machine, loses.
func (f *facts) gradePersistence(g *grades, t terms) {
	aof, known := f.setting("appendonly", "")
	if !known {
		if aof, known = map[string]string{"1": "yes", "0": "no"}[f.info["aof_enabled"]]; !known {
			g.unchecked("appendonly", "without it a crash loses everything since the last snapshot")
			return
		}
	}
	if aof != "yes" {
		g.process, g.machine = backend.Lost, backend.Lost
		text := "a crash loses everything since the last snapshot"
		switch save, known := f.config["save"]; {
		case known && save == "":
			text = "nothing is written to disk: a restart of the server loses everything"
		case known:
			text += " (save " + save + ")"
		}
		g.note("appendonly", aof, "yes", text)
		return
	}
	g.note("appendonly", aof, "", "writes are logged")
	fsync, known := f.config["appendfsync"]
	const everysec = "the last second may be lost; a slow disk makes it two"
	switch {
	case !known:
		// Of all policies this is the least that a crash of the process leaves.
		g.process = backend.Recent
		g.unchecked("appendfsync", "a crash of the machine may lose more than the last second")
	case fsync == "always":
		g.process, g.machine = backend.Survives, backend.Survives
		g.note("appendfsync", fsync, "", "a write is on disk before it is answered")
		if f.config["no-appendfsync-on-rewrite"] == "yes" {
			g.machine = backend.Lost
			g.note("no-appendfsync-on-rewrite", "yes", "no", "while the log is rewritten, writes are answered that are not on disk")
		}
	case fsync == "everysec" && f.config["no-appendfsync-on-rewrite"] == "yes":
		g.process, g.machine = backend.Recent, backend.Lost
		g.note("appendfsync", fsync, "always", everysec)
		g.note("no-appendfsync-on-rewrite", "yes", "no", "while the log is rewritten, nothing is put on disk, which may take minutes")
	case fsync == "everysec":
		// While a sync is under way, writes wait in the server's memory: not even a
		// crash of the process alone leaves them all.
		g.process, g.machine = backend.Recent, backend.Recent
		g.note("appendfsync", fsync, "always", everysec)
	default:
		// The kernel has the writes, and puts them on disk when it likes, commonly
		// within half a minute: nothing that Redis bounds.
		g.process, g.machine = backend.Survives, backend.Lost
		g.note("appendfsync", fsync, "always", "the operating system decides when writes reach the disk")
	}
	if t.ackFsync {
		// What counts is what was acknowledged, and that has waited for the disk.
		g.process, g.machine = backend.Survives, backend.Survives
		g.note("AckFsync", "on", "", "reserves and completions wait until the log is on disk (WAITAOF)")
	}
}

// gradeFailover judges what the promotion of a replica loses.
func (f *facts) gradeFailover(g *grades, t terms) {
	n, known := f.info["connected_slaves"]
	if !known {
		g.unchecked("replicas", "a promoted replica lacks the last writes")
		return
	}
	replicas, _ := strconv.Atoi(n)
	if replicas == 0 && !f.sentinel {
		g.failover = backend.Survives
		g.note("replicas", "0", "", "there is nothing to fail over to; while the server is down, calls fail and nothing runs")
		return
	}
	switch {
	case g.process == backend.Unchecked:
		g.failover = backend.Unchecked
		g.note("replicas", n, "", "whether the master may restart empty could not be checked; it would empty its replicas, too")
		return
	case g.process == backend.Lost:
		g.failover = backend.Lost
		g.note("replicas", n, "", "a master that restarts without its data empties its replicas, too: persistence is needed on every server")
		return
	case replicas == 0:
		// The client follows Sentinel, and what Sentinel could promote is not
		// attached, so nobody knows how far behind it is.
		g.failover = backend.Lost
		g.note("replicas", n, "1 or more", "Sentinel may promote a replica that has not followed for long")
		return
	}
	g.failover = backend.Recent
	g.note("replicas", n, "", "replication is asynchronous: a promoted replica may lack the last writes")
	if f.info["cluster_enabled"] == "1" {
		return // a master that is cut off from the majority stops by itself
	}
	least, known := f.config["min-replicas-to-write"]
	if !known {
		// INFO counts the good replicas only where the setting asks for some.
		if _, known = f.info["min_slaves_good_slaves"]; known {
			least = "1 or more"
		} else {
			least = "0"
		}
	}
	switch {
	case t.ackReplicas > 0:
		// A master that is cut off from its replicas gets no acknowledgement.
		g.note("AckReplicas", strconv.Itoa(t.ackReplicas), "", "what too few replicas have does not count as done (WAIT); a failover need not promote one of those that have it")
	case least == "0":
		g.failover = backend.Lost
		g.note("min-replicas-to-write", least, "1", "a master that is cut off from its replicas goes on, for as long as it is cut off, with writes that the failover discards; AckReplicas helps, too")
	default:
		g.note("min-replicas-to-write", least, "", "a master that is cut off from its replicas stops after min-replicas-max-lag seconds")
	}
}
