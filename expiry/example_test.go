package expiry_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goidem/idem"
	"github.com/goidem/idem/backend"
	"github.com/goidem/idem/backend/memory"
	"github.com/goidem/idem/expiry"
)

const day = 24 * time.Hour

func ExampleNew() {
	policy, err := expiry.New(
		expiry.Rule{Operation: "*", Replay: day, Dedup: 7 * day},
		expiry.Rule{Operation: "billing.*", Replay: 2 * day, Horizons: expiry.Horizons{QueueRedrive: 14 * day, Settlement: 10 * day}},
		expiry.Rule{Operation: "payments.charge", Preset: expiry.PresetStripe},
	)
	if err != nil {
		panic(err)
	}
	for _, operation := range []string{"billing.close", "payments.charge", "mail.send"} {
		keep := policy.For(backend.ID{Operation: operation}, backend.Completed)
		fmt.Println(operation, expiry.Show(keep.Replay), expiry.Show(keep.Dedup))
	}
	// Output:
	// billing.close 2d 14d
	// payments.charge 1d 1d
	// mail.send 1d 7d
}

func ExampleNew_horizon() {
	_, err := expiry.New(expiry.Rule{Operation: "inbox.orders", Dedup: time.Hour, Horizons: expiry.Horizons{QueueRedrive: 4 * time.Hour}})
	var refused *expiry.RuleError
	fmt.Println(errors.As(err, &refused), refused.Field)
	fmt.Println(err)
	// Output:
	// true dedup
	// idem: retention policy, rule 1 (operation inbox.orders): dedup is 1h and the queue redrive horizon 4h: a key that is forgotten before the last one who asks would run again; dedup must be at least 4h
}

func ExamplePolicy_Explain() {
	policy, err := expiry.New(
		expiry.Rule{Operation: "billing.*", Dedup: 30 * day},
		expiry.Rule{Operation: "*.close", Dedup: 60 * day},
	)
	if err != nil {
		panic(err)
	}
	rule, why := policy.Explain(backend.ID{Operation: "billing.close"}, backend.Completed)
	fmt.Println(rule.Operation)
	fmt.Println(why)
	// Output:
	// billing.*
	// rule 1 (operation billing.*) decides: any tenant, prefix; more specific than rule 2 (operation *.close); completed: replay 1d, dedup 30d
}

func ExamplePolicy_Lateness() {
	policy, err := expiry.New(expiry.Rule{
		Operation: "payments.charge", Dedup: 7 * day, Issued: expiry.ByUUIDv7,
		Was: []expiry.Past{{Dedup: 12 * time.Hour}}, // until last spring
	})
	if err != nil {
		panic(err)
	}
	id := backend.ID{Operation: "payments.charge", Key: "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"}
	issued, _ := expiry.UUIDv7Time(id.Key)
	for _, after := range []time.Duration{time.Hour, 13 * time.Hour, -time.Hour} {
		verdict, err := policy.Lateness(id, time.Time{}, issued.Add(after))
		fmt.Println(after, verdict, err)
	}
	// Output:
	// 1h0m0s in time <nil>
	// 13h0m0s late <nil>
	// -1h0m0s from the future <nil>
}

func ExampleRule_Forecast() {
	policy, err := expiry.New(expiry.Rule{Operation: "billing.*", Replay: day, Dedup: 30 * day})
	if err != nil {
		panic(err)
	}
	forecasts, err := policy.Rule(backend.ID{Operation: "billing.close"}).Forecast(expiry.Load{Rate: 50, ResultSize: 200})
	if err != nil {
		panic(err)
	}
	for _, f := range forecasts {
		fmt.Printf("%-8s %9d records %5.1f GB\n", f.Backend, f.Records, float64(f.Bytes)/1e9)
	}
	// Output:
	// bolt     137700000 records  46.4 GB
	// redis    129600000 records  59.1 GB
	// postgres 129600000 records  90.7 GB
}

// The sweeper works on the backend, beside the store that the calls go through.
func ExampleNewSweeper() {
	b := memory.New(nil)
	store, err := idem.New(b, nil)
	if err != nil {
		panic(err)
	}
	scope := idem.Scope{Operation: "billing.invoice"}
	swept := make(chan expiry.Round, 1)
	sweeper, err := expiry.NewSweeper(b, &expiry.SweeperOptions{OnRound: func(r expiry.Round) { swept <- r }})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- sweeper.Run(ctx) }()

	res, err := idem.Execute(ctx, store, scope, "2026-11", idem.NoFingerprint(), func(context.Context) (string, error) { return "sent", nil })
	fmt.Println(res.Value, err)

	first := <-swept
	fmt.Println("removed", first.Removed, first.Err)
	stop()
	fmt.Println("ended", <-ended)
	// Output:
	// sent <nil>
	// removed 0 <nil>
	// ended <nil>
}
