package throwaway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
)

func TestRetryTakesAnotherPort(t *testing.T) {
	t.Parallel()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", address(port))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	calls := 0
	err = retry(func() error {
		if calls++; calls > 2 {
			return nil
		}
		second, err := net.Listen("tcp4", address(port))
		if err == nil {
			second.Close()
		}
		return err
	})
	if err != nil || calls != 3 {
		t.Errorf("a taken port ends in %v after %d calls, want nil after 3", err, calls)
	}

	calls = 0
	broken := errors.New("no such setting")
	if err := retry(func() error { calls++; return broken }); err != broken || calls != 1 {
		t.Errorf("another failure ends in %v after %d calls, want itself after 1", err, calls)
	}
}

// TestStartIsNotFooledByAnotherServer starts servers on a port where another one answers.
func TestStartIsNotFooledByAnotherServer(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		first, second := startedRedis(t), startedRedis(t)
		second.Stop()
		second.port = first.port
		config := fmt.Sprintf("bind 127.0.0.1\nport %d\n", first.port)
		if err := os.WriteFile(second.config(), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := second.start(t.Context()); !errors.Is(err, errEnded) {
			t.Errorf("the start on a taken port: %v, want %v", err, errEnded)
		}
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		first, second := startedPostgres(t), startedPostgres(t)
		second.Stop()
		second.port = first.port
		if err := second.startOnce(t.Context()); !errors.Is(err, errEnded) {
			t.Errorf("the start on a taken port: %v, want %v", err, errEnded)
		}
	})
}
