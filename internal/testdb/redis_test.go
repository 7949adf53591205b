package testdb

import (
	"strings"
	"testing"

	"github.com/goidem/idem/internal/throwaway"
)

func TestRedisIsShared(t *testing.T) {
	t.Parallel()
	r := Redis(t)
	if again := Redis(t); again != r {
		t.Error("the second call started another server")
	}
	r.Do(t, "SET", "testdb:shared", "7")
	if got := r.Do(t, "GET", "testdb:shared"); got != "7" {
		t.Errorf("GET returns %q, want 7", got)
	}
	if got := r.Do(t, "CONFIG", "GET", "save"); got != "save\n" {
		t.Errorf("its configuration has %q, want no snapshots", got)
	}
}

func TestRedisKill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{name: "in memory", want: ""},
		{name: "durable", want: "7", args: []string{"--appendonly", "yes", "--appendfsync", "always"}},
		{name: "durable with a password", want: "7", args: []string{"--appendonly", "yes", "--requirepass", "a b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := StartRedis(t, tt.args...)
			r.Do(t, "SET", "k", "7")
			r.Kill(t)
			if _, err := r.srv.Do("PING"); err == nil {
				t.Fatal("the killed server answers")
			}
			r.Restart(t)
			if got := r.Do(t, "GET", "k"); got != tt.want {
				t.Errorf("after a kill the key holds %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRedisReportsWhatItRefuses(t *testing.T) {
	t.Parallel()
	Redis(t) // skips without Redis
	_, err := startRedis(t.Context(), throwaway.RedisOptions{Args: []string{"--no-such-setting", "yes"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("an unknown setting: %v, want an error with the end of the log", err)
	}
	if _, err := startRedis(t.Context(), throwaway.RedisOptions{Args: []string{"appendonly", "yes"}}); err == nil {
		t.Error("an argument without dashes is accepted")
	}
}

func TestRedisReplica(t *testing.T) {
	t.Parallel()
	master := StartRedis(t)
	replica := StartReplica(t, master)
	master.Do(t, "SET", "k", "7")
	var got string
	if !throwaway.Poll(t.Context(), func() bool { got = replica.Do(t, "GET", "k"); return got == "7" }) {
		t.Errorf("the replica holds %q, want 7", got)
	}
}

func TestSentinelsFailOver(t *testing.T) {
	t.Parallel()
	master := StartRedis(t)
	replica := StartReplica(t, master)
	addrs := StartSentinels(t, master, 3)
	if len(addrs) != 3 {
		t.Fatalf("%d sentinels, want 3", len(addrs))
	}
	master.Kill(t)
	want := strings.Replace(replica.Addr(), ":", "\n", 1)
	for _, addr := range addrs {
		var got string
		if !throwaway.Poll(t.Context(), func() bool {
			got, _ = throwaway.RedisDo(addr, "", "SENTINEL", "GET-MASTER-ADDR-BY-NAME", MasterName)
			return got == want
		}) {
			t.Errorf("sentinel says the master is %q, want %q", got, want)
		}
	}
	// The promoted server stays what it has become.
	if !throwaway.Poll(t.Context(), func() bool { return replica.srv.InfoIs("role", "master") == nil }) {
		t.Fatal("the replica was not promoted")
	}
	replica.Restart(t)
	if err := replica.srv.InfoIs("role", "master"); err != nil {
		t.Error(err)
	}
}

func TestClusterIsReady(t *testing.T) {
	t.Parallel()
	nodes := StartClusterNodes(t, 3)
	took := 0
	for _, node := range nodes {
		answer, err := node.srv.Do("SET", "k", "7")
		switch {
		case err == nil && answer == "OK":
			took++
		case err == nil || !strings.HasPrefix(err.Error(), "MOVED "):
			t.Errorf("a node answers %q, %v, want OK or MOVED", answer, err)
		}
	}
	if took != 1 {
		t.Errorf("%d nodes took the key, want 1", took)
	}
}
