package strategy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
)

// bareSync is what one durable operation costs on the disk alone: a line is appended
// and flushed.
func bareSync() Strategy {
	return strategy{
		Info{
			Name: "fsync", Title: "floor: append and flush", Family: Floor,
			Survives: "a power cut",
			Cost:     "each call: 1 append and 1 flush of its own",
		},
		func(_ context.Context, env Env) (Runner, error) {
			f, err := os.OpenFile(filepath.Join(env.Dir, env.Place+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
			if err != nil {
				return nil, fmt.Errorf("bench: open the log of %s: %w", env.Place, err)
			}
			var lines, bytes atomic.Int64
			return &runner{
				do: func(ctx context.Context, op Op) (Outcome, error) {
					result, err := env.performOutside(ctx, op)
					if err != nil {
						return "", err
					}
					line := strconv.AppendQuote(nil, op.Key)
					line = append(strconv.AppendQuote(append(line, ' '), string(result)), '\n')
					if _, err := f.Write(line); err != nil {
						return "", err
					}
					if err := flush(f); err != nil {
						return "", err
					}
					lines.Add(1)
					bytes.Add(int64(len(line)))
					return op.executed(ctx)
				},
				effects: env.Effects,
				usage: func(context.Context) (Usage, error) {
					return Usage{Records: lines.Load(), StoredBytes: bytes.Load()}, nil
				},
				flushes: func(context.Context) (int64, error) { return lines.Load(), nil },
				close:   f.Close,
			}, nil
		},
	}
}
