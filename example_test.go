package idem_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend/memory"
)

func ExampleExecute() {
	store, err := idem.New(memory.New(nil), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	scope := idem.Scope{Operation: "billing.invoice"}
	for range 2 {
		res, err := idem.Execute(context.Background(), store, scope, "invoice-2026-11", idem.FingerprintBytes([]byte("plan=basic")),
			func(ctx context.Context) (string, error) {
				fmt.Println("charging")
				return "receipt-42", nil
			})
		fmt.Println(res.Value, res.Replayed, err)
	}
	// Output:
	// charging
	// receipt-42 false <nil>
	// receipt-42 true <nil>
}

func ExamplePermanent() {
	store, _ := idem.New(memory.New(nil), nil)
	declined := &idem.FailedError{Code: "card_declined"}
	for range 2 {
		_, err := idem.Execute(context.Background(), store, idem.Scope{Operation: "charge"}, "order-1", idem.NoFingerprint(),
			func(ctx context.Context) (string, error) {
				fmt.Println("asking the bank")
				return "", idem.Permanent("card_declined", errors.New("limit exceeded"))
			})
		fmt.Println(errors.Is(err, declined), idem.Advise(err), err)
	}
	// Output:
	// asking the bank
	// true stop idem: failed: card_declined: limit exceeded
	// true stop idem: failed: card_declined: limit exceeded
}
