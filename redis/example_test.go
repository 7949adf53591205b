package redis_test

import (
	"context"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/goidem/idem"
	"github.com/goidem/idem/redis"
)

// Example uses the program's own client. It needs a server to run.
func Example() {
	ctx := context.Background()
	client := goredis.NewClient(&goredis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer client.Close()
	b, err := redis.New(ctx, client, &redis.Options{Prefix: "billing:"})
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := idem.New(b, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := idem.Execute(ctx, store, idem.Scope{Operation: "invoice"}, "2026-11", idem.FingerprintBytes([]byte("plan=basic")),
		func(context.Context) (string, error) { return "receipt-42", nil })
	fmt.Println(res.Value, res.Replayed, err)
}

// ExampleOpen opens a store by URL, as programs do that are told where it is.
func ExampleOpen() {
	s, err := redis.Open(context.Background(), "rediss://user:password@redis.example.org:6380/0", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
}
