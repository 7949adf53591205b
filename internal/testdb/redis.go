package testdb

// RedisServer is a Redis server.
type RedisServer struct{}

func (*RedisServer) discard() {}
