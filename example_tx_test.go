package idem_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/bolt"
)

// The effect is a write in the same file, so effect and record commit together.
func ExampleExecuteTx() {
	dir, err := os.MkdirTemp("", "idem")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file, err := bolt.Open(filepath.Join(dir, "bank.db"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	store, err := idem.NewTx(file, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	deposit := func(_ context.Context, tx *bbolt.Tx) (int, error) {
		b, err := tx.CreateBucketIfNotExists([]byte("accounts"))
		if err != nil {
			return 0, err
		}
		balance := len(b.Get([]byte("anna"))) + 10
		return balance, b.Put([]byte("anna"), make([]byte, balance))
	}
	for range 2 {
		res, err := idem.ExecuteTx(context.Background(), store, idem.Scope{Operation: "deposit"}, "slip-7", idem.NoFingerprint(), deposit)
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// 10 false <nil>
	// 10 true <nil>
}

// The caller owns the transaction; idem joins it.
func ExampleExecuteIn() {
	dir, err := os.MkdirTemp("", "idem")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file, err := bolt.Open(filepath.Join(dir, "shop.db"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	store, err := idem.NewTx(file, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		err = file.Bolt().Update(func(tx *bbolt.Tx) error {
			res, err := idem.ExecuteIn(context.Background(), store, tx, idem.Scope{Operation: "order"}, "order-1", idem.NoFingerprint(),
				func(_ context.Context, tx *bbolt.Tx) (string, error) {
					b, err := tx.CreateBucketIfNotExists([]byte("orders"))
					if err != nil {
						return "", err
					}
					return "accepted", b.Put([]byte("order-1"), []byte("3 chairs"))
				})
			fmt.Println(res.Value, res.Replayed)
			return err
		})
		fmt.Println(err)
	}
	// Output:
	// accepted false
	// <nil>
	// accepted true
	// <nil>
}

// A call to a provider, then one commit of what follows from it.
func ExampleExecuteThenTx() {
	dir, err := os.MkdirTemp("", "idem")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file, err := bolt.Open(filepath.Join(dir, "payments.db"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	store, err := idem.NewTx(file, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	res, err := idem.ExecuteThenTx(context.Background(), store, idem.Scope{Operation: "pay"}, "order-1", idem.NoFingerprint(),
		func(ctx context.Context) (string, error) { // no transaction is open here
			return "charge made with " + string(idem.AttemptFrom(ctx).DeriveKey("provider")), nil
		},
		func(_ context.Context, tx *bbolt.Tx, charge string) (string, error) {
			b, err := tx.CreateBucketIfNotExists([]byte("payments"))
			if err != nil {
				return "", err
			}
			return charge, b.Put([]byte("order-1"), []byte(charge))
		})
	fmt.Println(res.Value, err)
	// Output:
	// charge made with e6602761-466a-8529-9b22-de4064d3356b <nil>
}

// A batch that was interrupted is simply run again.
func ExampleExecuteAll() {
	store, _ := idem.New(memory.New(nil), nil)
	invoices := []string{"anna", "ben", "anna"}
	send := func(_ context.Context, customer string) (string, error) {
		fmt.Println("sending to", customer)
		return "sent to " + customer, nil
	}
	identify := func(customer string) (idem.Key, idem.Fingerprint) {
		return idem.JoinKey(customer, "2026-11"), idem.NoFingerprint()
	}
	for _, item := range idem.ExecuteAll(context.Background(), store, idem.Scope{Operation: "send"}, invoices, identify, send, idem.Parallel(1)) {
		fmt.Println(item.Value, item.Replayed, item.Err)
	}
	// Output:
	// sending to anna
	// sending to ben
	// sent to anna false <nil>
	// sent to ben false <nil>
	// sent to anna true <nil>
}

// Under Hold nothing runs again until a person has looked.
func ExampleStore_Resolve() {
	store, _ := idem.New(memory.New(nil), &idem.Options{OnAbandoned: idem.Hold})
	ctx, scope := context.Background(), idem.Scope{Operation: "transfer"}
	transfer := func(context.Context) (string, error) { return "", idem.Uncertain(errors.New("bank did not answer")) }

	_, err := idem.Execute(ctx, store, scope, "t-1", idem.NoFingerprint(), transfer)
	fmt.Println(idem.Advise(err))

	rec, _ := store.Get(ctx, scope, "t-1")
	err = store.Resolve(ctx, scope, "t-1", rec.Fence, idem.Applied("receipt 17", "found in the bank's list"))
	fmt.Println(err)

	res, err := idem.Execute(ctx, store, scope, "t-1", idem.NoFingerprint(), transfer)
	fmt.Println(res.Value, res.Replayed, err)
	// Output:
	// ask a person
	// <nil>
	// receipt 17 true <nil>
}

// RecoverWith asks the world before an abandoned operation is run again.
func ExampleRecoverWith() {
	store, _ := idem.New(memory.New(nil), nil)
	res, err := idem.Execute(context.Background(), store, idem.Scope{Operation: "charge"}, "order-1", idem.NoFingerprint(),
		func(context.Context) (string, error) { return "charged", nil },
		idem.RecoverWith(func(context.Context) (string, bool, error) {
			return "", false, nil // called only if an earlier attempt was abandoned
		}))
	fmt.Println(res.Value, res.Attempt, err)
	// Output: charged 1 <nil>
}

// Lookup reads a result without running anything.
func ExampleLookup() {
	store, _ := idem.New(memory.New(nil), nil)
	ctx, scope := context.Background(), idem.Scope{Operation: "report"}
	_, err := idem.Lookup[string](ctx, store, scope, "2026-11")
	fmt.Println(errors.Is(err, idem.ErrNotFound))
	idem.Execute(ctx, store, scope, "2026-11", idem.NoFingerprint(), func(context.Context) (string, error) { return "report.pdf", nil })
	res, err := idem.Lookup[string](ctx, store, scope, "2026-11")
	fmt.Println(res.Value, err)
	// Output:
	// true
	// report.pdf <nil>
}
