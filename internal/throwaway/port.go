package throwaway

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
)

// freePort returns a loopback port that is free now. The ports are below those that systems give to
// outgoing connections: a client's connection must not take the port of a killed server before its
// restart, and a client that dials that port must not be connected to itself. Another process may
// still be faster; who starts a server tries again then.
func freePort() (int, error) {
	const low, high = 15000, 32000
	for range 1000 {
		port := low + rand.IntN(high-low)
		l, err := net.Listen("tcp4", address(port))
		if err != nil {
			continue
		}
		l.Close()
		return port, nil
	}
	return 0, errors.New("throwaway: no free loopback port found")
}

// retry calls start, up to five times, while it fails because another process has taken the port.
func retry(start func() error) (err error) {
	for range 5 {
		if err = start(); err == nil || !strings.Contains(err.Error(), "ddress already in use") {
			break // the error quotes the server's log
		}
	}
	return err
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
