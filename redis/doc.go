// Package redis keeps idem's records in Redis.
package redis
