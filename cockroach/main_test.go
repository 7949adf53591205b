package cockroach

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/goidem/idem/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m, func() error { return goleak.Find() }) }
