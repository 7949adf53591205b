package bolt

import "context"

func (s *exclusive) Check(ctx context.Context) error { return nil }
func (p *perCall) Check(ctx context.Context) error   { return nil }
