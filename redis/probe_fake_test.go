package redis

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// fakeRedis speaks as much of Redis's protocol as a server of another version needs
// to be recognised. Answers are raw, by the command's name in lower case.
func fakeRedis(tb testing.TB, answers map[string]func(args []string) string) *redis.Client {
	tb.Helper()
	answers = maps.Clone(answers)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for {
					args, err := readCommand(r)
					if err != nil {
						return
					}
					answer := unknownAnswer(args[0])
					if f := answers[strings.ToLower(args[0])]; f != nil {
						answer = f(args)
					}
					if _, err := io.WriteString(conn, answer); err != nil {
						return
					}
				}
			})
		}
	})
	client := redis.NewClient(&redis.Options{Addr: l.Addr().String(), Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true})
	tb.Cleanup(func() {
		_ = client.Close()
		_ = l.Close()
		wg.Wait()
	})
	return client
}

func unknownAnswer(name string) string {
	return fmt.Sprintf("-ERR unknown command '%s', with args beginning with: \r\n", name)
}

func readCommand(r *bufio.Reader) ([]string, error) {
	n, err := readNumber(r, '*')
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := readNumber(r, '$')
		if err != nil {
			return nil, err
		}
		buf := make([]byte, size+2)
		if _, err := io.ReadFull(r, buf); err != nil {
			return nil, err
		}
		args[i] = string(buf[:size])
	}
	return args, nil
}

func readNumber(r *bufio.Reader, kind byte) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("got %q, want %c", line, kind)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// infoAnswer answers INFO with lines.
func infoAnswer(lines ...string) func([]string) string {
	text := strings.Join(lines, "\r\n") + "\r\n"
	return func([]string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }
}

// fixed answers the same to everything.
func fixed(answer string) func([]string) string {
	return func([]string) string { return answer }
}
