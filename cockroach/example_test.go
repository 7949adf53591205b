package cockroach_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"

	"github.com/goidem/idem"
	"github.com/goidem/idem/cockroach"
	"github.com/goidem/idem/internal/crdbshim"
	"github.com/goidem/idem/internal/testdb"
)

// lint:const set once, before the examples run
var exampleURL = "cockroach://app@localhost:26257/app"

// A transaction of the caller's own is run by cockroach-go, and idem joins it: a
// restart that the server wants reaches cockroach-go, which runs all of it again.
func TestJoinUnderExecuteTx(t *testing.T) {
	pg := testdb.Postgres(t)
	url := pg.Database(t)
	shim := crdbshim.Start(t, url, crdbshim.Options{})
	exampleURL = shim.URL()
	pg.Exec(t, url, "CREATE TABLE payments (account text, cents int)")
	for i, fault := range []crdbshim.Fault{
		{},
		{Kind: crdbshim.Serialization, SQL: "INSERT INTO payments"},
		{Kind: crdbshim.Serialization, AtCommit: true, SQL: "INSERT INTO payments"},
		{Kind: crdbshim.Serialization, SQL: `INSERT INTO "idem_records"`}, // idem's own statement
	} {
		account := fmt.Sprint("account-", i)
		shim.ClearFaults()
		if fault.Kind != 0 {
			shim.Inject(fault)
		}
		for range 2 { // the second time is a replay
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := payInOwnTransaction(ctx, account); err != nil {
				t.Errorf("%s: %v", account, err)
			}
			cancel()
		}
		if n := pg.Exec(t, url, "SELECT count(*) FROM payments WHERE account = '"+account+"'"); n[0] != "1" {
			t.Errorf("%s: %s payments, want 1", account, n[0])
		}
	}
	if shim.Fired() != 3 {
		t.Errorf("%d faults happened, want 3", shim.Fired())
	}
}

func payInOwnTransaction(ctx context.Context, account string) error {
	db, err := cockroach.Open(ctx, exampleURL, &cockroach.Options{Migrate: true})
	if err != nil {
		return err
	}
	defer db.Close()
	store, err := idem.NewTx(db, nil)
	if err != nil {
		return err
	}
	return crdbpgx.ExecuteTx(ctx, db.Pool(), pgx.TxOptions{}, func(tx pgx.Tx) error {
		_, err := idem.ExecuteIn(ctx, store, tx, idem.Scope{Operation: "pay"}, idem.Key(account), idem.NoFingerprint(),
			func(ctx context.Context, tx pgx.Tx) (string, error) {
				_, err := tx.Exec(ctx, "INSERT INTO payments VALUES ($1, $2)", account, 4200)
				return "paid", err
			})
		return err
	})
}

func ExampleOpen() {
	if err := payInOwnTransaction(context.Background(), "anna"); err != nil {
		fmt.Println(err)
	}
}
