package redis

import "github.com/goidem/idem/backend"

var _ backend.SelfExpirer = (*Store)(nil)

// ExpiresItself implements backend.SelfExpirer: the server removes what has expired.
func (s *Store) ExpiresItself() bool { return true }
