package throwaway

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// Conn speaks as much of PostgreSQL's protocol as a start needs: trusted login and simple queries.
// The driver that a test is about must not prepare it as well, and psql may be missing.
type Conn struct {
	conn net.Conn
	r    *bufio.Reader
}

// Connect logs in to a server at an address, which trusts the user.
func Connect(addr, user, database string) (*Conn, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &Conn{conn, bufio.NewReader(conn)}
	if err := conn.SetDeadline(soon()); err != nil {
		conn.Close()
		return nil, err
	}
	const version3 = 3 << 16
	body := binary.BigEndian.AppendUint32(nil, version3)
	body = append(body, "user\x00"+user+"\x00database\x00"+database+"\x00\x00"...)
	if _, err = conn.Write(frame(nil, body)); err == nil {
		_, err = c.answer()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the session.
func (c *Conn) Close() {
	_, _ = c.conn.Write(frame([]byte{'X'}, nil))
	c.conn.Close()
}

// Query runs one statement and returns the first column of its rows.
func (c *Conn) Query(sql string) ([]string, error) {
	if err := c.conn.SetDeadline(soon()); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(frame([]byte{'Q'}, []byte(sql+"\x00"))); err != nil {
		return nil, err
	}
	return c.answer()
}

// answer reads until the server is ready for the next query.
func (c *Conn) answer() (column []string, err error) {
	for {
		var head [5]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return nil, err
		}
		body := make([]byte, max(4, binary.BigEndian.Uint32(head[1:]))-4)
		if _, err := io.ReadFull(c.r, body); err != nil {
			return nil, err
		}
		switch head[0] {
		case 'E':
			if err = errors.New(pgMessage(body)); strings.HasPrefix(pgMessage(body), "FATAL") {
				return nil, err // the server hangs up
			}
		case 'R':
			if len(body) < 4 || binary.BigEndian.Uint32(body) != 0 {
				return nil, errors.New("throwaway: the server does not trust its own machine's login")
			}
		case 'D':
			if len(body) >= 6 {
				if n := int32(binary.BigEndian.Uint32(body[2:])); n >= 0 && int(n) <= len(body)-6 {
					column = append(column, string(body[6:6+n]))
				} else {
					column = append(column, "")
				}
			}
		case 'Z':
			return column, err
		}
	}
}

// pgMessage makes one line of an error's fields.
func pgMessage(body []byte) string {
	fields := make(map[byte]string)
	for field := range strings.SplitSeq(string(body), "\x00") {
		if field != "" {
			fields[field[0]] = field[1:]
		}
	}
	return fmt.Sprintf("%s: %s (SQLSTATE %s)", fields['V'], fields['M'], fields['C'])
}

// frame appends a message of PostgreSQL's protocol to its type byte, if it has one.
func frame(kind, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32(kind, uint32(len(body)+4)), body...)
}
