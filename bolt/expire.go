package bolt

import (
	"context"
	"iter"

	"github.com/goidem/idem/backend"
)

func (s *exclusive) Expire(ctx context.Context, r backend.ExpireRequest) (backend.ExpireResult, error) {
	return backend.ExpireResult{}, nil
}
func (s *exclusive) Check(ctx context.Context) error { return nil }
func (s *exclusive) List(ctx context.Context, f backend.Filter) iter.Seq2[backend.Record, error] {
	return nil
}
func openPerCall(path string, o *Options) (*DB, error) { return nil, ErrPerCall }
