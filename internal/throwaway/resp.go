package throwaway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// resp is a connection in Redis's protocol.
type resp struct {
	w io.Writer
	r *bufio.Reader
}

func newRESP(conn io.ReadWriter) *resp { return &resp{conn, bufio.NewReader(conn)} }

func (c *resp) do(command ...string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(command))
	for _, arg := range command {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(c.w, b.String()); err != nil {
		return "", err
	}
	return c.reply()
}

// reply reads one answer, whose elements, if it is an array, it puts on lines.
func (c *resp) reply() (string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", errors.New("empty answer")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', ':':
		return rest, nil
	case '-':
		return "", errors.New(rest)
	}
	n, err := strconv.Atoi(rest)
	if err != nil {
		return "", fmt.Errorf("unknown answer %q", line)
	}
	switch kind {
	case '$':
		if n < 0 {
			return "", nil
		}
		value := make([]byte, n+len("\r\n"))
		_, err := io.ReadFull(c.r, value)
		return string(value[:n]), err
	case '*':
		var elements []string
		var failed error
		for range n {
			element, err := c.reply()
			failed = errors.Join(failed, err)
			elements = append(elements, element)
		}
		return strings.Join(elements, "\n"), failed
	}
	return "", fmt.Errorf("unknown answer %q", line)
}
