package crdbshim

import (
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgproto3"
)

// inbox holds what a client has sent and the session has not dealt with. It has no bound, so that a
// client that sends a long pipeline before it reads the first answer cannot block itself and the shim.
type inbox struct {
	gone chan struct{} // closed when the client sends no more

	mu       sync.Mutex
	messages []pgproto3.FrontendMessage
	more     chan struct{} // has an element when messages has
}

func newInbox() *inbox {
	return &inbox{gone: make(chan struct{}), more: make(chan struct{}, 1)}
}

// read receives until the client leaves.
func (in *inbox) read(be *pgproto3.Backend) {
	defer close(in.gone)
	for {
		msg, err := be.Receive()
		if err != nil {
			return
		}
		own, err := keepMessage(msg)
		if err != nil {
			return
		}
		in.mu.Lock()
		in.messages = append(in.messages, own)
		in.mu.Unlock()
		select {
		case in.more <- struct{}{}:
		default:
		}
		if _, last := own.(*pgproto3.Terminate); last {
			return
		}
	}
}

// next waits for the next message. It reports false when the client has left and all is dealt with.
func (in *inbox) next() (pgproto3.FrontendMessage, bool) {
	for {
		// Look whether the client has left first: what it sent before is in messages by then.
		left := false
		select {
		case <-in.gone:
			left = true
		default:
		}
		if msg, ok := in.pop(); ok {
			return msg, true
		}
		if left {
			return nil, false
		}
		select {
		case <-in.more:
		case <-in.gone:
		}
	}
}

func (in *inbox) pop() (pgproto3.FrontendMessage, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.messages) == 0 {
		return nil, false
	}
	msg := in.messages[0]
	in.messages = in.messages[1:]
	return msg, true
}

// keepMessage copies a message that the next Receive would overwrite.
func keepMessage(msg pgproto3.FrontendMessage) (pgproto3.FrontendMessage, error) {
	switch m := msg.(type) {
	case *pgproto3.Parse:
		own := *m
		own.ParameterOIDs = slices.Clone(m.ParameterOIDs)
		return &own, nil
	case *pgproto3.Bind:
		raw, err := m.Encode(nil)
		return &bind{encoded{raw}, m.DestinationPortal, m.PreparedStatement}, err
	case *pgproto3.Describe:
		own := *m
		return &own, nil
	case *pgproto3.Execute:
		own := *m
		return &own, nil
	case *pgproto3.Close:
		own := *m
		return &own, nil
	case *pgproto3.Query:
		own := *m
		return &own, nil
	case *pgproto3.CopyData:
		return &pgproto3.CopyData{Data: slices.Clone(m.Data)}, nil
	case *pgproto3.CopyFail:
		own := *m
		return &own, nil
	case *pgproto3.CopyDone, *pgproto3.Sync, *pgproto3.Flush, *pgproto3.Terminate:
		return m, nil // nothing in it
	default:
		raw, err := m.Encode(nil)
		return &encoded{raw}, err
	}
}

// encoded is a message that is passed on as it came.
type encoded struct{ raw []byte }

// bind is a Bind that is passed on as it came.
type bind struct {
	encoded
	portal, statement string
}

// Frontend marks messages of clients for pgproto3.
func (*encoded) Frontend() {}

// Decode is part of pgproto3's interface, and unused.
func (*encoded) Decode([]byte) error { return nil }

// Encode appends the message.
func (m *encoded) Encode(dst []byte) ([]byte, error) { return append(dst, m.raw...), nil }
